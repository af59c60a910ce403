"""From the sum of kernels to the network: what the sum leaves out, learned from measured networks.

Weights fall out of caches between runs, activations stay in them between kernels, calls cost
something: on real chain networks the ratio network / sum spans 0.83-1.68 and has both signs. Four
corrections compete, from nothing to a small Gaussian process, on the sum of warm kernels and on a
sum that takes kernels partly cold; leave-one-out decides, for the simpler one when in doubt. The
residuals that calibrate intervals come from repeating the whole competition without each network.
Their widths follow what networks that spend their time alike were wrong by (`likeness.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.intervals import ErrorShare, estimate_share
from latfarm_predictors.kernels.families import FAMILIES
from latfarm_predictors.learned.correction_fits import KINDS, Fit, fit_candidate
from latfarm_predictors.learned.likeness import Likeness
from latfarm_predictors.models.base import ModelState

MEGABYTE = 1e6
_PRIVATE_CACHE_MB = 0.7
_SHARED_CACHE_MB = 24.0
_LARGE_WEIGHT_MB = 0.3
_RIDGES = (1.0, 3.0, 10.0, 30.0)
_LEAST = {"none": 0, "scale": 3, "ridge": 8, "gp": 30}
_WORTH = 0.95
_SURE = 2.0
_CAP = 0.5
_FAMILY_PLACE = {name: place for place, name in enumerate(FAMILIES)}
COLUMNS = 8
"""Of `kernel_columns`."""


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """What a correction sees of a network, besides its latency. Latencies in ms, sums over kernels.

    Attributes:
        warm_ms: sum of kernels as measured alone, plus one call's overhead and transfers.
        cold_ms: the same with every kernel's weights out of caches.
        independent_ms: root of the sum of squared kernel deviations.
        common_ms: sum of kernel deviations.
        kernels: how many.
        weight_mb: all weights.
        interior_mb: activations written and read between kernels.
        small_ms: latency in kernels too short for their overhead to be hidden.
        weighty_ms: latency in kernels with large weights.
        conv_ms: latency in convolutions.
        shares: of the kernels' latency, by their family in the order of `FAMILIES`; empty where
            that is not told.
    """

    warm_ms: float
    cold_ms: float
    independent_ms: float
    common_ms: float
    kernels: float
    weight_mb: float
    interior_mb: float
    small_ms: float
    weighty_ms: float
    conv_ms: float
    shares: tuple[float, ...] = ()

    @property
    def cold_share(self) -> float:
        """Share of the weights that cannot stay in a private cache between runs."""
        return max(self.weight_mb - _PRIVATE_CACHE_MB, 0.0) / (self.weight_mb + 1e-9)

    @property
    def blended_ms(self) -> float:
        """Sum of kernels with the cold share of each taken cold."""
        return self.warm_ms + self.cold_share * (self.cold_ms - self.warm_ms)


def boundary_mb(graph: Graph) -> float:
    """Megabytes of a network's inputs and outputs."""
    moved = sum(graph.type_of(name).size_bytes for name in (*graph.inputs, *graph.outputs))
    return moved / MEGABYTE


def kernel_columns(table: Table, latency_ms: Array, cold_ms: Array, sigma: Array) -> Array:
    """What a network's figures are made of, shape (COLUMNS, n); see `figures` for the first three.

    The others are bytes of weights, inputs and outputs, whether it is a convolution, and the place
    of its family in `FAMILIES`.
    """
    conv = table.of_family("conv", "grouped_conv", "dwconv")
    return np.stack(
        [
            latency_ms,
            cold_ms,
            sigma,
            table.weight_bytes,
            table.input_bytes,
            table.output_bytes,
            conv,
            np.array([_FAMILY_PLACE.get(name, -1) for name in table.families], dtype=np.float64),
        ]
    )


def figures(
    table: Table,
    latency_ms: Array,
    cold_ms: Array,
    sigma: Array,
    *,
    overhead_ms: float,
    small_ms: float,
) -> NetworkFigures:
    """Figures of a network from its kernels.

    Args:
        table: the kernels.
        latency_ms: predicted warm latency of each, shape (n,).
        cold_ms: predicted cold latency of each, shape (n,).
        sigma: log-sigma of each, shape (n,).
        overhead_ms: latency of an empty model, and of moving the network's inputs and outputs.
        small_ms: kernels below this count as small.
    """
    columns = kernel_columns(table, latency_ms, cold_ms, sigma)
    return column_figures(columns, overhead_ms=overhead_ms, small_ms=small_ms)


