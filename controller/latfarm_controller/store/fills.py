"""What a step of the schema computes from rows that are there: SQL alone cannot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph

BATCH_ROWS = 500


class DatabaseConnection(Protocol):
    """What filling needs of a database connection."""

    def execute(self, query: str, parameters: Sequence[object] = ..., /) -> Any:
        """Run statements; the result has `fetchall`."""
        ...


def network_hashes(connection: DatabaseConnection) -> None:
    """Give graphs that were kept before there were network hashes theirs."""
    hashes = [row[0] for row in connection.execute("SELECT hash FROM graphs").fetchall()]
    for first in range(0, len(hashes), BATCH_ROWS):
        found = connection.execute(
            "SELECT hash, graph FROM graphs WHERE hash IN (SELECT unnest(?))",
            [hashes[first : first + BATCH_ROWS]],
        ).fetchall()
        for graph_hash, text in found:
            try:
                graph = Graph.from_json(json.loads(text))
            except (GraphError, ValueError):
                continue  # it stays findable by its own hash
            connection.execute(
                "UPDATE graphs SET network_hash = ? WHERE hash = ?",
                [network_hash_of(graph), graph_hash],
            )


FILLS: Mapping[int, Callable[[DatabaseConnection], None]] = {3: network_hashes}
"""By the version of the schema that needs it."""
