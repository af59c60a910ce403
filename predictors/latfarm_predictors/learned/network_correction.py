"""Corrects the sum of a network's kernels to the network's latency; learned from measured networks.

Weights fall out of caches between runs, activations stay in caches between kernels, and calls cost
time. On real chain networks the ratio of a network's latency to the sum of its kernels is between
0.83 and 1.68.

Four kinds of corrections compete, from none to a small Gaussian process, each on the sum of warm
kernels and on a sum that takes kernels partly cold. The linear one competes also with the weights
that caches have lost when a network comes back to them (`kernels/reuse.py` explains why), while
kernels that run alone find them. Leave-one-out errors decide; a more complex
correction must win clearly. The residuals that calibrate intervals come from repeating the whole
competition without each network in turn. Widths of intervals depend on the errors of networks that
spend their time on the same families of kernels (`likeness.py`), and on how long the network takes
(`network_size.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import ErrorShare, estimate_share
from latfarm_predictors.learned.correction_fits import (
    KINDS,
    MOST_ERROR,
    CorrectionFit,
    fit_candidate,
    surely_better,
)
from latfarm_predictors.learned.likeness import Likeness
from latfarm_predictors.learned.network_figures import EVICTING_MB, NetworkFigures
from latfarm_predictors.learned.network_size import NetworkSize
from latfarm_predictors.learned.score_pool import SCORES_VERSION, ScorePool
from latfarm_predictors.models.base import ModelState

_MOST_LOG = 500.0
"""Largest logarithm of a ratio of latencies that is told; its exponential is finite."""
_SHARED_CACHE_MB = 24.0
"""Size, in megabytes, of a cache that all cores share."""
_RIDGES = (1.0, 3.0, 10.0, 30.0)
"""Penalties of the linear correction, among which leave-one-out chooses."""
_LEAST_NETWORKS = {"none": 0, "scale": 3, "ridge": 8, "gp": 30}
"""Smallest number of networks for each kind of correction."""
_PLAIN_FEATURES = 8
"""Number of features of a correction that does not know evicted weights, as in older bundles."""


def _design(networks: Sequence[NetworkFigures]) -> Array:
    """Features of a correction, shape (n, 12): costs per millisecond, shares, cold ratio.

    The last four are evicted weights; they are 0 where these are not known.
    """
    rows = [
        (
            n.kernels / n.warm_ms,
            n.interior_mb / n.warm_ms,
            n.weight_mb * n.cold_share / n.warm_ms,
            max(n.weight_mb - _SHARED_CACHE_MB, 0.0) / n.warm_ms,
            n.small_ms / n.warm_ms,
            n.weighty_ms / n.warm_ms * n.cold_share,
            float(np.log(n.cold_ms / n.warm_ms)),
            n.conv_ms / n.warm_ms,
            *(lost / n.warm_ms for lost in n.evicted_mb or (0.0,) * len(EVICTING_MB)),
        )
        for n in networks
    ]
    # costs per millisecond span decades; in logs, one tiny network does not decide a coefficient
    width = _PLAIN_FEATURES + len(EVICTING_MB)
    return np.log1p(np.array(rows, dtype=np.float64).reshape(len(networks), width))


def _base(networks: Sequence[NetworkFigures], blend: bool) -> Array:
    """The sum of each network's kernels in ms, shape (n,), partly cold if `blend`."""
    return np.array([n.blended_ms if blend else n.warm_ms for n in networks])


