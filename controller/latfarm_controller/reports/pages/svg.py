"""Plots as SVG text inside a page: they need no script, no font and no network.

Their colours are CSS classes that `page.py` defines for light and dark displays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from latfarm_controller.reports.pages.name_places import Box, PlacedName, placed

WIDTH, HEIGHT = 640, 420
"""Size of a plot in units of its view box."""
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 48
"""Margins around the axes in the same units."""
MOST_NAMED = 6
"""Number of points that have a name where there is no room for all names."""
_LEGEND = Box(LEFT + 6, TOP + 2, LEFT + 190, TOP + 62)
"""The rectangle of the legend in the same units."""


@dataclass(frozen=True, slots=True)
class Point:
    """A network in a plot of corrected against predicted latencies, with the predicted interval."""

    label: str
    corrected_ms: float
    predicted_ms: float
    low_ms: float
    high_ms: float

    @property
    def inside(self) -> bool:
        """Whether the corrected latency lies in the interval."""
        return self.low_ms <= self.corrected_ms <= self.high_ms


def _ticks(low: float, high: float) -> list[float]:
    ticks = [
        digit * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for digit in (1, 2, 5)
    ]
    return [tick for tick in ticks if low <= tick <= high]


def agreement(points: Sequence[Point], *, named: bool = True) -> str:
    """A plot of corrected (x) against predicted (y) latencies on logarithmic axes, with intervals.

    The band is +-10 % around perfect agreement. Points without positive latencies are left out.

    Args:
        points: one point for each network.
        named: whether names stand beside all points, or only beside the `MOST_NAMED` whose
            predictions are furthest off. All names are shown as tooltips in any case.
    """
    shown = [p for p in points if min(p.corrected_ms, p.predicted_ms, p.low_ms) > 0]
    if not shown:
        return ""
    scale = _LogScale(
        low_ms=min(min(p.corrected_ms, p.low_ms) for p in shown) / 1.25,
        high_ms=max(max(p.corrected_ms, p.high_ms) for p in shown) * 1.25,
    )
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="corrected against predicted latency">',
        *_agreement_frame(scale),
    ]
    told = {p.label for p in shown} if named else _furthest(shown)
    in_order = sorted(shown, key=lambda p: p.corrected_ms)
    places = _places(scale, in_order, told)
    parts += [_lead(place) for place in places if place.led]
    parts += [_agreement_point(scale, point) for point in in_order]
    parts += [_name(place) for place in places]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text class="label" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" '
        'text-anchor="middle">corrected latency, ms</text>'
        f'<text class="label" x="16" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 16 {middle})">predicted, ms</text>{_legend(shown)}</svg>'
    )
    return "".join(parts)


def _legend(points: Sequence[Point]) -> str:
    """What the marks mean, in the upper left corner, where a good predictor has no points."""
    inside = sum(point.inside for point in points)
    entries = [
        ("inside", f"inside its interval: {inside}"),
        ("outside", f"outside: {len(points) - inside}"),
    ]
    x = LEFT + 14
    parts = []
    for row, (kind, text) in enumerate(entries):
        y = TOP + 14 + 18 * row
        parts.append(
            f'<g class="key {kind}"><line x1="{x}" x2="{x}" y1="{y - 7}" y2="{y + 7}"/>'
            f'<circle cx="{x}" cy="{y}" r="4.5"/></g>'
            f'<text class="label" x="{x + 12}" y="{y + 4}">{escape(text)}</text>'
        )
    y = TOP + 14 + 18 * len(entries)
    parts.append(
        f'<rect class="band" x="{x - 7}" y="{y - 5}" width="14" height="10"/>'
        f'<text class="label" x="{x + 12}" y="{y + 4}">within 10 %</text>'
    )
    return f'<g class="legend">{"".join(parts)}</g>'


def _furthest(points: Sequence[Point]) -> set[str]:
    """The networks whose predictions are furthest from the truth, by their names."""
    errors = {p.label: abs(math.log(p.predicted_ms / p.corrected_ms)) for p in points}
    return set(sorted(errors, key=lambda label: (-errors[label], label))[:MOST_NAMED])


@dataclass(frozen=True, slots=True)
class _LogScale:
    """Places of latencies on two logarithmic axes that both go from `low_ms` to `high_ms`."""

    low_ms: float
    high_ms: float

    def _share(self, value_ms: float) -> float:
        return math.log(value_ms / self.low_ms) / math.log(self.high_ms / self.low_ms)

    def x(self, value_ms: float) -> float:
        """Horizontal place of a latency."""
        return LEFT + (WIDTH - LEFT - RIGHT) * self._share(value_ms)

    def y(self, value_ms: float) -> float:
        """Vertical place of a latency."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self._share(value_ms)


