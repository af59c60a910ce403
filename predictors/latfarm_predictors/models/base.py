"""What a kernel latency model is, and the plain form in which its state is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.kernels.workload import Workload


@dataclass(frozen=True)
class ModelState:
    """A fitted model as plain data, for open formats: JSON values, arrays, texts, nested parts."""

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, ModelState] = field(default_factory=dict)


class Regressor(Protocol):
    """A regressor of kernel latency.

    Deterministic: the same data gives the same model. Not thread-safe while fitting; a fitted model
    is never changed by `predict` and may be shared.
    """

    kind: str

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """Learn from measured latencies.

        Args:
            workloads: n workloads.
            latency_ms: their latencies, shape (n,), all positive.
            noise: variance of each log latency, shape (n,); zeros where None.

        Raises:
            NotEnoughDataError: fewer rows than the model needs.
            ValueError: latencies that are no positive finite numbers.
        """
        ...

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """A new model with what this one chose (tiles, hyperparameters), fitted to other rows.

        Cheaper than `fit`; for out-of-fold scores.
        """
        ...

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """Latency in ms and the standard deviation of its logarithm, both of shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned; `from_state` gives back a model that predicts the same bits."""
        ...

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A fitted model from its state."""
        ...


def check_targets(
    table: Table, latency_ms: npt.ArrayLike, noise: npt.ArrayLike | None, least: int
) -> tuple[Array, Array]:
    """Latencies and noise variances as arrays.

    Raises:
        NotEnoughDataError: fewer than `least` rows.
        ValueError: shapes that do not match, or latencies that are not positive and finite.
    """
    latency = np.asarray(latency_ms, dtype=np.float64)
    variance = np.zeros(len(table)) if noise is None else np.asarray(noise, dtype=np.float64)
    if latency.shape != (len(table),) or variance.shape != (len(table),):
        raise ValueError(f"{len(table)} workloads, but latencies of shape {latency.shape}")
    if len(table) < least:
        raise NotEnoughDataError(f"{len(table)} measurements, the fit needs {least}")
    if not (np.isfinite(latency).all() and (latency > 0).all()):
        raise ValueError("latencies must be positive and finite")
    if not (np.isfinite(variance).all() and (variance >= 0).all()):
        raise ValueError("noise variances must be finite and not negative")
    return latency, variance


def robust_sigma(residuals: Array) -> float:
    """Standard deviation as the median absolute value says, never below that of 10 % outliers.

    Zero-centred on purpose: a bias counts as error.
    """
    if len(residuals) == 0:
        return 0.0
    size = np.abs(residuals)
    return float(max(1.4826 * np.median(size), np.quantile(size, 0.9) / 1.645))


def mean_size(predicted: Array, truth: Array) -> float:
    """Mean absolute log error, each capped at 0.5: what candidates are chosen by."""
    return float(np.minimum(np.abs(np.log(predicted / truth)), 0.5).mean())


def out_of_fold(
    fit: Callable[[Table, Array, Array], Regressor],
    table: Table,
    latency: Array,
    noise: Array,
    *,
    folds: int = 10,
    seed: int = 0,
    sources: Sequence[str] | None = None,
) -> tuple[Array, Array]:
    """Latency and log-sigma of every row from a model that never saw it, each of shape (n,).

    Rows of one source (the kernels of a network) are left out together: they are alike, and a model
    that saw the others would look better than it is on a network that is new to it.

    Args:
        fit: makes a model from some of the rows. `Regressor.refit` of a model that saw all rows is
            cheap but flatters: what it chose, it chose with the left-out rows in view.
        table: the rows.
        latency: their latencies in ms.
        noise: variances of their logs.
        folds: how many parts; at least one row each.
        seed: for the split.
        sources: where each row comes from; "" for one by itself. None: all of them.
    """
    count = len(table)
    place = _places(sources or [""] * count, folds, seed)
    predicted, sigma = np.empty(count), np.empty(count)
    for fold in range(int(place.max()) + 1):
        inside, outside = np.flatnonzero(place != fold), np.flatnonzero(place == fold)
        part = fit(table.take(inside), latency[inside], noise[inside])
        predicted[outside], sigma[outside] = part.predict(table.take(outside))
    return predicted, sigma


def _places(sources: Sequence[str], folds: int, seed: int) -> Rows:
    """The part that each row belongs to, none of them empty, shape (n,)."""
    names = [source or str(row) for row, source in enumerate(sources)]
    known = {name: place for place, name in enumerate(dict.fromkeys(names))}
    parts = np.random.default_rng(seed).permutation(len(known)) % min(folds, len(known))
    return parts[[known[name] for name in names]]
