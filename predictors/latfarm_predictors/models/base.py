"""What a regressor of kernel latency is, what it learns from, and how its state is kept."""

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
    """A fitted model as plain data, which open file formats can hold.

    Attributes:
        kind: name of the kind of model, which `from_state` of its class reads.
        values: plain JSON values.
        arrays: numeric arrays.
        texts: long texts, such as boosted trees in LightGBM's text format.
        parts: the states of the models that this one is made of.
    """

    kind: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    parts: Mapping[str, ModelState] = field(default_factory=dict)


@dataclass(frozen=True)
class Observations:
    """What n kernels were measured to take: what a regressor learns from.

    Attributes:
        table: the kernels.
        latency_ms: latency of each, shape (n,), all positive and finite.
        noise: variance of the logarithm of each latency, shape (n,).
        sources: the network inside which each kernel was measured; "" for a kernel that was
            measured alone. None: all of them were.
    """

    table: Table
    latency_ms: Array
    noise: Array
    sources: Sequence[str] | None = None

    def take(self, rows: Rows) -> Observations:
        """Some of the observations, in the order of `rows`."""
        sources = None if self.sources is None else [self.sources[row] for row in rows]
        return Observations(self.table.take(rows), self.latency_ms[rows], self.noise[rows], sources)


class Regressor(Protocol):
    """A regressor of kernel latency.

    It is deterministic: the same data gives the same model. It is not thread-safe while it is
    fitted. Predicting never changes a fitted model, so threads may share one.
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
            latency_ms: latency of each, shape (n,), all positive.
            noise: variance of the logarithm of each latency, shape (n,); None means zeros.

        Raises:
            NotEnoughDataError: there are fewer rows than the model needs.
            ValueError: a latency is not a positive finite number.
        """
        ...

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """A new model that keeps what this one chose, fitted to other rows.

        What a model chooses are tiles and hyperparameters. Keeping them makes this cheaper than
        `fit`, which matters for out-of-fold estimates.

        Args:
            workloads: n workloads.
            latency_ms: latency of each, shape (n,).
            noise: variance of the logarithm of each latency, shape (n,).
        """
        ...

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """Latency in ms and the standard deviation of its logarithm, each of shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned, as plain data; a model made from it predicts the same bits."""
        ...

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A fitted model from its state."""
        ...


def check_targets(
    table: Table, latency_ms: npt.ArrayLike, noise: npt.ArrayLike | None, least: int
) -> tuple[Array, Array]:
    """Latencies and noise variances as arrays of shape (n,).

    Args:
        table: n kernels.
        latency_ms: latency of each.
        noise: variance of the logarithm of each latency; None means zeros.
        least: the fewest rows that the model can be fitted to.

    Raises:
        NotEnoughDataError: there are fewer than `least` rows.
        ValueError: the shapes do not match, a latency is not positive and finite, or a variance is
            negative or not finite.
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


def check_finite_targets(latency_ms: npt.ArrayLike, count: int, least: int) -> Array:
    """Latencies of networks as an array of shape (n,).

    Args:
        latency_ms: latency of each network.
        count: number of networks that there are features of.
        least: the fewest networks that the model can be fitted to.

    Raises:
        NotEnoughDataError: there are fewer than `least` networks.
        ValueError: there are not `count` latencies, or one is not positive and finite.
    """
    latency = np.asarray(latency_ms, dtype=np.float64)
    if latency.shape != (count,):
        raise ValueError(f"{count} networks, but latencies of shape {latency.shape}")
    if count < least:
        raise NotEnoughDataError(f"{count} networks, the fit needs {least}")
    if not (np.isfinite(latency).all() and (latency > 0).all()):
        raise ValueError("latencies must be positive and finite")
    return latency


def robust_sigma(residuals: Array) -> float:
    """Standard deviation of residuals, as their median absolute value says.

    It is never below what the 10 % largest residuals say. Residuals are not centred first, because
    a bias counts as an error too.
    """
    if len(residuals) == 0:
        return 0.0
    size = np.abs(residuals)
    return float(max(1.4826 * np.median(size), np.quantile(size, 0.9) / 1.645))


def capped_log_error(predicted: Array, truth: Array) -> float:
    """Mean absolute log error, each capped at 0.5; candidates are compared by it."""
    return float(np.minimum(np.abs(np.log(predicted / truth)), 0.5).mean())


def out_of_fold(
    fit: Callable[[Table, Array, Array], Regressor],
    seen: Observations,
    *,
    folds: int = 10,
    seed: int = 0,
) -> tuple[Array, Array]:
    """Latency in ms and log-sigma of each kernel by a model that never saw it, each of shape (n,).

    The kernels of one network are left out together. They are alike: a model that saw some of them
    would look better on the others than it is on a network that is new to it. If all kernels are of
    one network, they are left out one by one, or in parts.

    Args:
        fit: makes a model from a table, latencies and noise of some kernels. `Regressor.refit` of
            a model that saw all kernels is cheap, but its errors look too small, because the model
            made its choices with the left-out kernels in view.
        seen: the measured kernels.
        folds: number of parts; each has at least one kernel.
        seed: random seed of the split.
    """
    count = len(seen.table)
    fold_of = _folds(seen.sources or [""] * count, folds, seed)
    predicted, sigma = np.empty(count), np.empty(count)
    for fold in range(int(fold_of.max()) + 1):
        inside, outside = np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)
        model = fit(seen.table.take(inside), seen.latency_ms[inside], seen.noise[inside])
        predicted[outside], sigma[outside] = model.predict(seen.table.take(outside))
    return predicted, sigma


def _folds(sources: Sequence[str], folds: int, seed: int) -> Rows:
    """The fold of each kernel, none of them empty, shape (n,)."""
    if len(set(sources)) == 1:  # leaving that network out would leave nothing to learn from
        sources = [""] * len(sources)
    names = [source or str(row) for row, source in enumerate(sources)]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    fold_of = np.random.default_rng(seed).permutation(len(number_of)) % min(folds, len(number_of))
    return fold_of[[number_of[name] for name in names]]
