"""Lists stored measurements page by page, this farm's own or with those of other farms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from latfarm_predictors.measurement import Measurement

from latfarm_controller.store import rows
from latfarm_controller.store.answers import TOLD, USED, with_origin
from latfarm_controller.store.base import FOREIGN
from latfarm_controller.store.duckdb_file import DuckDBFile

PAGE_ROWS = 2000
"""How many measurements a listing reads at a time."""
_READ = ", ".join(rows.READ_COLUMNS)
_OWN_ORIGIN = ", ".join(f"'' AS {name}" for name in FOREIGN)
_THEIR_ORIGIN = ", ".join(f"{name.removeprefix('foreign_')} AS {name}" for name in FOREIGN)

Convert = Callable[[Sequence[Any]], Measurement]
"""Makes a measurement of a row."""


def listed(
    file: DuckDBFile,
    convert: Convert,
    filters: Mapping[str, str],
    limit: int,
    *,
    foreign: bool = False,
    discarded: bool = True,
) -> Iterator[Measurement]:
    """All measurements that match, the newest first.

    They are read page by page, and each page shows what is stored when it is read.

    Args:
        file: the open database.
        convert: makes a measurement of a row.
        filters: values by column; empty ones select everything.
        limit: most measurements; 0: all.
        foreign: those of other farms too; their conditions tell where they come from.
        discarded: the discarded ones too.
    """
    where, values = where_of(filters)
    source = _source(where, foreign, discarded)
    given = [*values, *values] if foreign else values
    left = limit if limit > 0 else -1
    after: list[object] = []
    while left != 0:
        page = PAGE_ROWS if left < 0 else min(PAGE_ROWS, left)
        beyond = "WHERE (told_s, seq) < (?, ?) " if after else ""
        found = file.all(
            f"SELECT told_s, seq, {', '.join(FOREIGN)}, {_READ} FROM ({source}) {beyond}"
            f"ORDER BY told_s DESC, seq DESC LIMIT {page}",
            [*given, *after],
        )
        for row in found:
            yield with_origin(convert(row[2 + len(FOREIGN) :]), row[2 : 2 + len(FOREIGN)])
        if len(found) < page:
            return
        after = list(found[-1][:2])
        left = left - len(found) if left > 0 else left


def _source(where: str, foreign: bool, discarded: bool) -> str:
    """A query for all rows that match, with the time and the origin of each."""
    columns = f"{TOLD} AS told_s, seq, {_READ}"
    own = f"SELECT {columns}, {_OWN_ORIGIN} FROM measurements WHERE {where}"
    if not discarded:
        own += f" AND {USED}"
    if not foreign:
        return own
    theirs = (
        f"SELECT {columns}, {_THEIR_ORIGIN} FROM foreign_measurements "
        f"JOIN imports USING (import_id) WHERE {where}"
    )
    return f"{own} UNION ALL BY NAME {theirs}"


def where_of(filters: Mapping[str, str]) -> tuple[str, list[object]]:
    """The WHERE clause for filters by column, and its values; empty filters are left out."""
    chosen = {name: value for name, value in filters.items() if value}
    return " AND ".join(["true", *(f"{name} = ?" for name in chosen)]), list(chosen.values())
