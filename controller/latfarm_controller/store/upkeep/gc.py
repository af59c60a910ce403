"""Removes from a store what nothing refers to any more.

It removes discarded measurements, runs of imports that were never finished, and graphs that no
measurement is of. It never removes a campaign, nor anything of the campaigns that the provenance of
a bundle names: a bundle can always be made again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from latfarm_controller.store.duckdb_file import DuckDBFile

_KEPT = "campaign_id NOT IN (SELECT unnest(?::VARCHAR[]))"
_DISCARDED = f"seq IN (SELECT seq FROM put_aside) AND {_KEPT}"
_UNUSED = (
    f"hash NOT IN (SELECT graph_hash FROM measurements WHERE NOT ({_DISCARDED})) "
    "AND hash NOT IN (SELECT graph_hash FROM foreign_measurements) "
    "AND hash NOT IN (SELECT unnest(?::VARCHAR[]))"
)
_HASH = re.compile(r"\b[0-9a-f]{32}\b")


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can be removed, or was removed: numbers of rows.

    Attributes:
        discarded: measurements that were discarded, outside the campaigns that bundles name.
        staged: rows of imports that were not finished.
        graphs: graphs that no other measurement is of.
        protected: discarded measurements that stay, because a bundle's provenance names their
            campaign.
    """

    discarded: int
    staged: int
    graphs: int
    protected: int


def collect_garbage(file: DuckDBFile, protected: Iterable[str], *, remove: bool) -> Garbage:
    """Count what nothing refers to, and remove it if `remove` is set.

    Args:
        file: the database.
        protected: ids of the campaigns that the provenances of bundles name.
        remove: whether to remove it; otherwise nothing is changed.

    Raises:
        StoreError: the database cannot be read or written; nothing is removed then.
    """
    names = sorted(protected)
    named = sorted(_named_graphs(file))
    counts: tuple[tuple[str, list[object]], ...] = (
        (f"SELECT count(*) FROM measurements WHERE {_DISCARDED}", [names]),
        (f"SELECT count(*) FROM graphs WHERE {_UNUSED}", [names, named]),
        (
            "SELECT count(*) FROM put_aside WHERE seq IN (SELECT seq FROM measurements "
            f"WHERE NOT ({_KEPT}))",
            [names],
        ),
    )
    discarded, graphs, kept = (int(file.all(*query)[0][0]) for query in counts)
    staged = file.number(
        "SELECT (SELECT count(*) FROM staged_measurements) + (SELECT count(*) FROM staged_graphs)"
    )
    if remove:
        with file.transaction("remove what nothing refers to") as cursor:
            cursor.execute(f"DELETE FROM graphs WHERE {_UNUSED}", [names, named])
            cursor.execute(f"DELETE FROM measurements WHERE {_DISCARDED}", [names])
            cursor.execute("DELETE FROM put_aside WHERE seq NOT IN (SELECT seq FROM measurements)")
            cursor.execute("DELETE FROM staged_measurements")
            cursor.execute("DELETE FROM staged_graphs")
            cursor.execute("DELETE FROM imports WHERE state <> 'done'")
        with file.read("write the database compactly") as cursor:
            cursor.execute("CHECKPOINT")
    return Garbage(discarded, staged, graphs, kept)


def _named_graphs(file: DuckDBFile) -> set[str]:
    """The hashes of graphs that campaigns and board events name in their texts."""
    found: set[str] = set()
    for query in ("SELECT config, outcome FROM campaigns", "SELECT details FROM board_events"):
        for row in file.all(query):
            for text in row:
                found.update(_HASH.findall(text))
    return found
