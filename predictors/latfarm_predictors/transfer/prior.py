"""What boards' deviations are expected to be: few factors that all boards share, and a rest.

A board's deviations are mean + factors @ weights + own, where the weights are independent and
standard normal, and `own` is independent for each network. It is probabilistic principal components
(Tipping and Bishop, J. R. Stat. Soc. B 61, 1999) with one factor for each row that was seen, so
that nothing is cut off. Everything is computed in the space of the weights: time and memory grow
linearly with the number of networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array

SPEED_SIGMA = 2.0
"""Spread of the speed of boards: e^2 is a factor of 7 around the typical speed."""
ROUNDS = 5
"""Rounds of expectation and maximisation for missing latencies; more change nothing visible."""
PRIOR_PROBES = 5.0
"""How many probes the expected size of deviations counts for, when probes show another size."""


class Posterior(NamedTuple):
    """What probes tell about all P networks.

    Attributes:
        mean: expected deviations, shape (P,).
        sigma: their standard deviations, shape (P,).
        size: how many times greater the variances are on this board than on others, measured by
            the probes.
    """

    mean: Array
    sigma: Array
    size: float


@dataclass(frozen=True)
class Prior:
    """Expected deviations of a board for P networks.

    Attributes:
        mean: expected deviation, shape (P,).
        factors: what boards have in common, shape (P, q).
        own: variance of each network that no other network tells about, shape (P,).
        noise: variance of a measurement.
    """

    mean: Array
    factors: Array
    own: Array
    noise: float

    def posterior(self, probes: npt.NDArray[np.intp], values: Array) -> Posterior:
        """What k probes tell.

        Args:
            probes: places of the probes among the networks, shape (k,).
            values: their deviations, shape (k,).
        """
        residual = values - self.mean[probes]
        some, precision = self.factors[probes], 1.0 / (self.own[probes] + self.noise)
        spread = np.linalg.inv(np.eye(some.shape[1]) + (some.T * precision) @ some)
        pull = some.T @ (precision * residual)
        mean = self.mean + self.factors @ (spread @ pull)
        variance = ((self.factors @ spread) * self.factors).sum(axis=1) + self.own
        # deviations may be greater or smaller on this board than on others (Student's t)
        surprise = float(precision @ residual**2 - pull @ spread @ pull)
        size = (PRIOR_PROBES + max(surprise, 0.0)) / (PRIOR_PROBES + len(probes))
        return Posterior(np.asarray(mean), np.asarray(np.sqrt(size * variance)), size)

    def choose(self, count: int, candidates: npt.NDArray[np.bool_]) -> list[int]:
        """The probes that leave the least variance in sum over all networks, found greedily.

        Args:
            count: number of probes.
            candidates: which networks may be probes, shape (P,).

        Returns:
            Their places, the most telling one first; fewer than `count` if there are not enough.
        """
        spread = np.eye(self.factors.shape[1])
        left = candidates.copy()
        chosen: list[int] = []
        for _ in range(min(count, int(left.sum()))):
            place = int(np.argmax(np.where(left, self._gain(spread), -np.inf)))
            chosen.append(place)
            left[place] = False
            one = spread @ self.factors[place]
            seen = self.factors[place] @ one + self.own[place] + self.noise
            spread = spread - np.outer(one, one) / seen
        return chosen

    def _gain(self, spread: Array) -> Array:
        """The reduction of the summed variance by a probe of each network, shape (P,)."""
        moved = self.factors @ spread
        shared = (moved * self.factors).sum(axis=1)
        reduced = ((moved @ (self.factors.T @ self.factors)) * moved).sum(axis=1)
        return np.asarray(
            (reduced + 2.0 * self.own * shared + self.own**2) / (shared + self.own + self.noise)
        )


def compact(factors: Array) -> Array:
    """Factors with the same covariance in the least number of columns; shape (P, q)."""
    if factors.shape[1] <= factors.shape[0]:
        return factors
    return np.asarray(np.linalg.qr(factors.T).R.T)


def fill(values: Array, prior: Prior) -> tuple[Array, Array]:
    """Deviations of boards with what is expected where nothing was measured.

    Args:
        values: deviations, shape (n, P); NaN where nothing was measured.
        prior: with a factor for the speed of boards.

    Returns:
        The filled deviations, and the variances of what was filled in; both of shape (n, P).
    """
    filled, variance = values.copy(), np.zeros_like(values)
    for place, row in enumerate(values):
        missing = np.isnan(row)
        if missing.any():
            known = np.flatnonzero(~missing)
            found = prior.posterior(known, row[known])
            filled[place, missing] = found.mean[missing]
            variance[place, missing] = found.sigma[missing] ** 2
    return filled, variance


def fit_rest(
    values: Array, weights: Array, own_sigma: float, prior_rows: float, noise: float
) -> tuple[Prior, Array]:
    """Fit the expectation of deviations that amounts do not explain.

    Args:
        values: deviations, shape (n, P); NaN where nothing was measured.
        weights: weight of each board, shape (n,).
        own_sigma: see `TransferSettings`.
        prior_rows: see `TransferSettings`.
        noise: variance of a measurement.

    Returns:
        The prior, whose last factor is the speed of the board, and the deviations without gaps,
        shape (n, P).
    """
    networks = values.shape[1]
    speed = np.full((networks, 1), SPEED_SIGMA)
    total = weights.sum() + prior_rows
    prior = Prior(np.zeros(networks), speed, np.full(networks, own_sigma**2), noise)
    filled = values
    rounds = ROUNDS if np.isnan(values).any() else 1
    for _ in range(rounds):
        filled, variance = fill(values, prior)
        centred = filled - filled.mean(axis=1, keepdims=True)
        mean = weights @ centred / max(float(weights.sum()), 1e-12)
        scaled = (centred - mean) * np.sqrt(weights / total)[:, None]
        own = (prior_rows * own_sigma**2 + weights @ variance) / total
        factors = np.concatenate([compact(scaled.T), speed], axis=1)
        prior = Prior(mean, factors, own, noise)
    return prior, filled
