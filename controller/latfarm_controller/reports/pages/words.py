"""Texts of reports: each kind of quantity is written in one way, with small parts of pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from latfarm_controller.reports.pages import page

NONE = "–"  # noqa: RUF001 - a dash of the width of a digit, for what is not known
MINUTE_MS, HOUR_MS = 60_000.0, 3_600_000.0
"""A minute and an hour in milliseconds."""


def percent(share: float | None, digits: int = 1) -> str:
    """A share as per cent; shares of 10 or more have no decimals."""
    if share is None:
        return NONE
    return f"{100 * share:.{0 if abs(share) >= 10 else digits}f} %"


def signed_percent(share: float) -> str:
    """A share as per cent, always with its sign."""
    return f"{100 * share:+.1f} %"


def ms(value: float | None) -> str:
    """Milliseconds with about four digits, without the unit and never with an exponent."""
    if value is None:
        return NONE
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    digits = 1 if size >= 100 else 2 if size >= 10 else 3 if size >= 1 else 4
    return f"{value:.{digits}f}"


def span(interval_ms: Sequence[float] | None) -> str:
    """Both ends of an interval in milliseconds, without the unit."""
    return NONE if not interval_ms else f"{ms(interval_ms[0])} to {ms(interval_ms[1])}"


def plain(value: float | None) -> str:
    """A number without a unit, with four digits."""
    return NONE if value is None else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """A precision, a recall or a correlation, with three decimals."""
    return NONE if value is None else f"{value:.3f}"


def time(value_ms: float) -> str:
    """A duration in milliseconds, seconds, minutes or hours, whichever reads best."""
    if value_ms < 1000:
        return f"{value_ms:.0f} ms"
    if value_ms < 2 * MINUTE_MS:
        return f"{value_ms / 1000:.0f} s"
    if value_ms < 2 * HOUR_MS:
        return f"{value_ms / MINUTE_MS:.0f} min"
    return f"{value_ms / HOUR_MS:.1f} h"


def count(number: int, one: str, many: str = "") -> str:
    """A number with its noun, in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def paragraph(text: str, kind: str = "note") -> str:
    """An escaped paragraph."""
    return f'<p class="{kind}">{escape(text)}</p>'


def command(text: str) -> str:
    """An escaped command for readers to copy."""
    return f"<code>{escape(text)}</code>"


def text_cell(text: object) -> str:
    """A left-aligned cell whose text may have several lines."""
    return f'<td class="text">{escape(str(text))}</td>'


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """The legend of a plot, from pairs of a key of `_SAMPLES` and its meaning."""
    items = "".join(
        f'<li><svg class="key" viewBox="0 0 22 12" aria-hidden="true">{_SAMPLES[kind]}</svg>'
        f"{escape(text)}</li>"
        for kind, text in entries
    )
    return f'<ul class="legend">{items}</ul>'


_SAMPLES = {
    "curve": '<line class="curve" x1="1" x2="21" y1="6" y2="6"/>',
    "band": '<rect class="area" x="1" y="1" width="20" height="10"/>',
    "forest": '<line class="forest" x1="1" x2="21" y1="6" y2="6"/>',
    "on": '<circle class="on" cx="11" cy="6" r="4"/>',
    "near": '<circle class="near" cx="11" cy="6" r="4"/>',
    "fused": '<rect class="fused" x="5" width="12" height="12" rx="2"/>',
    "separate": '<rect class="separate" x="5" width="12" height="12" rx="2"/>',
    "undecided": '<rect class="undecided" x="6" y="1" width="10" height="10" rx="2"/>',
    "not-run": '<circle class="not-run" cx="11" cy="6" r="1.5"/>',
    "wrong": '<circle class="wrong" cx="11" cy="6" r="4.5"/>',
    "open": '<circle class="open" cx="11" cy="6" r="4.5"/>',
}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table that scrolls sideways if it is too wide; empty without rows."""
    if not rows:
        return ""
    # The caption is outside of the table, because it would scroll out of sight with the table.
    told = paragraph(caption, "caption") if caption else ""
    label = escape(caption or header[0] or "table")
    made = page.table(header, rows)
    return f'{told}<div class="scroll" tabindex="0" role="region" aria-label="{label}">{made}</div>'


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """A list of names and values; pairs without a value are left out."""
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in pairs
        if value
    )
    return f'<dl class="facts">{rows}</dl>' if rows else ""
