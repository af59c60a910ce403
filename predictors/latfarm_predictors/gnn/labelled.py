"""What NNLP learns from: encoded networks with a measured latency on a platform."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.encoded import EncodedGraph


@dataclass(frozen=True)
class Labelled:
    """A network, or a kernel, that was measured on a platform.

    Attributes:
        graph: as NNLP reads it.
        platform: on which it was measured.
        latency_ms: its latency.
        name: what tells it from others, such as its hash; rows with one name are never in two
            parts of a split.
    """

    graph: EncodedGraph
    platform: str
    latency_ms: float
    name: str


def check_labels(rows: Sequence[Labelled], least: int) -> None:
    """Check that rows can be learned from.

    Raises:
        NotEnoughDataError: there are fewer than `least` rows.
        ValueError: a latency is not positive and finite; the message names the network.
    """
    if len(rows) < least:
        raise NotEnoughDataError(f"{len(rows)} measured networks, training needs {least}")
    for row in rows:
        if not (isfinite(row.latency_ms) and row.latency_ms > 0):
            raise ValueError(
                f"{row.name} on {row.platform}: a latency of {row.latency_ms} ms is not positive"
            )


def by_platform(rows: Sequence[Labelled]) -> dict[str, list[int]]:
    """Places of the rows of each platform, platforms in the order of their names."""
    found: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        found.setdefault(row.platform, []).append(place)
    return dict(sorted(found.items()))


def latencies(rows: Sequence[Labelled]) -> Array:
    """Latency of each row in ms, shape (n,)."""
    return np.array([row.latency_ms for row in rows], dtype=np.float64)


def scales(rows: Sequence[Labelled]) -> dict[str, float]:
    """Geometric mean of the latencies of each platform, in ms."""
    logs = np.log(latencies(rows))
    return {name: float(np.exp(logs[at].mean())) for name, at in by_platform(rows).items()}
