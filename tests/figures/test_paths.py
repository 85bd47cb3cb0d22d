"""Networks of members: where their arrows go."""

from __future__ import annotations

from tracekit.figures.paths import Arrow, path_network


def test_arrows_stay_within_the_plot():
    """Two long ones between nodes on the left, which would be bend_line beyond its edge."""
    layers = [float(layer) for layer in range(25)]
    ends = {"value": 1.0, "letter": "", "hover": "", "is_sure": True}
    arrows = [Arrow(start=0, end=24, **ends), Arrow(start=6, end=24, **ends)]
    names = [f"L{layer:.0f}H0" for layer in layers]
    figure = path_network(names, layers, arrows, title="", subtitle="")
    low, high = figure.layout.xaxis.range
    lines = [trace for trace in figure.data if trace.mode == "lines"]
    assert len(lines) == 2
    assert all(low <= x <= high for line in lines for x in line.x)
