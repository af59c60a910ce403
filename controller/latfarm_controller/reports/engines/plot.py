"""The plot that compares engines: a panel of bars for each network, as one SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

WIDTH, LEFT, RIGHT, STEP, TITLE = 760, 170, 130, 17, 28
"""Sizes in units of the view box: width, margins, height of a bar, height of a panel's title."""

# The colours of the page (`page.STYLE`); the second value holds where the plot is a file alone.
_STYLE = (
    ".engine{fill:var(--accent,#2457c5)}.best{fill:var(--good,#12805c)}"
    ".shaky{fill:var(--soft,#5b6575)}.whisker{stroke:var(--ink,#1c2330)}"
    ".name{font-weight:600;font-size:13px}.failed{fill:var(--bad,#c2410c)}"
)


def plot(outcome: Mapping[str, Any], dtype: str) -> str:
    """A plot with a panel for each network, and a bar with its spread for each engine and threads.

    Bars of fewer threads are fainter. The network's fastest bar is green, unstable bars are grey.
    Each panel has a scale of its own.
    """
    platforms = {found["name"]: found for found in outcome["platforms"] if found["dtype"] == dtype}
    panels = [
        (
            network["name"],
            [c for c in _cells(outcome, network["name"]) if c["platform"] in platforms],
        )
        for network in outcome["networks"]
    ]
    if not platforms or not panels:
        return ""
    most = max((found["threads"] or 1 for found in platforms.values()), default=1)
    height = sum(TITLE + STEP * len(cells) + 10 for _, cells in panels)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="latency by network and '
        f'engine, {escape(dtype)}"><style>{_STYLE}</style>'
    ]
    top = 0
    for name, cells in panels:
        parts.append(f'<text class="name" x="8" y="{top + 18}">{escape(name)}</text>')
        parts += _panel(cells, top + TITLE, most)
        top += TITLE + STEP * len(cells) + 10
    return "".join([*parts, "</svg>"])


def _cells(outcome: Mapping[str, Any], network: str) -> list[Mapping[str, Any]]:
    return [cell for cell in outcome["cells"] if cell["network"] == network]


def _panel(cells: Sequence[Mapping[str, Any]], top: int, most: int) -> list[str]:
    known = [cell for cell in cells if cell["latency_ms"] is not None]
    longest = max((cell["latency_ms"] * (1 + cell["spread"]) for cell in known), default=1.0)
    room = WIDTH - LEFT - RIGHT
    parts = []
    for index, cell in enumerate(cells):
        y = top + index * STEP
        threads = f" {cell['threads']}t" if cell["threads"] else ""
        label = escape(f"{cell['engine']}{threads}")
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{y + 12}" text-anchor="end">{label}</text>'
        )
        if cell["latency_ms"] is None:
            reason = escape(cell["reason"])
            parts.append(
                f'<text class="failed" x="{LEFT}" y="{y + 12}"><title>{reason}</title>failed</text>'
            )
            continue
        latency_ms, spread_ms = cell["latency_ms"], cell["spread"] * cell["latency_ms"]
        low, middle, high = (
            LEFT + room * max(value, 0.0) / longest
            for value in (latency_ms - spread_ms, latency_ms, latency_ms + spread_ms)
        )
        kind = "best" if cell["fastest"] else "shaky" if cell["unstable"] else "engine"
        faint = 0.4 + 0.6 * (cell["threads"] or most) / most
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{middle - LEFT:.1f}" '
            f'height="{STEP - 4}" opacity="{faint:.2f}"/>'
            f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y + 8.5}" y2="{y + 8.5}"/>'
            f'<text class="tick" x="{high + 6:.1f}" y="{y + 12}">{latency_ms:.4g} ms'
            f"{' ~' if cell['unstable'] else ''}</text>"
        )
    return parts