def _compete(networks: Sequence[NetworkFigures], latency: Array) -> tuple[CorrectionFit, Array]:
    """The correction with the smallest leave-one-out errors, and these errors, shape (n,)."""
    design = _design(networks)
    plain = design[:, :_PLAIN_FEATURES]
    count = len(networks)
    log_latency = np.log(latency)
    bases = (False, True) if any(n.cold_ms > 1.001 * n.warm_ms for n in networks) else (False,)
    best: tuple[float, CorrectionFit, Array] | None = None
    for kind in KINDS:
        if count < _LEAST_NETWORKS[kind]:
            continue
        level: tuple[float, CorrectionFit, Array] | None = None
        for blend in bases:
            ratio = log_latency - np.log(_base(networks, blend))
            ridges = _RIDGES if kind == "ridge" else (0.0,)
            for features in (plain, design) if kind == "ridge" else (plain,):
                for ridge in ridges:
                    fitted, left_out = fit_candidate(kind, blend, ridge, features, ratio)
                    score = float(np.minimum(np.abs(left_out), MOST_ERROR).mean()) if count else 0.0
                    if level is None or score < level[0] - 1e-12:
                        level = (score, fitted, left_out)
        if level is not None and (best is None or surely_better(level, best)):
            best = level
    assert best is not None  # "none" always competes
    return best[1], best[2]


