"""Other configurations of the new board: what they tell about one that was only probed.

How a board changes from one thread to four is more alike among boards than the boards are. So the
same model is fitted to the ratios of two configurations of one board, and each known configuration
of the new board makes one more expectation.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.table import LatencyTable, Transferred

POWER = 4
"""Expectations are averaged with weights 1 / sigma^4. Their errors have common causes, so that the
best of them counts more than for independent ones (1 / sigma^2)."""


def relative_table(table: LatencyTable) -> LatencyTable:
    """Ratios of the latencies of each two configurations of one board, of the same kind."""
    places: dict[tuple[str, str], list[int]] = {}
    for place, key in enumerate(zip(table.boards, table.kinds, strict=True)):
        places.setdefault(key, []).append(place)
    pairs = [pair for found in places.values() for pair in permutations(found, 2)]
    ratios = np.array(
        [table.latencies_ms[one] / table.latencies_ms[other] for one, other in pairs]
    ).reshape(len(pairs), len(table.networks))
    useful = [place for place, row in enumerate(ratios) if not np.isnan(row).all()]
    chosen = [pairs[place] for place in useful]
    return LatencyTable(
        tuple(f"{table.platforms[one]} / {table.platforms[other]}" for one, other in chosen),
        tuple(table.boards[one] for one, _ in chosen),
        tuple(table.groups[one] for one, _ in chosen),
        tuple(table.kinds[one] for one, _ in chosen),
        table.networks,
        ratios[useful],
    )


def averaged(expectations: Sequence[Transferred]) -> Transferred:
    """The weighted mean of expectations; networks that none tells about stay NaN."""
    logs = np.array([each.log_ms for each in expectations])
    sigma = np.array([each.sigma for each in expectations])
    known = ~np.isnan(logs)
    weights = np.where(known, np.where(known, sigma, 1.0) ** -POWER, 0.0)
    total = weights.sum(axis=0)
    share = weights / np.where(total > 0.0, total, np.nan)

    def mean(values: Array) -> Array:
        return np.asarray((share * np.where(known, values, 0.0)).sum(axis=0))

    return Transferred(mean(logs), mean(sigma))
