"""A plot of accuracy by the number of measurements, as SVG for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 460, 340
"""Size of a panel in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 30, 40
"""Margins of a panel in pixels."""
LEGEND = 16
"""Height of a line of the legend in pixels."""
COLOURS = ("#3b7dd8", "#d8573b", "#2f9e62", "#9a57c9", "#c98f1e", "#14919b", "#7a7f87")
"""Colours of the lines."""


@dataclass(frozen=True)
class Line:
    """A line of the plot, with points of (number of measurements, percent within 10 %)."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(panels: Mapping[str, tuple[Sequence[Line], float | None]]) -> str:
    """The plot: panels side by side, each with its lines and a perfect predictor's.

    Args:
        panels: for each title the lines, and the percentage of kernels within 10 % of which a
            predictor without any error would be, where known.
    """
    names = list(dict.fromkeys(line.name for lines, _ in panels.values() for line in lines))
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}
    width, height = WIDTH * len(panels), HEIGHT + LEGEND * (len(names) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="share within 10 % against measurements" font-family="sans-serif" '
        'font-size="12">',
        "<style>text{fill:#222}.axis{stroke:#999}.grid{stroke:#8884}"
        "@media(prefers-color-scheme:dark){text{fill:#ddd}}</style>",
    ]
    for place, (title, (lines, perfect)) in enumerate(panels.items()):
        parts += [f'<g transform="translate({place * WIDTH},0)">']
        parts += _panel(title, lines, perfect, colours)
        parts += ["</g>"]
    for place, name in enumerate(names):
        y = HEIGHT + LEGEND * (place + 1)
        parts.append(f'<path d="M{LEFT} {y - 4}h24" stroke="{colours[name]}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 32}" y="{y}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    title: str, lines: Sequence[Line], perfect: float | None, colours: Mapping[str, str]
) -> list[str]:
    counts = sorted({count for line in lines for count, _ in line.points})
    if not counts:
        return []
    low, span = counts[0], math.log(counts[-1] / counts[0]) or 1.0

    def x(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(count / low) / span

    def y(percent: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - percent / 100.0)

    parts = [f'<text x="{LEFT}" y="18">{escape(title)}</text>']
    for percent in range(0, 101, 20):
        parts.append(f'<path class="grid" d="M{LEFT} {y(percent):.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="6" y="{y(percent) + 4:.1f}">{percent} %</text>')
    if perfect is not None:
        parts.append(
            f'<path class="axis" stroke-dasharray="4" d="M{LEFT} {y(perfect):.1f}H{WIDTH - RIGHT}">'
            f"<title>a perfect predictor: {perfect} %</title></path>"
        )
    shown = -math.inf
    for count in counts:
        if x(count) - shown > 34:  # labels must not run into each other
            shown = x(count)
            parts.append(
                f'<text x="{shown:.1f}" y="{HEIGHT - 18}" text-anchor="middle">{count:g}</text>'
            )
    for line in lines:
        if not line.points:
            continue
        path = " ".join(f"{x(count):.1f},{y(share):.1f}" for count, share in line.points)
        parts.append(
            f'<polyline fill="none" stroke="{colours[line.name]}" stroke-width="2" '
            f'points="{path}"><title>{escape(line.name)}</title></polyline>'
        )
    return parts
