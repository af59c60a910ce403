"""Intervals with finite-sample coverage: conformal calibration of scores |error| / sigma.

All errors are errors of the logarithm of latency, so an interval is [latency / f, latency * f].
Publications report the coverage of intervals without their width, or the reverse; `evaluate.py`
reports both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import NormalDist

import numpy as np

from latfarm_predictors.features.table import Array

_NORMAL = NormalDist()
_UNSEEN_MARGIN = 1.25
"""Factor on an interval for which there are too few scores."""
_NO_SCORES_MARGIN = 2.0
"""Factor on the normal quantile where there are no scores."""


def normal_quantile(coverage: float) -> float:
    """Half-width, in standard deviations, of the central normal interval of that coverage.

    Raises:
        ValueError: the coverage is not strictly between 0 and 1.
    """
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage {coverage} is not between 0 and 1")
    return _NORMAL.inv_cdf(0.5 + coverage / 2.0)


def least_scores(coverage: float) -> int:
    """Smallest number of calibration scores that can promise `coverage`: 9 for 0.9, 19 for 0.95."""
    normal_quantile(coverage)
    # 0.9 / (1 - 0.9) is slightly above 9 in binary; rounding makes it 9
    return ceil(round(coverage / (1.0 - coverage), 9))


def conformal_quantile(scores: Sequence[float] | Array, coverage: float) -> float:
    """The ceil((n + 1) * coverage)-th smallest score; infinite if there are too few scores.

    A new exchangeable score is at most this with probability `coverage` or more (Vovk et al.).
    """
    normal_quantile(coverage)
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    rank = ceil(round((len(ordered) + 1) * coverage, 9))
    return float(ordered[rank - 1]) if rank <= len(ordered) else float("inf")


def widened_quantile(scores: Sequence[float] | Array, coverage: float) -> tuple[float, bool]:
    """`conformal_quantile`, or a wide but finite stand-in where that is infinite.

    The stand-in is the largest score, scaled by the ratio of normal quantiles, plus a quarter.
    Without any score it is twice the normal quantile.

    Returns:
        The factor on sigma, and whether there are enough scores to promise the coverage.
    """
    exact = conformal_quantile(scores, coverage)
    if np.isfinite(exact):
        return exact, True
    needed = normal_quantile(coverage)
    count = len(scores)
    if count == 0:
        return _NO_SCORES_MARGIN * needed, False
    seen = normal_quantile(count / (count + 1.0))
    largest = float(np.max(scores))
    return max(largest * needed / seen * _UNSEEN_MARGIN, needed), False


@dataclass(frozen=True)
class Mondrian:
    """Conformal scores by label, so that coverage holds for each label and not only on average.

    A label is a path such as "conv/small". If a label has too few scores, those of its parent
    ("conv") are used, and if that has too few, all scores ("").

    Attributes:
        scores: the sorted scores of each label and of its parents.
        least: smallest number of scores with which a label is used.
    """

    scores: Mapping[str, Array] = field(default_factory=dict)
    least: int = 20

    @staticmethod
    def of(scores: Array, labels: Sequence[str], least: int = 20) -> Mondrian:
        """Scores, shape (n,), sorted by their labels and by all parents of these."""
        sets: dict[str, list[float]] = {}
        for score, label in zip(scores.tolist(), labels, strict=True):
            for name in _lineage(label):
                sets.setdefault(name, []).append(score)
        return Mondrian({name: np.sort(found) for name, found in sets.items()}, least)

    def multiplier(self, label: str, coverage: float) -> tuple[float, bool]:
        """Factor on sigma, and whether there are enough scores to promise the coverage."""
        needed = max(self.least, least_scores(coverage))
        for name in _lineage(label):
            found = self.scores.get(name)
            if found is not None and len(found) >= needed:
                return conformal_quantile(found, coverage), True
        return widened_quantile(self.scores.get("", np.zeros(0)), coverage)


def _lineage(label: str) -> list[str]:
    """The label, its parents, and the root: "a/b" gives "a/b", "a", ""."""
    parts = label.split("/") if label else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]


@dataclass(frozen=True, slots=True)
class ErrorShare:
    """How the errors of kernels add up in networks.

    The variance of the log latency of a network is
    ((1 - rho) sum s_i^2 + rho (sum s_i)^2) / (sum latency_i)^2 + tau^2, with
    s_i = latency_i * sigma_i. With rho = 0 kernels err independently, as the literature assumes;
    with rho = 1 all err together.

    Attributes:
        rho: correlation between the errors of kernels, 0 to 1.
        tau: log-sigma of what the sum of kernels leaves out.
    """

    rho: float = 0.3
    tau: float = 0.06


# the values among which `estimate_share` chooses
_RHO_GRID = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_TAU_GRID = (0.01, 0.02, 0.03, 0.045, 0.06, 0.09, 0.13, 0.2, 0.3)


def estimate_share(residuals: Array, independent: Array, common: Array) -> ErrorShare:
    """The share that best explains the residuals of networks, with a weak prior on the default.

    Args:
        residuals: log(measured / predicted) of n networks, shape (n,).
        independent: sigma of each at rho = 0 and tau = 0, shape (n,).
        common: sigma of each at rho = 1 and tau = 0, shape (n,).
    """
    start = ErrorShare()
    rho, tau = (grid[..., None] for grid in np.meshgrid(_RHO_GRID, _TAU_GRID, indexing="ij"))
    variance = (1.0 - rho) * independent**2 + rho * common**2 + tau**2
    cost = 0.5 * np.sum(np.log(variance) + residuals**2 / variance, axis=-1)
    cost += 2.0 * (rho[..., 0] - start.rho) ** 2 + 0.5 * np.log(tau[..., 0] / start.tau) ** 2
    row, column = np.unravel_index(int(np.argmin(cost)), cost.shape)
    return ErrorShare(_RHO_GRID[int(row)], _TAU_GRID[int(column)])