def column_figures(columns: Array, *, overhead_ms: float, small_ms: float) -> NetworkFigures:
    """The same from `kernel_columns`, a column for each kernel in the order in which they run."""
    latency_ms, cold_ms, sigma, weight_bytes, input_bytes, output_bytes, conv, family = columns
    weights = weight_bytes / MEGABYTE
    traffic = float((input_bytes + output_bytes).sum()) / MEGABYTE
    boundary = 0.0
    if len(latency_ms):
        boundary = float(input_bytes[0] + output_bytes[-1]) / MEGABYTE
    spread = latency_ms * sigma
    # the first is of families that are not known here
    by_family = np.bincount((family + 1.0).astype(np.intp), latency_ms, len(FAMILIES) + 1)
    shares = by_family / max(float(by_family.sum()), 1e-300)
    return NetworkFigures(
        warm_ms=float(latency_ms.sum()) + overhead_ms,
        cold_ms=float(np.maximum(cold_ms, latency_ms).sum()) + overhead_ms,
        independent_ms=float(np.sqrt(spread @ spread)),
        common_ms=float(spread.sum()),
        kernels=float(len(latency_ms)),
        weight_mb=float(weights.sum()),
        interior_mb=traffic - boundary,
        small_ms=float(latency_ms[latency_ms < small_ms].sum()),
        weighty_ms=float(latency_ms[weights > _LARGE_WEIGHT_MB].sum()),
        conv_ms=float(latency_ms[conv > 0.0].sum()),
        shares=tuple(shares[1:].tolist()),
    )


def _design(networks: Sequence[NetworkFigures]) -> Array:
    """Features of the ridge and the GP, shape (n, 8): costs per millisecond, shares, cold ratio."""
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
        )
        for n in networks
    ]
    # costs per millisecond span decades; logs keep one tiny network from owning a coefficient
    return np.log1p(np.array(rows, dtype=np.float64).reshape(len(networks), 8))


def _base(networks: Sequence[NetworkFigures], blend: bool) -> Array:
    return np.array([n.blended_ms if blend else n.warm_ms for n in networks])


def _compete(networks: Sequence[NetworkFigures], latency: Array) -> tuple[Fit, Array]:
    """The winner by leave-one-out; a more complex one must win surely, see `_surely_better`."""
    design = _design(networks)
    count = len(networks)
    log_latency = np.log(latency)
    bases = (False, True) if any(n.cold_ms > 1.001 * n.warm_ms for n in networks) else (False,)
    best: tuple[float, Fit, Array] | None = None
    for kind in KINDS:
        if count < _LEAST[kind]:
            continue
        level: tuple[float, Fit, Array] | None = None
        for blend in bases:
            ratio = log_latency - np.log(_base(networks, blend))
            for ridge in _RIDGES if kind == "ridge" else (0.0,):
                fitted, left_out = fit_candidate(kind, blend, ridge, design, ratio)
                score = float(np.minimum(np.abs(left_out), _CAP).mean()) if count else 0.0
                if level is None or score < level[0] - 1e-12:
                    level = (score, fitted, left_out)
        if level is not None and (best is None or _surely_better(level, best)):
            best = level
    assert best is not None  # "none" always competes
    return best[1], best[2]


def _surely_better(new: tuple[float, Fit, Array], old: tuple[float, Fit, Array]) -> bool:
    """Whether a correction wins by 5 % of the error, and by two standard errors of the difference.

    Twenty networks that happen to favour a coefficient are no reason to believe it: it is asked
    about networks unlike them.
    """
    if new[0] >= _WORTH * old[0]:
        return False
    gains = np.minimum(np.abs(old[2]), _CAP) - np.minimum(np.abs(new[2]), _CAP)
    doubt = float(gains.std(ddof=1)) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return bool(gains.mean() > _SURE * doubt)


