"""Where everything stands: margins as wide as their texts, and the plot in what they leave.

`place` ends the drawing of every figure. `write` calls it again on a copy, for another width and
size of texts: nothing is fitted by eye, so nothing lies outside the page or on another text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from itertools import pairwise
from math import ceil, inf
from typing import Any

import plotly.graph_objects as go

from tracekit.errors import ConfigError

FONT_SIZE, PER_INCH = 15.0, 96
"""Pixels of axis titles on the screen, and of an inch in print."""
CELL = 27.0
"""Largest size of a cell on the screen, in pixels."""
_TALLEST = 620.0
"""Height of all rows of cells on the screen, in pixels."""
_FLATTEST_ROW = 11.5
"""Pixels that a row of cells is high in print at least, if the page is: 0.12 inches."""
_BARS, _GAP = 130.0, 14.0
"""Pixels that a panel of bars is wide, and that are between panels."""
_WIDEST_TITLE = 520.0
"""Pixels on the screen beyond which a title does not make its figure wider."""
_SMALLEST_PLOT = 60.0
"""Pixels; a narrower plot shows nothing."""
_LOWEST_BAR = 104.0
"""Pixels that a colour bar needs for its title and three ticks."""
_LINE = 1.3
"""Height of a line of text, over the size of the font."""
_DISTANCES = ("standoff", "ticklen", "xshift", "yshift", "thickness")
_MOST_SHRUNK = 0.7
"""Share of their size to which ticks may shrink before some are left out."""
_Figure = Any
"""A figure of plotly; its parts have no types."""


def text_width(text: str, size: float) -> float:
    """Pixels that a text is wide, its longest line, in Arial or a narrower font."""
    lines = [unescape(re.sub("<[^>]*>", "", line)) for line in str(text).split("<br>")]
    return size * max(sum(map(_letter, line)) for line in lines)


def _letter(letter: str) -> float:
    if letter in "iljtfrI.,:;'|![]() ":
        return 0.34
    if letter in "mwMW@%\u2026" or letter > "\u2fff":
        return 0.86
    return 0.7 if letter.isupper() else 0.57


def place(figure: go.Figure, width: float | None = None, page: float = inf) -> go.Figure:
    """Sets size, margins, domains and line breaks; returns the figure.

    Its `meta` says how large the plot is on the screen, and how it grows. Without a `width`, in
    pixels, the figure is as wide as that plot and its margins; `page` is the largest height.

    Raises:
        ConfigError: Nothing is left for the plot.
    """
    layout: Any = figure.layout
    # A title that needs another line takes room from the plot, which may break another title.
    _place(figure, width, page)
    plot = _place(figure, width, page)
    texts = layout.meta["texts"]
    drawn = layout.meta["plot"] if layout.meta["grows"] == "plot" else layout.meta["plot"][:1]
    shrinks = (now / before for now, before in zip(plot, drawn, strict=False))
    scale = min(texts, *shrinks) if width else texts
    for note in _notes_beside_plot(figure, xref="x", yref="y"):
        # Between marks, which come nearer to each other.
        note.font.size *= scale / texts
        note.yshift = (note.yshift or 0) * scale / texts
    if scale != layout.meta["marks"]:
        _scale_marks(figure, scale / layout.meta["marks"])
        layout.meta["marks"] = scale
    return figure


def _place(figure: _Figure, width: float | None, page: float) -> tuple[float, float]:
    layout = figure.layout
    meta, texts = layout.meta, layout.meta["texts"]
    left, right = _left_margin(figure), _right_margin(figure, texts)
    room = (width or meta["widest"] or inf) - left - right
    if room < _SMALLEST_PLOT:
        raise ConfigError(_too_small("width", width or 0, room, texts))
    plot = room if width else meta["plot"][0]
    row, gaps = meta["plot"][1] / (meta["plot"][0] if meta["grows"] == "plot" else 1), 0.0
    if meta["grows"] == "cells":
        plot, cell = _place_panels(figure, room, fills=bool(width), texts=texts)
        n_rows = meta["plot"][1]
        shown = min(cell, CELL, plot / n_rows if width else _TALLEST / n_rows)
        height = n_rows * max(shown, _FLATTEST_ROW if width else 4.0)
    else:
        height = row * plot if meta["grows"] == "plot" else row * texts
        for each in (layout.xaxis.title, *(notes := _panel_notes(figure))):
            _break(each, plot)
        gaps = sum(_height_of(note) + 2 * note.yshift for note in notes[1:])
        height += gaps
    titles = (layout.title, layout.title.subtitle)
    title = 16 + 1.05 * max(text_width(" ".join(_words(each)), each.font.size) for each in titles)
    whole = width or ceil(max(left + plot + right, min(_WIDEST_TITLE, title)))
    top, below = ceil(_top_margin(figure, whole, texts)), _bottom_margin(figure)
    bottom = ceil(below + _legend(figure, plot, below))
    height = height if width else round(height)
    if height > page - top - bottom:
        height = page - top - bottom
        if height - gaps < _SMALLEST_PLOT / 3:
            raise ConfigError(_too_small("height", page, height - gaps, texts))
    if gaps:
        _stack_panels(figure, height, gaps)
    _break(layout.yaxis.title, height + 20 * texts)
    bottom += ceil(_fit_bars(figure, height, bottom, texts))
    if layout.legend.y is not None:
        layout.legend.y = -below / height
    _thin_ticks(figure, plot, height)
    _fit_cell_texts(figure, plot, height)
    layout.margin.update({"l": left, "r": whole - left - plot, "t": top, "b": bottom, "pad": 0})
    layout.update(width=whole, height=top + height + bottom)
    # Plotly puts the middle of the first line there, and lifts it somewhat if there are more.
    middle = 0.65 + 0.35 * max(0, _lines(layout.title.text) - 1)
    layout.title.y = 1 - (5 * texts + middle * layout.title.font.size) / layout.height
    return plot, height


def _too_small(name: str, given: float, left: float, texts: float) -> str:
    return (
        f"The {name} of {given / PER_INCH:.3g} inches leaves {left:.0f} pixels for the plot at "
        f"{texts * FONT_SIZE * 72 / PER_INCH:.3g} points. Give a larger {name} or a smaller "
        "font_size."
    )


def _place_panels(
    figure: _Figure, room: float, *, fills: bool, texts: float
) -> tuple[float, float]:
    """Gives panels of cells their domains; returns the width of all, and that of a cell.

    A panel is no narrower than the longest word of its titles.
    """
    layout = figure.layout
    counts, n_rows = layout.meta["columns"], layout.meta["plot"][1]
    axes = [layout[f"xaxis{n or ''}"] for n in (0, *range(2, len(counts) + 1))]
    notes = _panel_notes(figure)
    starts = [int(note.xref.removeprefix("x").removesuffix(" domain") or 1) - 1 for note in notes]
    titled = list(zip(notes, pairwise([*starts, len(counts)]), strict=True))
    gap, needs = _GAP * texts, [_widest_word_width(axis.title) for axis in axes]
    for note, (start, end) in titled:
        share = _widest_word_width(note) / (end - start)
        needs[start:end] = [max(share, need) for need in needs[start:end]]
    free = room - gap * (len(counts) - 1)
    needs = [need * min(1.0, free / sum(needs)) for need in needs]
    low, high = 0.0, free if fills else min(CELL, _TALLEST / n_rows)

    def contents(cell: float) -> list[float]:
        return [cell * count or min(_BARS * texts, free / len(counts)) for count in counts]

    def slots(cell: float) -> list[float]:
        return [max(each) for each in zip(needs, contents(cell), strict=True)]

    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(slots(middle)) <= free else (low, middle)
    spare = max(0.0, free - sum(slots(low))) / len(counts) if fills else 0.0
    inner = [each if n else each + spare for each, n in zip(contents(low), counts, strict=True)]
    sizes = [max(each) for each in zip(slots(low), inner, strict=True)]
    whole = sum(sizes) + gap * (len(counts) - 1)
    lefts = [sum(sizes[:n]) + gap * n for n in range(len(sizes))]
    for axis, left, size, content in zip(axes, lefts, sizes, inner, strict=True):
        start = left + (size - content) / 2
        axis.domain = [start / whole, min(1.0, (start + content) / whole)]
        _break(axis.title, size + gap / 2)
    for note, (start, end) in titled:
        _break(note, lefts[end - 1] + sizes[end - 1] - lefts[start])
        first, last = axes[start].domain
        note.x = (lefts[start] / whole - first) / (last - first)
    for these in (notes, [axis.title for axis in axes]):
        for each in these:
            each.font.size = min(text.font.size for text in these)
    return whole, low if any(counts) else CELL


def _panel_notes(figure: _Figure) -> list[Any]:
    return [note for note in figure.layout.annotations if note.name == "panel"]


def _stack_panels(figure: _Figure, height: float, gaps: float) -> None:
    """Leaves room for their titles between panels below each other, as high as their domains."""
    layout, notes, top = figure.layout, _panel_notes(figure), 1.0
    axes = [layout[f"yaxis{note.yref[1:].removesuffix(' domain')}"] for note in notes]
    sizes = [axis.domain[1] - axis.domain[0] for axis in axes]
    for axis, size, note in zip(axes, sizes, notes, strict=True):
        top -= 0.0 if note is notes[0] else (_height_of(note) + 2 * note.yshift) / height
        low = top - (1 - gaps / height) * size / sum(sizes)
        axis.domain, top = [max(0.0, low), top], low


def _words(text: Any) -> list[str]:
    return str(text.text or "").replace("<br>", " ").split(" ")


def _widest_word_width(text: Any) -> float:
    return max(text_width(word, text.font.size) for word in _words(text))


def _break(text: Any, room: float) -> None:
    """Breaks a text into lines no wider than the room; makes it smaller where a word has none."""
    if text.text:
        text.font.size *= min(1.0, room / _widest_word_width(text))
        lines: list[str] = []
        for word in _words(text):
            longer = f"{lines[-1]} {word}" if lines else word
            fits = text_width(longer, text.font.size) <= room
            lines = [*lines[:-1], longer] if fits else [*lines, word]
        text.text = "<br>".join(lines)


def _lines(text: str | None) -> int:
    return text.count("<br>") + 1 if text else 0


def _height_of(text: Any) -> float:
    return _LINE * text.font.size * _lines(text.text)


def _tick_texts(axis: Any) -> list[str]:
    """Texts of the ticks of an axis; of one without given ones, a number."""
    if axis.visible is False or axis.showticklabels is False:
        return []
    return list(axis.ticktext) if axis.ticktext is not None else ["\u22120.00"]


def _notes_beside_plot(figure: _Figure, **at: Any) -> Iterator[Any]:
    """Texts beside the plot: annotations at an edge of it, turned away from it."""
    notes = (note for note in figure.layout.annotations if note.text)
    return (note for note in notes if all(note[name] == value for name, value in at.items()))


def _left_margin(figure: _Figure) -> float:
    axis, axes = figure.layout.yaxis, figure.select_yaxes()
    shown = [(text, each.tickfont.size) for each in axes for text in _tick_texts(each)]
    ticks = max((text_width(*each) for each in shown), default=0.0)
    notes = _notes_beside_plot(figure, xref="x domain", x=0, xanchor="right")
    groups = max((_height_of(note) - note.xshift for note in notes), default=0.0)
    return 8.0 + max(groups, ticks + 6.0 + (_height_of(axis.title) + 10 if axis.title.text else 0))


def _right_margin(figure: _Figure, texts: float) -> float:
    notes = _notes_beside_plot(figure, xref="x domain", x=1, xanchor="left")
    beside = max(
        (text_width(note.text, note.font.size) + note.xshift for note in notes), default=0.0
    )
    needs = [beside + 8.0, 14.0]
    for trace in _maps(figure):
        bar, size = trace.colorbar, trace.colorbar.tickfont.size
        values = bar.tickvals if bar.tickvals is not None else (trace.zmax, "\u22120.00")
        ticks = bar.ticktext if bar.ticktext is not None else [str(value)[:5] for value in values]
        bar.update(x=1, xanchor="left", xpad=beside + 8 * texts)
        widest = bar.thickness + 8 + max(text_width(text, size) for text in ticks)
        title = text_width(bar.title.text, bar.title.font.size)
        needs.append(bar.xpad + max(widest, title) + 6)
    return max(needs)


def _top_margin(figure: _Figure, width: float, texts: float) -> float:
    title, above = figure.layout.title, 8.0 * texts
    for each in (title, title.subtitle):
        if each.text:
            least = text_width(each.text, each.font.size) / (0.96 * width - 4)
            # A slightly smaller title in one line is better than two lines.
            each.font.size /= max(1.0, least) if least < 1.15 else 1.0
            _break(each, 0.96 * width - 4)
            above += _height_of(each)
    # Plotly leaves a line between the two.
    above += title.subtitle.font.size if title.subtitle.text else 0.0
    notes = max(map(_height_of, _notes_beside_plot(figure, y=1, yanchor="bottom")), default=0.0)
    tops = [axis for axis in figure.select_xaxes() if axis.side == "top"]
    return above + notes + 4 * texts + sum(2 * axis.tickfont.size for axis in tops)


def _bottom_margin(figure: _Figure) -> float:
    """Pixels of ticks and titles below the plot."""
    needs = [12.0]
    for axis in figure.select_xaxes():
        if axis.side == "top":
            continue
        texts, size = _tick_texts(axis), axis.tickfont.size
        of_lines = _LINE * size * max(map(_lines, texts), default=0)
        of_words = max((text_width(text, size) for text in texts), default=0.0)
        title = _height_of(axis.title) + axis.title.standoff if axis.title.text else 0.0
        needs.append((of_words if axis.tickangle else of_lines) + title + 10)
    for note in _notes_beside_plot(figure, y=0, yanchor="top"):
        needs.append(_height_of(note) - note.yshift + 6)
    return max(needs)


def _legend(figure: _Figure, plot: float, below: float) -> float:
    """Puts the legend below the axis title; returns its height.

    Left to itself, plotly lets a legend of several rows grow upwards, over the axis.
    """
    layout = figure.layout
    names = [trace.name for trace in figure.data if trace.name and trace.showlegend is not False]
    if layout.showlegend is False or (len(names) < 2 and not layout.showlegend):
        return 0.0
    size = layout.legend.font.size
    widest = 48 + max((text_width(name, size) for name in names), default=0.0)
    at = {"x": 0, "xanchor": "left", "y": -below, "yanchor": "top", "orientation": "h"}
    layout.legend.update(**at, entrywidth=widest - 44, entrywidthmode="pixels")
    return 10 + max(1.6 * size, 17) * (-(-len(names) // max(1, int(plot / widest))))


def _fit_bars(figure: _Figure, plot: float, bottom: float, texts: float) -> float:
    """Gives colour bars a least length; returns how many pixels the bottom margin needs for it."""
    length = _LOWEST_BAR * texts
    if plot >= length or not _maps(figure):
        return 0.0
    bar = {"lenmode": "pixels", "len": length, "y": 1, "yanchor": "top", "ypad": 0}
    figure.update_traces({"colorbar": bar}, {"type": "heatmap"})
    return max(0.0, length + 9 * texts - plot - bottom)


def _thin_ticks(figure: _Figure, width: float, height: float) -> None:
    """Makes ticks smaller that have no room, or leaves some out; keeps them for other sizes."""
    kept_by = figure.layout.meta["ticks"]
    for letter, size in (("x", width), ("y", height)):
        for axis in getattr(figure, f"select_{letter}axes")():
            if axis.range is None or axis.ticktext is None or len(axis.ticktext) < 2:
                continue
            ticks, texts = list(axis.tickvals), list(axis.ticktext)
            if list(kept_by.get(axis.plotly_name, ((),))[0]) == ticks:
                _, ticks, texts = kept_by[axis.plotly_name]
            low, high = axis.domain or (0, 1)
            room = size * (high - low) / abs(axis.range[1] - axis.range[0])
            font = axis.tickfont.size
            flat = max(text_width(text, font) for text in texts) + 0.4 * font
            tall = 1.15 * font * max(map(_lines, texts))
            need = flat if letter == "x" and not axis.tickangle else tall
            least = room * min(b - a for a, b in pairwise(sorted(ticks)))
            if least >= _MOST_SHRUNK * need:
                axis.tickfont.size = font * min(1.0, least / need)
                need = min(need, least)
            kept: list[int] = []
            is_counted, places = all(map(str.isdecimal, texts)), range(len(ticks))
            for rank in (
                places if is_counted else _ticks_by_largest_value(figure, axis.plotly_name, ticks)
            ):
                apart = min((abs(ticks[rank] - ticks[i]) for i in kept), default=inf) * room
                kept += [rank] if apart >= need - 1e-6 else []
            shown = [ticks[i] for i in sorted(kept)]
            kept_by[axis.plotly_name] = [shown, ticks, texts]
            axis.update(tickvals=shown, ticktext=[texts[i] for i in sorted(kept)])


def _ticks_by_largest_value(figure: _Figure, axis: str, ticks: Sequence[float]) -> list[int]:
    """Numbers of ticks: first of lines with a value of over half of the largest, then in order.

    A label that has no room is not missed where nothing happens.
    """
    sizes: dict[float, float] = {}
    for trace in figure.data:
        # A copied figure holds its arrays encoded, and they are not read then.
        is_read = trace.type == "heatmap" and isinstance(trace.x, tuple | list)
        is_read = is_read and isinstance(trace.z, tuple | list)
        letter = axis[0]
        if is_read and f"{letter}axis{(trace[f'{letter}axis'] or letter)[1:]}" == axis:
            lines = zip(*trace.z, strict=True) if letter == "x" else trace.z
            # Rows may have edges, one more than rows.
            for at, values in zip(trace[letter], lines, strict=False):
                sizes[at] = max(sizes.get(at, 0.0), *(abs(value or 0.0) for value in values))
    bound = max(sizes.values(), default=0.0) / 2
    return sorted(range(len(ticks)), key=lambda i: -max(sizes.get(ticks[i], 0.0), bound))


def _fit_cell_texts(figure: _Figure, width: float, height: float) -> None:
    """Makes signs and numbers in cells no larger than the cells."""
    for trace in figure.data:
        is_sign = trace.type == "scatter" and trace.mode == "text"
        if not is_sign and not (trace.type == "heatmap" and trace.texttemplate):
            continue
        x, y = (figure.layout[f"{a}axis{(trace[f'{a}axis'] or a)[1:]}"] for a in "xy")
        low, high = x.domain or (0, 1)
        wide = width * (high - low) / abs(x.range[1] - x.range[0]) / (1.0 if is_sign else 2.5)
        low, high = y.domain or (0, 1)
        tall = height * (high - low) / abs(y.range[1] - y.range[0])
        trace.textfont.size = max(1.0, min(trace.textfont.size, 0.85 * min(wide, tall)))


def resized(figure: go.Figure, texts: float) -> go.Figure:
    """A copy with texts of a size over that on the screen; `place` it next."""
    drawn = figure.to_dict()
    meta = drawn["layout"].get("meta")
    if not isinstance(meta, dict) or "grows" not in meta:
        raise ConfigError(
            "This figure was not drawn by tracekit: nothing says what may grow in it. First give "
            "it to tracekit.figures.in_style, or set its layout, and write it without width, "
            "height, font_size, font and title."
        )
    _scale(drawn, texts / meta["texts"])
    meta["texts"] = texts
    return go.Figure(drawn)


def _maps(figure: _Figure) -> list[Any]:
    """Maps beside which there is a colour bar."""
    maps = (trace for trace in figure.data if trace.type == "heatmap")
    return [each for each in maps if each.showscale is not False]


def _scale(part: Any, factor: float, inside: str = "") -> None:
    """Multiplies the sizes of fonts, and the distances of texts, in a part of a figure."""
    if isinstance(part, (list, tuple)):
        for each in part:
            _scale(each, factor)
    if not isinstance(part, dict):
        return
    for name, value in part.items():
        is_scaled = name in _DISTANCES or (name == "size" and inside.endswith("font"))
        if is_scaled and isinstance(value, (int, float)):
            part[name] = value * factor
        elif name != "meta":
            _scale(value, factor, name)


def _scale_marks(figure: _Figure, factor: float) -> None:
    """Multiplies the widths of lines, the sizes of markers and the room in frames."""
    for note in figure.select_annotations(lambda each: each.borderpad):
        note.borderpad *= factor
    for trace in figure.data:
        markers = [trace.marker] if "marker" in trace else []
        for line in (part["line"] for part in (trace, *markers) if "line" in part):
            for name in ("width", "backoff"):
                if name in line and isinstance(line[name], (int, float)):
                    line[name] *= factor
        for marker in (each for each in markers if "size" in each):
            if isinstance(marker["size"], (int, float)):
                marker["size"] *= factor
            elif marker["size"] is not None:
                marker["size"] = [each * factor for each in marker["size"]]