def _agreement_frame(scale: _LogScale) -> list[str]:
    """The band of +-10 %, the grid with its numbers, and the diagonal."""
    x, y, low, high = scale.x, scale.y, scale.low_ms, scale.high_ms
    band = [(low, low * 0.9), (high, high * 0.9), (high, high * 1.1), (low, low * 1.1)]
    corners = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in band)
    return [
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/></clipPath>'
        f'<polygon class="band" clip-path="url(#plot)" points="{corners}"/>',
        *(
            f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP}" '
            f'y2="{HEIGHT - BOTTOM}"/><line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
            f'y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" '
            f'text-anchor="middle">{tick:g}</text>'
            f'<text class="tick" x="{LEFT - 6}" y="{y(tick) + 4:.1f}" '
            f'text-anchor="end">{tick:g}</text>'
            for tick in _ticks(low, high)
        ),
        f'<line class="axis" x1="{x(low):.1f}" y1="{y(low):.1f}" x2="{x(high):.1f}" '
        f'y2="{y(high):.1f}"/>',
    ]


def _agreement_point(scale: _LogScale, point: Point) -> str:
    """One network with its interval, and its name as a tooltip."""
    kind = "inside" if point.inside else "outside"
    px, py = scale.x(point.corrected_ms), scale.y(point.predicted_ms)
    return (
        f'<g class="{kind}"><title>{escape(point.label)}: corrected {point.corrected_ms:.3g} ms, '
        f"predicted {point.predicted_ms:.3g} ms</title>"
        f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{scale.y(point.low_ms):.1f}" '
        f'y2="{scale.y(point.high_ms):.1f}"/><circle cx="{px:.1f}" cy="{py:.1f}" r="4.5"/></g>'
    )


def _places(scale: _LogScale, points: Sequence[Point], told: set[str]) -> list[PlacedName]:
    """Where the names that are `told` stand; they keep clear of all points and intervals."""
    names, taken = [], [_LEGEND]
    for point in points:
        px, py = scale.x(point.corrected_ms), scale.y(point.predicted_ms)
        taken.append(Box(px - 6, py - 6, px + 6, py + 6))
        taken.append(Box(px - 3, scale.y(point.high_ms), px + 3, scale.y(point.low_ms)))
        if point.label in told:
            names.append((point.label, px, py))
    return placed(names, taken, Box(LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM))


def _lead(place: PlacedName) -> str:
    """A line from a mark to its name."""
    end = place.x - 2 if place.on_the_right else place.x + 2
    return (
        f'<line class="lead" x1="{place.mark_x:.1f}" y1="{place.mark_y:.1f}" '
        f'x2="{end:.1f}" y2="{place.middle_y:.1f}"/>'
    )


def _name(place: PlacedName) -> str:
    anchor = "start" if place.on_the_right else "end"
    return (
        f'<text x="{place.x:.1f}" y="{place.baseline:.1f}" text-anchor="{anchor}">'
        f"{escape(place.text)}</text>"
    )


def matrix(verdicts: Sequence[tuple[str, str, str]]) -> str:
    """A fusion matrix: the first op in rows, the second in columns.

    Args:
        verdicts: (first op, second op, verdict); a verdict is fused, separate or undecided.
    """
    if not verdicts:
        return ""
    firsts = sorted({first for first, _, _ in verdicts})
    seconds = sorted({second for _, second, _ in verdicts})
    cell, left, top = 22, 150, 120
    width, height = left + cell * len(seconds) + 8, top + cell * len(firsts) + 8
    parts = [
        f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px" role="img" '
        'aria-label="fusion rules">'
    ]
    for row, first in enumerate(firsts):
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{top + row * cell + 15}" '
            f'text-anchor="end">{escape(first)}</text>'
        )
    for column, second in enumerate(seconds):
        x = left + column * cell + 15
        parts.append(
            f'<text class="tick" transform="translate({x} {top - 6}) rotate(-55)">'
            f"{escape(second)}</text>"
        )
    for first, second, verdict in verdicts:
        x, y = left + seconds.index(second) * cell, top + firsts.index(first) * cell
        parts.append(
            f'<rect class="{escape(verdict)}" x="{x + 2}" y="{y + 2}" width="{cell - 4}" '
            f'height="{cell - 4}" rx="3"><title>{escape(first)} then {escape(second)}: '
            f"{escape(verdict)}</title></rect>"
        )
    return "".join([*parts, "</svg>"])


_ALONE = (
    "text{font:11px sans-serif;fill:#1c2330}.tick,.label{fill:#5b6575}.label{font-size:12px}"
    ".grid{stroke:#d9dee6}.lead{stroke:#98a3b5}.axis{stroke:#5b6575;stroke-dasharray:4 4}"
    ".band{fill:#2457c51a}"
    ".inside line{stroke:#12805c;stroke-width:2}.inside circle{fill:#12805c}"
    ".outside line{stroke:#c2410c;stroke-width:2}.outside circle{fill:#c2410c}"
    ".fused{fill:#2457c5}.separate{fill:#d9dee6}.undecided{fill:none;stroke:#c2410c}"
)


def standalone(plot: str) -> str:
    """A plot of this module as the text of an image file, on a white background."""
    opening, rest = plot.split(">", 1)
    opening = opening.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ')
    return (
        f'{opening}><style>{_ALONE}</style><rect width="100%" height="100%" fill="#fff"/>{rest}\n'
    )
