"""Figures of an explanation (`why`, an `Explanation`), of paths and of side effects."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from tracekit._util.deferred import pd
from tracekit.figures import paths as arrows
from tracekit.figures.charts import HeadRow, attention_map
from tracekit.figures.members import Edge, Members, network, waterfall
from tracekit.figures.pairs import RING, Cell, PairMap, pair_map
from tracekit.figures.strengths import Strength, strengths
from tracekit.figures.style import data_and_model, plain
from tracekit.results.on_examples import examples_text


def member_waterfall(why: Any) -> go.Figure:
    """Shapley values, one bar after the other; see `Explanation.waterfall`."""
    return waterfall(
        _members(why.table),
        value_title=why.axis_label,
        title=data_and_model(why.dataset, why.model),
        subtitle=f"Shapley values, with 95 % intervals; {plain(why.setting)}",
    )


def _members(table: pd.DataFrame) -> Members:
    rows = table.to_dict("records")
    return Members(
        names=[row["component"] for row in rows],
        values=[row["value"] for row in rows],
        low=[row["value_low"] for row in rows],
        high=[row["value_high"] for row in rows],
        hover=[
            f"alone: {row['alone']:.4g}<br>last: {row['last']:.4g}<br>{row['verdict']}"
            for row in rows
        ],
    )


def member_heatmap(why: Any) -> go.Figure:
    """Interactions of all pairs in two contexts; see `Explanation.heatmap`."""
    labels, tested, context = why.labels, why.tested_context, why.context_text
    n, rank_of = len(labels), {label: rank for rank, label in enumerate(labels)}
    cells: list[list[float | None]] = [[None] * n for _ in labels]
    hover = [[plain(label)] * n for label in labels]
    signed: list[Cell] = []
    ringed: list[Cell] = []
    for row in why.interactions.to_dict("records"):
        i, j = sorted((rank_of[row["first"]], rank_of[row["second"]]))
        cells[i][j], cells[j][i] = row["alone"], row[tested]
        pair = f"{plain(row['first'])} and {plain(row['second'])}<br>"
        hover[i][j] = f"{pair}alone: {_interval(row, 'alone')}"
        hover[j][i] = f"{pair}{context}: {_interval(row, tested)}<br>{_p_value(row)}"
        signed += [(j, i)] if row["significant"] else []
        ringed += [(j, i)] if _is_unsure(row, tested) else []
    bound = max((abs(value) for row in cells for value in row if value is not None), default=1.0)
    drawn = PairMap(
        labels=labels,
        values=cells,
        hover=hover,
        bound=bound or 1.0,
        signed=signed,
        ringed=ringed,
        note=RING if ringed else "",
    )
    subtitle = f"{plain(why.axis_label)}; above: alone; below: {context} (+, \u2212: p &lt; .05)"
    subtitle += f"; {plain(why.setting)}"
    return pair_map(drawn, title=data_and_model(why.dataset, why.model), subtitle=subtitle)


def member_network(why: Any) -> go.Figure:
    """Members by layer, joined where they interact; see `Explanation.network`."""
    labels, tested = why.labels, why.tested_context
    rows = why.interactions.to_dict("records")
    joined = [row for row in rows if row["significant"] or _is_unsure(row, tested)]
    edges = [
        Edge(
            first=labels.index(row["first"]),
            second=labels.index(row["second"]),
            value=row[tested],
            hover=f"{plain(row['first'])} and {plain(row['second'])}: "
            f"{_interval(row, tested)}, {_p_value(row)}",
            is_sure=row["significant"],
        )
        for row in joined
    ]
    return network(
        _members(why.table.set_index("component").loc[labels].reset_index()),
        [component.layer for component in why.components],
        edges,
        title=data_and_model(why.dataset, why.model),
        subtitle=f"{plain(why.axis_label)}; area: Shapley value; lines: interaction; "
        + plain(why.setting)
        + ("" if joined else " (no interval leaves out 0)"),
    )


def _is_unsure(row: dict[Any, Any], name: str) -> bool:
    """Whether the interval of a pair leaves out 0, but it is not significant."""
    return not row["significant"] and (row[f"{name}_low"] > 0 or row[f"{name}_high"] < 0)


def _p_value(row: dict[Any, Any]) -> str:
    named = {"p": "p", "q": "q", "p_family": "family-wise p"}
    texts = [f"{text} = {row[name]:.2g}" for name, text in named.items()]
    return ", ".join(texts) if row["p"] == row["p"] else "no p on these examples"


def _interval(row: dict[Any, Any], name: str) -> str:
    return f"{row[name]:+.4g} ({row[f'{name}_low']:.4g} to {row[f'{name}_high']:.4g})"


_MOST_ARROWS = 20


def path_figure(paths: Any) -> go.Figure:
    """Members by layer, joined by paths; see `Paths.network`."""
    apart = paths.table[paths.table["is_apart"]]
    drawn = apart.head(_MOST_ARROWS).to_dict("records")
    names = paths.nodes
    # An MLP stands above the attention of its layer.
    layers = [layer + 0.5 * part for layer, part in paths.places]
    count = f"{len(drawn)}"
    if len(drawn) < len(apart):
        count += f" strongest of {len(apart)}"
    return arrows.path_network(
        names,
        [*[None] * paths.has_embedding, *layers, None],
        [
            arrows.Arrow(
                start=names.index(row["sender"]),
                end=names.index(row["receiver"]),
                value=row["effect"],
                letter=row["strongest"][:1],
                hover=f"{plain(row['sender'])} to {plain(row['receiver'])}: "
                f"{_interval(row, 'effect')}, {_p_value(row)}",
                is_sure=row["significant"] or not paths.is_tested,
            )
            for row in drawn
        ],
        title=data_and_model(paths.dataset, paths.model),
        subtitle=f"{plain(paths.axis_label)}; {count} paths whose 95 % interval leaves out 0, "
        f"{plain(paths.setting)}" + ("; open: p \u2265 .05" if paths.is_tested else ""),
    )


def attention_figure(attention: Any) -> go.Figure:
    """Attention by place and direct contributions; see `Attention.figure`."""
    rows = []
    runs = {"clean": ""}
    if attention.counterfactual is not None:
        runs["counterfactual"] = "cf."
    for of_head in attention.contributions.to_dict("records"):
        table = attention.table[attention.table["component"] == of_head["component"]]
        cells = table.to_dict("records")
        for name, shown in runs.items():
            value = f"{of_head[name]:+.2f}".replace("-", "\u2212")
            start = f"{of_head['component']}, {name}"
            rows.append(
                HeadRow(
                    head=of_head["component"],
                    run=shown,
                    values=[cell[name] for cell in cells],
                    beside=value,
                    hover=[
                        f"{start} to {plain(cell['place'])}: {_interval(cell, name)}<br>"
                        f"contribution: {_interval(of_head, name)}"
                        for cell in cells
                    ],
                )
            )
    return attention_map(
        rows,
        attention.places,
        beside="logits",
        title=data_and_model(attention.dataset, attention.model),
        subtitle=f"attention {attention.query_text}; {plain(attention.setting)}"
        + ("; cf.: counterfactual" if len(runs) > 1 else "")
        + "; logits: direct contribution, scales of norms frozen at the clean run",
    )


def strengths_figure(side: Any) -> go.Figure:
    """Strengths on all data beside those of random sets; see `SideEffects.figure`."""
    measured = (side.target, *side.others)
    counts = [each.n_text for each in measured]
    said = examples_text(side.selected_on, side.target.dataset_fingerprint, counts[0])
    rows = [
        Strength(
            name=row["name"],
            metric=row["metric"],
            n=n,
            value=row["strength"],
            low=row["strength_low"],
            high=row["strength_high"],
            controls=each.control_strengths.tolist(),
            hover=f"mean effect: {row['effect']:.4g}"
            + (f"<br>p = {row['p']:.2g}" if row["p"] == row["p"] else ""),
            beside="" if each is side.target else _selectivity(row),
        )
        for row, each, n in zip(side.table.to_dict("records"), measured, counts, strict=True)
    ]
    return strengths(
        rows,
        beside="selectivity",
        value_title="strength (share of all components)",
        title=f"{len(side.members)} components of {plain(side.model)}",
        subtitle=f"{plain(side.intervention)}: mean absolute effect, as a share of all; bars and "
        f"brackets: 95 % intervals; target: {said}",
    )


def _selectivity(row: dict[Any, Any]) -> str:
    ends = f"({row['selectivity_low']:.2f} to {row['selectivity_high']:.2f})"
    return f"{row['selectivity']:.2f}<br>{ends}".replace("-", "\u2212")