class NetworkCorrection:
    """Predicts the latency of a network, and its log-sigma, from the network's figures.

    Without measured networks the latency is the sum of kernels, with the default error share.

    Attributes:
        share: how the errors of kernels add up.
        residuals: log(measured / predicted) of each network by a correction without it, shape (n,).
        scores: absolute residual of each network divided by its sigma, shape (n,).
        profiled_scores: scores of profiled networks, which calibrate intervals as well, shape (m,).
        other_scores: scores of other platforms, by name, that calibrate intervals as well.
    """

    kind = "network-correction"

    def __init__(self) -> None:
        self._fit, _ = fit_candidate("none", False, 0.0, np.zeros((0, 8)), np.zeros(0))
        self.share = ErrorShare()
        self._size = NetworkSize()
        self._likeness = Likeness.none()
        self.residuals: Array = np.zeros(0)
        self.scores: Array = np.zeros(0)
        self.profiled_scores: Array = np.zeros(0)
        self.other_scores: Mapping[str, Array] = {}

    @property
    def calibration(self) -> ScorePool:
        """The scores that intervals are calibrated by; those of `scores` are the first own ones."""
        own = np.concatenate([self.scores, self.profiled_scores])
        return ScorePool(own, self.other_scores)

    @property
    def left_out_errors(self) -> Array:
        """|measured / predicted - 1| of each network by a correction without it, shape (n,)."""
        return np.abs(np.expm1(np.clip(-self.residuals, -_MOST_LOG, _MOST_LOG)))

    @property
    def chosen(self) -> str:
        """The correction that won: none, scale, ridge or gp; "+cold" if on the partly cold sum."""
        return self._fit.kind + ("+cold" if self._fit.blend else "")

    def fit(
        self, networks: Sequence[NetworkFigures], latency_ms: Array, *, profiled: int = 0
    ) -> NetworkCorrection:
        """Choose and fit a correction.

        For `residuals` and `scores` each network is left out in turn, of the choice too.

        Args:
            networks: figures of n networks.
            latency_ms: measured latency of each, shape (n,).
            profiled: how many of them, at the end, are profiled networks: they have no residuals.
        """
        count = len(networks)
        if count == 0:
            return self
        self._learn(networks, latency_ms)
        residuals, scores = np.empty(count), np.empty(count)
        for index in range(count):
            others = [n for i, n in enumerate(networks) if i != index]
            inner = NetworkCorrection()
            inner._learn(others, np.delete(latency_ms, index))
            predicted, sigma = inner.predict([networks[index]])
            residuals[index] = np.log(latency_ms[index] / predicted[0])
            scores[index] = abs(residuals[index]) / sigma[0]
        self.residuals = residuals[: count - profiled]
        self.scores, self.profiled_scores = np.split(scores, [count - profiled])
        return self

    def learn(self, networks: Sequence[NetworkFigures], latency_ms: Array) -> None:
        """Choose and fit a correction, without residuals and scores: it calibrates no interval.

        Args:
            networks: figures of n networks.
            latency_ms: measured latency of each, shape (n,).
        """
        if len(networks):
            self._learn(networks, latency_ms)

    def predict(self, networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each network, each of shape (n,)."""
        latency, sigma = self._predict(networks)
        return latency, sigma * self._likeness.factor(_shares(networks))

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        values: dict[str, Any] = {"rho": self.share.rho, "tau": self.share.tau}
        values["scores_version"] = SCORES_VERSION
        arrays = {"residuals": self.residuals, "scores": self.scores}
        if len(self.profiled_scores):
            arrays["profiled_scores"] = self.profiled_scores
        if self.other_scores:
            values["other_platforms"] = list(self.other_scores)
            for number, told in enumerate(self.other_scores.values()):
                arrays[f"other_scores_{number}"] = told
        values["size"] = self._size.to_json()
        if len(self._likeness.points):
            arrays["like_points"] = self._likeness.points
            arrays["like_squares"] = self._likeness.squares
        for entry in fields(CorrectionFit):
            value = getattr(self._fit, entry.name)
            if isinstance(value, np.ndarray):
                arrays[f"fit_{entry.name}"] = value
            else:
                values[entry.name] = value
        return ModelState(self.kind, values=values, arrays=arrays)

    @classmethod
    def from_state(cls, state: ModelState) -> NetworkCorrection:
        """The correction whose state this is."""
        model = cls()
        model.share = ErrorShare(float(state.values["rho"]), float(state.values["tau"]))
        model._size = NetworkSize.from_json(
            state.values.get("size", {})
        )  # missing in older versions
        model.residuals, model.scores = state.arrays["residuals"], state.arrays["scores"]
        model.profiled_scores = state.arrays.get("profiled_scores", np.zeros(0))
        others = enumerate(state.values.get("other_platforms", ()))
        model.other_scores = {str(name): state.arrays[f"other_scores_{n}"] for n, name in others}
        if "like_points" in state.arrays:  # missing with few networks and in older versions
            model._likeness = Likeness(state.arrays["like_points"], state.arrays["like_squares"])
        given: dict[str, Any] = {}
        for entry in fields(CorrectionFit):
            stored = f"fit_{entry.name}"
            given[entry.name] = (
                state.arrays[stored] if stored in state.arrays else state.values[entry.name]
            )
        model._fit = CorrectionFit(**given)
        return model

    def _learn(self, networks: Sequence[NetworkFigures], latency_ms: Array) -> None:
        """Choose and fit a correction, without residuals and scores."""
        self._fit, left_out = _compete(networks, latency_ms)
        self._size = NetworkSize.of([n.warm_ms for n in networks])
        self.share = self._share(networks, left_out)
        sigma = self._predict(networks)[1]
        self._likeness = Likeness.of(_shares(networks), left_out, sigma)

    def _predict(self, networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
        """Latency in ms, and log-sigma by the deviations of kernels, each of shape (n,)."""
        known = _design(networks)[:, : len(self._fit.centre)]
        shift, leverage = self._fit.shift(known)
        independent, common = _relative(networks)
        rho, tau = self.share.rho, self.share.tau
        variance = (1.0 - rho) * independent**2 + rho * common**2
        sigma = np.sqrt(variance + tau**2 * (1.0 + leverage)) * self._factors(networks)
        return _base(networks, self._fit.blend) * np.exp(shift), sigma

    def _share(self, networks: Sequence[NetworkFigures], residuals: Array) -> ErrorShare:
        """How the errors of kernels add up in these networks."""
        if len(networks) < 5:
            return ErrorShare()
        return estimate_share(residuals / self._factors(networks), *_relative(networks))

    def _factors(self, networks: Sequence[NetworkFigures]) -> Array:
        """Factor on the log-sigma of each network because of its size, shape (n,)."""
        return self._size.factor(np.array([n.warm_ms for n in networks], dtype=np.float64))


def _shares(networks: Sequence[NetworkFigures]) -> Array:
    """Share of time in each family, shape (n, f); f is 0 if some network does not have it."""
    if not networks or not all(network.shares for network in networks):
        return np.zeros((len(networks), 0))
    return np.array([network.shares for network in networks])


def _relative(networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
    """Sigma of each sum for independent errors of kernels, and for common ones; each (n,)."""
    total = np.array([n.warm_ms for n in networks])
    independent = np.array([n.independent_ms for n in networks])
    common = np.array([n.common_ms for n in networks])
    return independent / total, common / total
