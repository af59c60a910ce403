"""The fusion matrix as SVG: the first op in rows, the op after it in columns."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

CELL, TOP, LETTER = 22, 104, 6.1
MARKS = {"miss": "wrong", "false": "wrong", "undecided": "open"}
"""Classes of the rings around pairs whose verdict by times differs from the profiler's."""


def matrix(facts: Mapping[str, Any]) -> str:
    """The plot of `facts.fusion.fusion_facts`; empty without pairs."""
    firsts, seconds, pairs = facts["firsts"], facts["seconds"], facts["pairs"]
    if not pairs:
        return ""
    left = round(12 + LETTER * max(map(len, firsts)))
    top = max(TOP, round(24 + 0.8 * LETTER * max(map(len, seconds))))
    width = left + CELL * len(seconds) + round(0.58 * LETTER * len(seconds[-1])) + 14
    height = top + CELL * len(firsts) + 8
    counts = facts["counts"]
    parts = [
        f'<svg viewBox="0 0 {width} {height}" style="width:{width}px;max-width:none" role="img" '
        'aria-labelledby="fusion-t fusion-d"><title id="fusion-t">Fusion matrix</title>'
        f'<desc id="fusion-d">Of {len(firsts)} first ops and {len(seconds)} second ops, '
        f"{counts['fused']} pairs run as one kernel, {counts['separate']} apart, "
        f"{counts['undecided']} are undecided and {counts['not run']} were not run.</desc>"
    ]
    parts += [
        f'<text class="tick" x="{left - 6}" y="{top + row * CELL + 15}" text-anchor="end">'
        f"{escape(name)}</text>"
        for row, name in enumerate(firsts)
    ]
    parts += [
        f'<text class="tick" transform="translate({left + column * CELL + 15} {top - 6}) '
        f'rotate(-55)">{escape(name)}</text>'
        for column, name in enumerate(seconds)
    ]
    told = {(pair["first"], pair["second"]): pair for pair in pairs}
    for row, first in enumerate(firsts):
        for column, second in enumerate(seconds):
            x, y = left + column * CELL, top + row * CELL
            pair = told.get((first, second))
            parts.append(_blank(x, y) if pair is None else _cell(pair, x, y))
    return "".join([*parts, "</svg>"])


def _blank(x: int, y: int) -> str:
    middle = CELL // 2
    return f'<circle class="not-run" cx="{x + middle}" cy="{y + middle}" r="1.5"/>'


def _cell(pair: Mapping[str, Any], x: int, y: int) -> str:
    middle = CELL // 2
    verdict = pair["verdict"]
    kind = verdict if verdict in ("fused", "separate") else "undecided"
    inner = "<text class='sign' x='{}' y='{}' text-anchor='middle'>?</text>"
    sign = inner.format(x + middle, y + middle + 4) if kind == "undecided" else ""
    ring = MARKS.get(pair["judged"], "")
    mark = f'<circle class="{ring}" cx="{x + middle}" cy="{y + middle}" r="5"/>' if ring else ""
    return (
        f'<g><title>{escape(says(pair))}</title><rect class="{kind}" x="{x + 2}" y="{y + 2}" '
        f'width="{CELL - 4}" height="{CELL - 4}" rx="3"/>{sign}{mark}</g>'
    )


def says(pair: Mapping[str, Any]) -> str:
    """One line of text about a pair."""
    text = f"{pair['first']} then {pair['second']}: {pair['verdict']}"
    if pair["graph_fused"] is not None:
        text += f" by profile, {pair['time_fused']} by times"
    if pair["verdict"] != pair["used"]:
        text += f", taken for {pair['used']} ({pair['source']})"
    if pair["size_dependent"]:
        text += ", depends on the size"
    return f"{text}; failed: {pair['error']}" if pair["error"] else text
