"""Values of new columns for rows that exist already, where a migration needs more than SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph

BATCH_ROWS = 500
"""How many graphs are read at a time."""


class DatabaseConnection(Protocol):
    """What migrations need of a database connection."""

    def execute(self, query: str, parameters: Sequence[object] = ..., /) -> Any:
        """Run statements; returns an object with a method `fetchall`."""
        ...


def network_hashes(connection: DatabaseConnection) -> None:
    """Compute the network hash of each graph that was stored before that column existed."""
    hashes = [row[0] for row in connection.execute("SELECT hash FROM graphs").fetchall()]
    for first in range(0, len(hashes), BATCH_ROWS):
        found = connection.execute(
            "SELECT hash, graph FROM graphs WHERE hash IN (SELECT unnest(?))",
            [hashes[first : first + BATCH_ROWS]],
        ).fetchall()
        for graph_hash, text in found:
            try:
                graph = Graph.from_json(json.loads(text))
            except (GraphError, ValueError, TypeError, KeyError, RecursionError):
                continue  # an unreadable graph is still found by its own hash
            connection.execute(
                "UPDATE graphs SET network_hash = ? WHERE hash = ?",
                [network_hash_of(graph), graph_hash],
            )


BACKFILLS: Mapping[int, Callable[[DatabaseConnection], None]] = {3: network_hashes}
"""What to run after a migration's SQL, by the version of the schema that it leads to."""
