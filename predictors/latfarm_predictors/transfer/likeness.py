"""A correction by the boards that are most like the new one.

Factors describe all boards at once. What they leave over is not random: boards with the same core
leave the same over. A Gaussian process over boards, whose distance is that of their deviations at
the probes, tells what alike boards left over.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.prior import Prior

LEAST_SPREAD = 0.02
"""Least spread of boards' deviations at a probe, so that equal boards are not told apart by noise.
"""


def left_over(prior: Prior, known: Array, filled: Array, probes: npt.NDArray[np.intp]) -> Array:
    """What the probes of each seen board leave over, shape (n, P); 0 where nothing was measured.

    Args:
        prior: what was fitted to these boards.
        known: their deviations, shape (n, P); NaN where nothing was measured.
        filled: the same without gaps.
        probes: places of the probes, shape (k,).
    """
    some = prior.factors[probes]
    seen = some @ some.T + np.diag(prior.own[probes] + prior.noise)
    shared = prior.factors @ some.T
    shared[probes] += np.diag(prior.own[probes])
    told = np.linalg.solve(seen, (filled[:, probes] - prior.mean[probes]).T)
    return np.asarray(np.where(np.isnan(known), 0.0, known - prior.mean - (shared @ told).T))


def correction(
    boards: Array, new: Array, over: Array, weights: Array, length: float, chance: float
) -> Array:
    """What boards like the new one left over, shape (P,).

    Args:
        boards: deviations of the seen boards at the probes, shape (n, k).
        new: those of the new board, shape (k,).
        over: see `left_over`, shape (n, P).
        weights: weight of each seen board, shape (n,).
        length: see `TransferSettings.likeness`.
        chance: see `TransferSettings.likeness_noise`.
    """
    centred = boards - boards.mean(axis=1, keepdims=True)
    typical = np.median(centred[weights >= weights.max() / 2.0], axis=0)
    spread = np.sqrt(np.average((centred - typical) ** 2, axis=0, weights=weights)) + LEAST_SPREAD
    places, place = centred / spread, (new - new.mean()) / spread

    def alike(first: Array, second: Array) -> Array:
        squares = (first**2).mean(axis=1)[:, None] + (second**2).mean(axis=1)[None, :]
        distance = squares - 2.0 * first @ second.T / first.shape[1]
        return np.asarray(np.exp(-np.maximum(distance, 0.0) / (2.0 * length**2)))

    seen = alike(places, places) + np.diag(chance / weights)
    return np.asarray(np.linalg.solve(seen, alike(places, place[None, :]))[:, 0] @ over)