class NetworkCorrection:
    """Latency of a network from its figures, and the log-sigma of that.

    Without networks it is the plain sum with the default error share.
    """

    kind = "network-correction"

    def __init__(self) -> None:
        self._fit, _ = fit_candidate("none", False, 0.0, np.zeros((0, 8)), np.zeros(0))
        self.share = ErrorShare()
        self._likeness = Likeness.none()
        self.residuals: Array = np.zeros(0)
        self.scores: Array = np.zeros(0)

    @property
    def chosen(self) -> str:
        """Which correction won: none, scale, ridge or gp; "+cold" when on the blended sum."""
        return self._fit.kind + ("+cold" if self._fit.blend else "")

    def fit(self, networks: Sequence[NetworkFigures], latency_ms: Array) -> NetworkCorrection:
        """Choose and fit a correction; `residuals` and `scores` are leave-one-out, choice included.

        Args:
            networks: figures of n networks.
            latency_ms: their measured latencies, shape (n,).
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
        self.residuals, self.scores = residuals, scores
        return self

    def predict(self, networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma, each of shape (n,)."""
        latency, sigma = self._predict(networks)
        return latency, sigma * self._likeness.factor(_shares(networks))

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        values: dict[str, Any] = {"rho": self.share.rho, "tau": self.share.tau}
        arrays = {"residuals": self.residuals, "scores": self.scores}
        if len(self._likeness.points):
            arrays["like_points"] = self._likeness.points
            arrays["like_squares"] = self._likeness.squares
        for entry in fields(Fit):
            value = getattr(self._fit, entry.name)
            if isinstance(value, np.ndarray):
                arrays[f"fit_{entry.name}"] = value
            else:
                values[entry.name] = value
        return ModelState(self.kind, values=values, arrays=arrays)

    @classmethod
    def from_state(cls, state: ModelState) -> NetworkCorrection:
        """Read what `state` gave."""
        model = cls()
        model.share = ErrorShare(float(state.values["rho"]), float(state.values["tau"]))
        model.residuals, model.scores = state.arrays["residuals"], state.arrays["scores"]
        if "like_points" in state.arrays:  # else of few networks, or of an older version
            model._likeness = Likeness(state.arrays["like_points"], state.arrays["like_squares"])
        given: dict[str, Any] = {}
        for entry in fields(Fit):
            stored = f"fit_{entry.name}"
            given[entry.name] = (
                state.arrays[stored] if stored in state.arrays else state.values[entry.name]
            )
        model._fit = Fit(**given)
        return model

    def _learn(self, networks: Sequence[NetworkFigures], latency_ms: Array) -> None:
        """Choose and fit a correction, and how errors add up; no residuals and scores."""
        self._fit, left_out = _compete(networks, latency_ms)
        self.share = self._share(networks, left_out)
        sigma = self._predict(networks)[1]
        self._likeness = Likeness.of(_shares(networks), left_out, sigma)

    def _predict(self, networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
        """Latency in ms, and log-sigma by the kernels' own doubt, each of shape (n,)."""
        shift, leverage = self._fit.shift(_design(networks))
        independent, common = _relative(networks)
        rho, tau = self.share.rho, self.share.tau
        variance = (1.0 - rho) * independent**2 + rho * common**2
        sigma = np.sqrt(variance + tau**2 * (1.0 + leverage))
        return _base(networks, self._fit.blend) * np.exp(shift), sigma

    def _share(self, networks: Sequence[NetworkFigures], residuals: Array) -> ErrorShare:
        if len(networks) < 5:
            return ErrorShare()
        return estimate_share(residuals, *_relative(networks))


def _shares(networks: Sequence[NetworkFigures]) -> Array:
    """Shares of time by family, shape (n, f); f is 0 where some network does not tell them."""
    if not networks or not all(network.shares for network in networks):
        return np.zeros((len(networks), 0))
    return np.array([network.shares for network in networks])


def _relative(networks: Sequence[NetworkFigures]) -> tuple[Array, Array]:
    """Sigma of the sum if kernels err independently, and if they err together; each (n,)."""
    total = np.array([n.warm_ms for n in networks])
    independent = np.array([n.independent_ms for n in networks])
    common = np.array([n.common_ms for n in networks])
    return independent / total, common / total
