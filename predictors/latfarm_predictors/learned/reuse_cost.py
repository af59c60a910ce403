"""What evicted data add to a kernel inside a network, learned from kernels of profiled networks.

The latency of a kernel, at a place or alone, is that with all its data in caches plus a cost for
each byte that caches have lost since it was last used (`kernels/reuse.py`). The costs, one for each
size of a cache, are not negative and are found beside the terms of rooflines. The regressors are
fitted to what the costs leave of the latencies.

The cost is shipped only where it wins on whole networks that neither it nor the processes have
seen. On a board whose kernels take the same time everywhere it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.groups import LEAST_ROWS, Router
from latfarm_predictors.features.table import Array, Rows, Table, as_table
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.reuse import CACHES_BYTES, Spills, spills_alone, spills_of
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned.placed_kernels import at_places
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.relative_fit import relative_nnls
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.samples import KernelSample

LEAST_NETWORKS = 12
"""Kernels of at least this many networks are needed."""
WORTH = 0.95
"""The cost must lower the error on networks that were not seen to this share."""
SURE = 2.0
"""The cost must lower that error by this many standard errors of the mean over networks."""
LEAST_SHARE = 0.2
"""A kernel takes at least this share of its own latency at any place, and of what was measured
when the cost is taken off."""
_FOLDS = 5
"""Number of parts of the networks, each predicted by models that have not seen it."""
_LEAST_ERROR = 0.03
"""Relative errors beyond this weigh linearly when costs are found."""
_STEPS = 12
"""Largest number of gradient steps on the hyperparameters of a process."""
_MOST_ROWS = 300
"""Each process sees at most this many rows, because its cost is cubic."""
_COLUMNS = 2 * len(CACHES_BYTES)


@dataclass(frozen=True)
class ReusedKernels:
    """Kernels of several networks with their latencies and the bytes that caches lost.

    Attributes:
        samples: the n samples that these are from.
        table: the kernels.
        spills: what `kernels.reuse.spills_of` gives for each, shape (n, 36).
        latency_ms: latency of each, shape (n,).
        group: number of the network of each, counted from 0, shape (n,).
    """

    samples: tuple[KernelSample, ...]
    table: Table
    spills: Array
    latency_ms: Array
    group: npt.NDArray[np.intp]

    @staticmethod
    def of(groups: Sequence[Sequence[KernelSample]], rules: FusionRules) -> ReusedKernels:
        """The kernels of some samples; samples whose kernel has no `origin` are left out.

        Args:
            groups: measured kernels, those of one network together.
            rules: how the platform fuses ops.
        """
        found = at_places(groups, rules, spills_of)
        return ReusedKernels(
            found.samples,
            as_table(found.rows),
            as_spills(found.told),
            found.latency_ms,
            found.group,
        )

    def take(self, rows: Rows) -> ReusedKernels:
        """Some of the kernels."""
        return ReusedKernels(
            tuple([self.samples[row] for row in rows]),
            self.table.take(rows),
            self.spills[rows],
            self.latency_ms[rows],
            self.group[rows],
        )


@dataclass(frozen=True)
class ReuseCost:
    """The cost of evicted data. Not changed after it is fitted.

    Attributes:
        ms_per_byte: cost of each column of the spills, shape (36,).
        before: mean absolute log error of networks that were not seen, without the cost.
        after: the same with it.
    """

    ms_per_byte: Array = field(default_factory=lambda: np.zeros(_COLUMNS))
    before: float = 0.0
    after: float = 0.0

    @staticmethod
    def fit(kernels: ReusedKernels, *, seed: int = 0) -> ReuseCost | None:
        """Learn the cost; None if it does not win, or if there are too few networks.

        Args:
            kernels: kernels of profiled networks.
            seed: random seed of the folds and of the processes.
        """
        networks = int(kernels.group.max(initial=-1)) + 1
        if networks < LEAST_NETWORKS or not np.abs(kernels.spills).any():
            return None
        fold = (np.random.default_rng(seed).permutation(networks) % _FOLDS)[kernels.group]
        without, within = np.empty(len(fold)), np.empty(len(fold))
        for number in range(_FOLDS):
            inside, outside = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            known, new = kernels.take(inside), kernels.take(outside)
            plain = _Quick.fit(known.table, known.latency_ms, seed)
            without[outside] = plain.predict(new.table)
            cost = ReuseCost(_costs(known))
            models = plain.refit(known.table, cost.own_ms(known.latency_ms, known.spills))
            within[outside] = cost.placed_ms(models.predict(new.table), new.spills)
        before, after = _errors(kernels, without), _errors(kernels, within)
        gains = before - after
        standard_error = float(gains.std(ddof=1)) / np.sqrt(len(gains))
        if after.mean() >= WORTH * before.mean() or gains.mean() <= SURE * standard_error:
            return None
        return ReuseCost(_costs(kernels), float(before.mean()), float(after.mean()))

    def placed_ms(self, latency_ms: Array, spills: Array) -> Array:
        """Latency of kernels at their places in ms, shape (n,).

        Args:
            latency_ms: latency of each with all data in caches, shape (n,).
            spills: what `spills_of` gives for their places, shape (n, 36).
        """
        extra_ms = np.einsum("ij,j->i", spills, self.ms_per_byte)
        return np.asarray(np.maximum(latency_ms + extra_ms, LEAST_SHARE * latency_ms))

    def own_ms(self, latency_ms: Array, spills: Array) -> Array:
        """Latency of kernels with all data in caches in ms, shape (n,).

        Args:
            latency_ms: latency of each as it was measured, shape (n,).
            spills: what caches had lost when it was measured, shape (n, 36).
        """
        left = latency_ms - np.einsum("ij,j->i", spills, self.ms_per_byte)
        return np.asarray(np.maximum(left, LEAST_SHARE * latency_ms))

    def explain(self) -> dict[str, float]:
        """Errors of sums over networks that were not seen, without the cost and with it."""
        return {"error_without": self.before, "error_with": self.after}

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(
            "reuse",
            values={
                "caches_bytes": list(CACHES_BYTES),
                "before": self.before,
                "after": self.after,
            },
            arrays={"ms_per_byte": self.ms_per_byte},
        )

    @staticmethod
    def from_state(state: ModelState) -> ReuseCost:
        """The cost whose state this is.

        Raises:
            ValueError: it is for other sizes of caches than this version has, or holds no costs.
        """
        if tuple(state.values["caches_bytes"]) != CACHES_BYTES:
            raise ValueError("the cost of evicted data is for the caches of another version")
        costs = np.asarray(state.arrays["ms_per_byte"], dtype=np.float64)
        if costs.shape != (_COLUMNS,) or not (np.isfinite(costs) & (costs >= 0)).all():
            raise ValueError("the costs of evicted data are no numbers from 0 on")
        return ReuseCost(
            costs,
            float(state.values["before"]),
            float(state.values["after"]),
        )


def in_caches(
    cost: ReuseCost, kernels: ReusedKernels, samples: Sequence[KernelSample]
) -> list[KernelSample]:
    """The samples with their latencies as if caches held all data.

    Args:
        cost: the cost of evicted data.
        kernels: the samples whose place in a network is known.
        samples: all samples. Those without a place ran alone, or are taken to have done so.
    """
    places = dict(zip(map(id, kernels.samples), kernels.spills, strict=True))
    alone = {id(s): spills_alone(workload(s.kernel)) for s in samples if id(s) not in places}
    spills = as_spills([tuple(places.get(id(s), alone.get(id(s), ()))) for s in samples])
    measured = np.array([sample.latency_ms for sample in samples], dtype=np.float64)
    own = cost.own_ms(measured, spills)
    return [
        replace(
            sample,
            latency_ms=float(left_ms),
            cold_ms=None if sample.cold_ms is None else sample.cold_ms - full_ms + left_ms,
        )
        if np.isfinite(full_ms) and full_ms > 0
        else sample
        for sample, full_ms, left_ms in zip(samples, measured.tolist(), own.tolist(), strict=True)
    ]


def as_spills(spills: Sequence[Spills]) -> Array:
    """Spills as an array of shape (n, 36)."""
    return np.array(spills, dtype=np.float64).reshape(len(spills), _COLUMNS)


@dataclass(frozen=True)
class _Quick:
    """A process for each group with enough kernels, and a roofline for all others."""

    router: Router
    overall: Roofline
    processes: dict[str, RooflineGP]

    @staticmethod
    def fit(table: Table, latency_ms: Array, seed: int) -> _Quick:
        router, groups = _grouped(table)
        found = _Quick(router, Roofline(search=False).fit(table, latency_ms), {})
        for name, rows in groups.items():
            if len(rows) >= LEAST_ROWS:
                process = RooflineGP(steps=_STEPS, most_rows=_MOST_ROWS, seed=seed, spills=False)
                found.processes[name] = process.fit(table.take(rows), latency_ms[rows])
        return found

    def refit(self, table: Table, latency_ms: Array) -> _Quick:
        """The same with hyperparameters kept, fitted to other latencies of the same kernels."""
        _, groups = _grouped(table)
        processes = {
            name: process.refit(
                table.take(groups[name]), latency_ms[groups[name]], np.zeros(len(groups[name]))
            )
            for name, process in self.processes.items()
        }
        return _Quick(self.router, Roofline(search=False).fit(table, latency_ms), processes)

    def predict(self, table: Table) -> Array:
        """Latency of each kernel in ms, shape (n,)."""
        found = self.overall.latency_ms(table).copy()
        kinds = list(zip(table.families, table.types, strict=True))
        groups = {kind: self.router.route(*kind).group for kind in set(kinds)}
        for name, process in self.processes.items():
            rows = np.array([at for at, k in enumerate(kinds) if groups[k] == name], dtype=np.intp)
            if len(rows):
                found[rows] = process.latency_ms(table.take(rows))
        return found


def _grouped(table: Table) -> tuple[Router, dict[str, Rows]]:
    router, groups = Router.of(table, ("",) * len(table))
    named = {name: np.array(rows, dtype=np.intp) for name, rows in sorted(groups.items())}
    return router, named


def _costs(kernels: ReusedKernels) -> Array:
    """The cost of each column of the spills, shape (36,).

    They are found beside the terms of a roofline for each group of kernels, all in one non-negative
    least-squares fit on relative errors, in which outliers count less. A process would be too
    flexible here: it reproduces its training rows, whatever the costs are.
    """
    _, groups = _grouped(kernels.table)
    used = np.flatnonzero(np.abs(kernels.spills).any(axis=0))
    blocks = [kernels.spills[:, used]]
    for rows in groups.values():
        part = kernels.table.take(rows)
        roofline = Roofline().fit(part, kernels.latency_ms[rows]) if len(rows) >= 3 else None
        own = np.ones((len(rows), 1)) if roofline is None else roofline.columns(part)
        block = np.zeros((len(kernels.latency_ms), own.shape[1]))
        block[rows] = own
        blocks.append(block)
    columns = np.concatenate(blocks, axis=1)
    coefficients, _ = relative_nnls(
        columns, kernels.latency_ms, _shares(kernels), least_error=_LEAST_ERROR
    )
    costs = np.zeros(_COLUMNS)
    costs[used] = coefficients[: len(used)]
    return costs


def _shares(kernels: ReusedKernels) -> Array:
    """Root of the share of each kernel in its network's time: small kernels count, too."""
    whole = np.bincount(kernels.group, kernels.latency_ms)
    return np.asarray(np.sqrt(kernels.latency_ms / whole[kernels.group]))


def _errors(kernels: ReusedKernels, predicted: Array) -> Array:
    """Absolute log error of the sum over each network's kernels."""
    truth = np.bincount(kernels.group, kernels.latency_ms)
    ours = np.bincount(kernels.group, predicted)
    known = truth > 0
    return np.abs(np.log(ours[known] / truth[known]))
