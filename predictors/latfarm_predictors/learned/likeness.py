"""Scales the interval of a network by the errors on measured networks that are like it.

A network is a sum of kernels, and kernels of one kind have errors in the same direction. If a kind
is predicted wrongly, a network that is made of it is wrong by as much, however many kernels it has.
The deviations of kernels do not show this, because each kernel was judged by itself. Measured
networks show it, if one looks at those that spend their time on the same families of kernels.

With one width for all networks, a family of networks made of such a kind would be outside its
intervals again and again, although the nominal coverage holds over all families. So intervals are
scaled by the residuals of similar networks (locally weighted conformal prediction: Lei et al. 2018,
section 5.2), and by how far away the most similar ones are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Array

LEAST_NETWORKS = 8
"""With fewer networks than this, intervals are not scaled."""
_NEAR = 0.1
"""Hellinger distance at which a network has 0.6 of the weight of one at distance 0."""
_PRIOR_NETWORKS = 3.0
"""All networks together have the weight of this many networks at distance 0. With 1, one network of
its kind decides, which made the errors of unseen families less likely on MNN."""
_NOVELTY = 1.0
"""The variance of a network that is like no other is that of all networks, and this share more."""
_OUTLIER = 3.0
"""Residuals count up to this many typical ones: one network far off tells little of others."""
_LEAST = 1e-9
"""Smallest mean square over all networks."""


@dataclass(frozen=True)
class Likeness:
    """How n measured networks spend their time, and how wrong each was predicted.

    Attributes:
        points: square root of each network's share of time in each family of kernels, shape (n, f).
        squares: square of each network's residual, divided by its sigma, both by a correction that
            was fitted without it, shape (n,).
    """

    points: Array
    squares: Array

    @staticmethod
    def none() -> Likeness:
        """The likeness of no networks, which scales nothing."""
        return Likeness(np.zeros((0, 0)), np.zeros(0))

    @staticmethod
    def of(shares: Array, residuals: Array, sigma: Array) -> Likeness:
        """The likeness of networks that were left out of the fit in turn.

        Args:
            shares: each network's share of time in each family of kernels, shape (n, f).
            residuals: logarithm of measured over predicted latency, shape (n,).
            sigma: log-sigma of each, shape (n,).
        """
        if len(shares) < LEAST_NETWORKS or not shares.shape[1]:
            return Likeness.none()
        return Likeness(np.sqrt(shares), (residuals / sigma) ** 2)

    def factor(self, shares: Array) -> Array:
        """Factor on the sigma of each of m networks, shape (m,).

        It is the root of the mean square of similar networks. All networks together count as
        three more networks.

        Args:
            shares: each network's share of time in each family of kernels, shape (m, f).
        """
        if not len(self.points) or not len(self.squares) or shares.shape[1] != self.points.shape[1]:
            return np.ones(len(shares))
        gaps = np.sqrt(shares)[:, None, :] - self.points[None, :, :]
        weights = np.exp(-(gaps**2).sum(axis=-1) / (4.0 * _NEAR**2))
        usual = 1.4826 * float(np.median(np.sqrt(self.squares)))
        squares = np.minimum(self.squares, (_OUTLIER * usual) ** 2)
        everywhere = max(float(squares.mean()), _LEAST)
        novelty = 1.0 - weights.max(axis=1)
        prior = _PRIOR_NETWORKS * everywhere * (1.0 + _NOVELTY * novelty)
        # not "@", with which the last digit of a network would depend on what else was asked
        near = (weights * squares).sum(axis=1)
        return np.asarray(np.sqrt((near + prior) / (weights.sum(axis=1) + _PRIOR_NETWORKS)))
