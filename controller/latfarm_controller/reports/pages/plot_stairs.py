"""A staircase as SVG: measured points, our prediction with its interval, and the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from latfarm_controller.reports.pages import words

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 44
AXES = {
    "out_channels": "output channels",
    "in_channels": "input channels",
    "spatial": "side of the input map, elements",
}


def axis_name(facts: Mapping[str, Any]) -> str:
    """The size that varies, as text: features for matrices, else channels or the map's side."""
    axis = str(facts["axis"])
    if facts["family"] == "fc":
        return AXES[axis].replace("channels", "features")
    if axis == "out_channels" and facts["family"] not in ("conv",):
        return "channels"
    return AXES.get(axis, axis)


def nice_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """About `most` round values from `low` to `high`; one value if the two are equal."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    ticks = [(first + i) * step for i in range(int((high - low) / step) + 2)]
    return [tick for tick in ticks if tick <= high * (1 + 1e-9)]


def stairs(facts: Mapping[str, Any], number: int) -> str:
    """The plot of one entry of `facts.staircases.staircases`; `number` makes its ids unique."""
    curve, points = facts["curve"], facts["points"]
    places: list[float] = curve["place"]
    low, high = places[0], max(places[-1], places[0] + 1)
    shown: list[float] = [p["shown_ms"] for p in points]
    # The interval may be huge, so the scale only depends on measured and predicted latencies.
    top: float = 1.08 * max([*shown, *curve["latency_ms"]])
    top = max(
        top, min(max(curve["high_ms"]), 1.6 * top), min(max([0.0, *curve["forest_ms"]]), 1.3 * top)
    )
    if top <= 0:
        return ""

    def x(place: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (place - low) / (high - low)

    def y(value_ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(value_ms, 1.2 * top) / top

    name = f"stairs-{number}"
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(title(facts))}</title>'
        f'<desc id="{name}-d">{escape(description(facts))}</desc>'
        f'<clipPath id="{name}-c"><rect x="{LEFT}" y="{TOP}" width="{right - LEFT}" '
        f'height="{bottom - TOP}"/></clipPath>'
    ]
    parts += [
        f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in nice_ticks(0.0, top, 5)
    ]
    parts += [
        f'<line class="stub" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{bottom}" '
        f'y2="{bottom + 4}"/><text class="tick" x="{x(tick):.1f}" y="{bottom + 16}" '
        f'text-anchor="middle">{tick:g}</text>'
        for tick in nice_ticks(low, high, 7)
    ]
    band = [(x(p), y(v)) for p, v in zip(places, curve["high_ms"], strict=True)]
    band += [(x(p), y(v)) for p, v in reversed(list(zip(places, curve["low_ms"], strict=True)))]
    parts.append(
        f'<g clip-path="url(#{name}-c)"><polygon class="area" points="{_path(band)}"/>'
        + _line("forest", [(x(p), y(v)) for p, v in zip(places, curve["forest_ms"], strict=False)])
        + _line("curve", [(x(p), y(v)) for p, v in zip(places, curve["latency_ms"], strict=True)])
        + "</g>"
    )
    parts += [_point(p, x(p["place"]), y(p["shown_ms"])) for p in points if not p["exact"]]
    parts += [_point(p, x(p["place"]), y(p["shown_ms"])) for p in points if p["exact"]]
    middle = (TOP + bottom) / 2
    parts.append(
        f'<line class="base" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="label" x="{(LEFT + right) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f"{escape(axis_name(facts))}</text>"
        f'<text class="label" x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">latency, ms</text></svg>'
    )
    return "".join(parts)


def title(facts: Mapping[str, Any]) -> str:
    """The title of the plot, in one line."""
    return f"{facts['type']}: latency against {axis_name(facts)}"


def description(facts: Mapping[str, Any]) -> str:
    """A description of the plot for people who cannot see it."""
    curve = facts["curve"]
    first, last = curve["latency_ms"][0], curve["latency_ms"][-1]
    return (
        f"{facts['held']}. {words.count(facts['exact'], 'measured kernel')} on the slice and "
        f"{facts['near']} near it. The prediction goes from {words.ms(first)} ms at "
        f"{curve['place'][0]:g} to {words.ms(last)} ms at {curve['place'][-1]:g}."
    )


def _point(point: Mapping[str, Any], x: float, y: float) -> str:
    sizes = " ".join(f"{k}={v}" for k, v in point["configuration"].items())
    moved = point["shown_ms"] != point["latency_ms"]
    carried = f", shown at {words.ms(point['shown_ms'])} ms" if moved else ""
    told = (
        f"{words.ms(point['latency_ms'])} ms ± {words.ms(point['mad_ms'])}{carried}; "
        f"{words.count(point['measurements'], 'measurement')}, {point['insight']}; {sizes}"
    )
    kind = "on" if point["exact"] else "near"
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{4 if kind == "on" else 3.5}">'
        f"<title>{escape(told)}</title></circle>"
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{_path(points)}"/>'
