"""How wrong networks like this one were: a difficulty that networks' own residuals tell.

Networks are sums of kernels, and kernels of a kind err together: a network that is made of a kind
which is wrongly predicted is wrong by as much, however many of its kernels there are. What the
kernels themselves tell of their doubt does not show it: their models were judged one by one. The
measured networks show it, if the error is looked for among those that spend their time alike. With
one width for all, a family that is made of such a kind is missed again and again, while the nominal
coverage holds over all families; so intervals are scaled by the residuals nearby (locally weighted
conformal prediction: Lei et al. 2018, section 5.2), and by how far away the nearest are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array

LEAST_NETWORKS = 8
"""Of fewer networks nothing is told: all are alike difficult."""
_NEAR = 0.1
"""Hellinger distance at which a network counts 0.6 of one that is made alike."""
_PRIOR_NETWORKS = 1.0
_NOVELTY = 1.0
"""A network without any relative has the variance of all networks, and this share of it more."""
_OUTLIER = 3.0
_LEAST = 1e-9


@dataclass(frozen=True)
class Likeness:
    """Measured networks: what each is made of, and how wrong it was.

    Attributes:
        points: square roots of the shares of time, by family of kernels, shape (n, f).
        squares: of each residual over the sigma that it had, left out, shape (n,).
    """

    points: Array
    squares: Array

    @staticmethod
    def none() -> Likeness:
        """Of no networks."""
        return Likeness(np.zeros((0, 0)), np.zeros(0))

    @staticmethod
    def of(shares: Array, residuals: Array, sigma: Array) -> Likeness:
        """From networks that were left out in turn.

        Args:
            shares: of time by family of kernels, shape (n, f).
            residuals: logs of measured over predicted, shape (n,).
            sigma: log-sigma of each, shape (n,).
        """
        if len(shares) < LEAST_NETWORKS or not shares.shape[1]:
            return Likeness.none()
        return Likeness(np.sqrt(shares), (residuals / sigma) ** 2)

    def factor(self, shares: Array) -> Array:
        """What to multiply sigmas of networks with, shape (m,), given their shares, shape (m, f).

        The mean square nearby, with all networks together as one that is known before any other.
        """
        if not len(self.points) or shares.shape[1] != self.points.shape[1]:
            return np.ones(len(shares))
        gaps = np.sqrt(shares)[:, None, :] - self.points[None, :, :]
        weights = np.exp(-(gaps**2).sum(axis=-1) / (4.0 * _NEAR**2))
        usual = 1.4826 * float(np.median(np.sqrt(self.squares)))
        everywhere = max(float(np.minimum(self.squares, (_OUTLIER * usual) ** 2).mean()), _LEAST)
        novelty = 1.0 - weights.max(axis=1)
        prior = _PRIOR_NETWORKS * everywhere * (1.0 + _NOVELTY * novelty)
        # not by "@": a network's last digit would depend on what else was asked
        near = (weights * self.squares).sum(axis=1)
        return np.asarray(np.sqrt((near + prior) / (weights.sum(axis=1) + _PRIOR_NETWORKS)))
