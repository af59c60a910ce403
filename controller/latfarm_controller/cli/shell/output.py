"""What commands print: answers on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from latfarm_controller.cli.shell.column_widths import (
    SHORT,
    SHORT_IN_FILES,
    column_widths,
    least_width,
)
from latfarm_controller.cli.shell.printable import console, printable

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Measurement
    from rich.console import Console

LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)
"""Log levels by how often -v is given."""
LOGGERS = ("latfarm", "latfarm_controller", "latfarm_predictors", "latfarm_protos")
"""The loggers of our own packages."""


class _JsonLines(logging.Formatter):
    """Formats each log record as a JSON object on one line, with all fields passed in `extra`."""

    _plain = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {k: v for k, v in vars(record).items() if k not in self._plain}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


class _PlainLines(logging.Formatter):
    """Formats each log record as a line for people: its level and its message."""

    def format(self, record: logging.LogRecord) -> str:
        story = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"latfarm: {record.levelname.lower()}: {record.getMessage()}{story}"


def set_verbosity(verbose: int) -> None:
    """Set what is logged: 0: warnings; 1: information; 2: debugging, of libraries too.

    A terminal gets lines for people, and everything else gets JSON.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PlainLines() if sys.stderr.isatty() else _JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose > 1 else logging.ERROR)
    for name in LOGGERS:
        logging.getLogger(name).setLevel(LEVELS[min(verbose, 2)])


def out() -> Console:
    """A console for standard output; 160 columns wide where that is not a terminal."""
    # No markup: people choose names, which may look like markup.
    made = console()
    return made if made.is_terminal else console(width=160)


def err() -> Console:
    """A console for standard error."""
    return console(stderr=True, soft_wrap=True)


def error(message: str) -> None:
    """Print an error message as one line on standard error."""
    print(printable(f"latfarm: {' '.join(message.split())}"), file=sys.stderr)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Discard everything that is written to standard error inside the block.

    LiteRT writes a line for each interpreter there, and has no option to stop it.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def json_text(data: Any) -> None:
    """Print JSON on standard output; infinite numbers and NaN become null."""
    print(json_of(data))


def json_of(data: Any) -> str:
    """The text that `json_text` prints."""
    return json.dumps(_finite(data), indent=2, default=str, allow_nan=False)


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return data


LATENCY_HEADER = ("corrected, ms", "as timed, ms", "MAD, ms")
"""Titles of the columns that `latency_cells` fills."""


def latency_cells(measurement: Measurement, digits: int = 3) -> tuple[str, str, str]:
    """The latency corrected for the core's slowdown, as timed, and its deviation; empty if none."""
    from latfarm_predictors.slow_core import SlowCore

    core = SlowCore.told_by(measurement)
    found, mad_ms = core.latency(measurement), core.settled(measurement).mad_ms
    if found is None:
        return "", "", ""
    shown = (found.corrected_ms, found.timed_ms, mad_ms or 0.0)
    corrected, timed, deviation = (f"{value:.{digits}f}" for value in shown)
    return corrected, timed, deviation


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """A measurement as plain JSON types, with its latency corrected and as timed beside it."""
    from latfarm_predictors.slow_core import SlowCore

    found = SlowCore.told_by(measurement).latency(measurement)
    return measurement.to_json() | ({} if found is None else found.to_json())


def stability(measurement: Measurement) -> str:
    """What to say of a measurement whose runs or sessions differ; empty if it is stable."""
    from latfarm_controller.campaigns.host_noise import CONDITION

    if not measurement.unstable:
        return ""
    told = {"usual": "unstable, as usual on this host", "doubtful": "unstable and doubtful"}
    return told.get(measurement.conditions.get(CONDITION, ""), "unstable")


def clock_note(measurement: Measurement) -> str:
    """What to say of a clock that was lower than at its best; empty if it was not, or is unknown.

    Throttling lowers it, too. It is no neighbour's work, so that the latency still contains it.
    """
    from latfarm_predictors.slow_core import SLOWER_CLOCK, clock_slowdown_of

    times = clock_slowdown_of(measurement)
    if times is None or times <= SLOWER_CLOCK:
        return ""
    return f"its clock was {times:.2f} times lower, which is not corrected"


def throttling_note(measurement: Measurement) -> str:
    """What to say of a board that throttled all the time; empty if it did not, or is unknown."""
    from latfarm_predictors.slow_core import throttled_throughout

    if not throttled_throughout(measurement):
        return ""
    return "its board throttled all the time, which is not corrected"


def fingerprint_note(measurement: Measurement) -> str:
    """What to say of a measurement whose board was set up otherwise than for the bundle in use."""
    from latfarm_controller.training.bundle_notes import OTHER_FINGERPRINT

    if OTHER_FINGERPRINT not in measurement.conditions:
        return ""
    return "under another fingerprint than the bundle in use"


ENERGY_HEADER = ("mJ", "+-", "rail")
"""Titles of the columns that `energy_cells` fills."""


def energy_cells(measurement: Measurement) -> tuple[str, str, str]:
    """Energy of an inference, its standard deviation and the rail; empty if it is not known."""
    if measurement.energy_mj is None:
        return "", "", ""
    spread_mj = measurement.energy_spread_mj or 0.0
    return f"{measurement.energy_mj:.4g}", f"{spread_mj:.2g}", measurement.energy_source


def table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str = ""
) -> None:
    """Print a table; columns after the first whose cells are all numbers are right-aligned.

    Where a terminal is too narrow for it, each row is printed as lines of their own, a line for
    each cell. What is no terminal has always room.

    Args:
        title: a line above the table; empty: none.
        header: titles of the columns.
        rows: the cells.
        empty: what a terminal shows instead of a table without rows: what there is none of, and
            the command that makes some.
    """
    from rich.table import Table

    shown = [[printable(text) for text in row] for row in rows]
    made = out()
    if made.is_terminal and empty and not rows:
        made.print(empty, style="dim", soft_wrap=True)
        return
    short = SHORT if made.is_terminal else SHORT_IN_FILES
    if not made.is_terminal:
        made.width = max(made.width, least_width(header, shown))
    layout = column_widths(header, shown, made.width, short)
    if layout is None:
        _print_rows(title, header, shown)
        return
    grid = Table(
        title=title or None,
        title_justify="left",
        box=None,
        pad_edge=False,
        padding=(0, layout.gap - 1, 0, 1),
    )
    for index, (name, width) in enumerate(zip(header, layout.columns, strict=True)):
        cells = [row[index] for row in shown]
        numbers = bool(cells) and all(_is_number(text) for text in cells)
        grid.add_column(name, justify="right" if numbers else "left", overflow="fold", width=width)
    for row in shown:
        grid.add_row(*row)
    made.print(grid)


def _print_rows(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table row by row: a line for each cell that is not empty, its title before it."""
    made = out()
    if title:
        made.print(title, style="italic")
    widest = max(map(len, header))
    for number, row in enumerate(rows):
        if number:
            made.print()
        for name, text in zip(header, row, strict=True):
            for index, line in enumerate(text.splitlines()):
                made.print(f"{'' if index else name:<{widest}}  {line}", soft_wrap=True)


def _is_number(text: str) -> bool:
    try:
        float(text.replace("%", "").replace("+", "").strip() or "0")
    except ValueError:
        return False
    return True
