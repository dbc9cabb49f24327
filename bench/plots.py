"""Plots as inline SVG, drawn with the standard library only: lines over two axes, and horizontal bars.

Everything a plot needs is in its own element: no style sheet, font, script or address from elsewhere.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

WIDTH, HEIGHT = 860, 380
LEFT, RIGHT, TOP, BOTTOM = 74, 210, 52, 46
INK, GRID = "#42505e", "#e3e8ee"
OURS = "#14568a"
OTHERS = ("#d1782c", "#4b9a6c", "#a0569c", "#b8a13a", "#c25563", "#7d8b99", "#5f77c4", "#8a6d4e")

Point = tuple[float, float]
Ticks = Sequence[tuple[float, str]]


def is_ours(name: str) -> bool:
    """Whether a row or a line is this project's."""
    return "ringbuf" in name or name.startswith("egress")


def short(value: float) -> str:
    """A number for an axis: 2.5 M, 30 k, 4, 0.05."""
    for limit, suffix in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def size_name(nbytes: float) -> str:
    """A payload size for reading: 64 B, 16 KiB, 1 MiB."""
    for limit, suffix in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= limit:
            return f"{nbytes / limit:g} {suffix}"
    return f"{nbytes:g} B"


def decades(values: Sequence[float]) -> list[tuple[float, str]]:
    """Ticks of a logarithmic axis that holds all values: 1, 10, 100, with 2 and 5 where decades are few."""
    low, high = min(values), max(values)
    steps = (1, 2, 5) if high / low < 300 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    below = [tick for tick in ticks if tick <= low][-1:]
    above = [tick for tick in ticks if tick >= high][:1]
    return [(tick, short(tick)) for tick in (*below, *(t for t in ticks if low < t < high), *above)]


def probability(percentile: float) -> float:
    """Where a percentile stands on a normal scale, on which both tails can be read."""
    return NormalDist().inv_cdf(percentile / 100)


def _style(name: str, others: list[str]) -> tuple[str, str]:
    """Stroke and dashes: ours dark, its Python body dashed, every rival a colour of its own."""
    if is_ours(name):
        return OURS, ' stroke-dasharray="6 4"' if "python" in name else ""
    at = others.index(name)
    return OTHERS[at % len(OTHERS)], ' stroke-dasharray="2 3"' if at >= len(OTHERS) else ""


def _text(x: float, y: float, text: str, anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{html.escape(text)}</text>'


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(title, quote=True)}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    return (
        head
        + _text(LEFT - 60, 18, title, extra=' font-size="14" font-weight="600"')
        + "".join(parts)
        + "</svg>"
    )


def lines(
    title: str,
    series: Mapping[str, Sequence[Point]],
    x_label: str,
    y_label: str,
    x_ticks: Ticks | None = None,
    x_of: Callable[[float], float] = math.log2,
) -> str:
    """One line per series; y logarithmic, x placed by `x_of`. Points that have no place there are left out.

    Without a point there is no plot: the answer is then a sentence.
    """
    kept = {name: [(x, y) for x, y in points if y > 0] for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    if not kept:
        return f"<p>{html.escape(title)}: not measured</p>"
    xs = sorted({x for points in kept.values() for x, _ in points})
    marks = decades([y for points in kept.values() for _, y in points])
    ticks = list(x_ticks or [(x, size_name(x)) for x in xs])
    ends = [x_of(x) for x in (*xs, *(x for x, _ in ticks))]
    x_low, x_span = min(ends), (max(ends) - min(ends)) or 1.0
    y_low = math.log10(marks[0][0])
    y_span = (math.log10(marks[-1][0]) - y_low) or 1.0
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x: float, y: float) -> Point:
        across = (x_of(x) - x_low) / x_span
        up = (math.log10(y) - y_low) / y_span
        return LEFT + across * width, TOP + (1 - up) * height

    parts = []
    for value, label in marks:
        _, y = place(xs[0], value)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}h{width}" stroke="{GRID}"/>' + _text(LEFT - 8, y + 4, label, "end")
        )
    for value, label in ticks:
        x, _ = place(value, marks[0][0])
        parts.append(f'<path d="M{x:.1f} {TOP}v{height}" stroke="{GRID}"/>')
        parts.append(_text(x, TOP + height + 18, label, "middle"))
    parts.append(_text(LEFT + width / 2, HEIGHT - 8, x_label, "middle"))
    parts.append(_text(LEFT - 60, 36, y_label))
    # Named where they end, in the order in which they end, so that the legend reads as the plot does.
    ordered = sorted(kept.items(), key=lambda item: -item[1][-1][1])
    others = sorted(name for name in kept if not is_ours(name))
    for at, (name, points) in enumerate(ordered):
        stroke, dashes = _style(name, others)
        thick = 2.6 if is_ours(name) else 1.6
        placed = [place(x, y) for x, y in points]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in placed)
        parts.append(f'<path d="{path}" fill="none" stroke="{stroke}" stroke-width="{thick}"{dashes}/>')
        for (x, y), (x_value, y_value) in zip(placed, points, strict=True):
            tip = html.escape(f"{name}: {y_value:.4g} at {x_value:g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{stroke}"><title>{tip}</title></circle>'
            )
        y = TOP + 8 + at * 18
        x = WIDTH - RIGHT + 14
        parts.append(f'<path d="M{x} {y}h22" stroke="{stroke}" stroke-width="{thick}"{dashes}/>')
        weight = ' font-weight="600"' if is_ours(name) else ""
        parts.append(_text(x + 28, y + 4, name, extra=weight))
    return _svg(title, max(HEIGHT, TOP + 8 + len(ordered) * 18), parts)


def percentiles(title: str, curves: Mapping[str, Mapping[str, float]]) -> str:
    """Curves of latencies in us over the percentile, one line per waiter; `curves` maps percentiles to us."""
    series = {name: [(float(q), us) for q, us in curve.items()] for name, curve in curves.items()}
    shown = sorted({q for points in series.values() for q, _ in points})
    return lines(title, series, "percentile", "us", [(q, f"{q:g}") for q in shown], probability)


def bars(title: str, values: Mapping[str, float], unit: str) -> str:
    """Horizontal bars over a logarithmic axis, greatest first, ours in the darker colour."""
    kept = sorted(((n, v) for n, v in values.items() if v > 0), key=lambda item: -item[1])
    if not kept:
        return f"<p>{html.escape(title)}: not measured</p>"
    left, width = 190, WIDTH - 190 - 80
    marks = decades([value for _, value in kept])
    low = math.log10(marks[0][0]) - 0.15
    span = math.log10(marks[-1][0]) - low
    parts = []
    for at, (name, value) in enumerate(kept):
        y = 34 + at * 22
        long = (math.log10(value) - low) / span * width
        fill = OURS if is_ours(name) else "#b9c6d2"
        parts.append(f'<rect x="{left}" y="{y}" width="{long:.1f}" height="16" fill="{fill}"/>')
        parts.append(_text(left - 8, y + 12, name, "end") + _text(left + long + 6, y + 12, short(value)))
    height = 34 + len(kept) * 22 + 24
    parts.append(_text(left, height - 6, f"{unit}, logarithmic"))
    return _svg(title, height, parts)
