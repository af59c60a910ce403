"""Estimates for layers that were not measured: latency, its deviation, and the distance CM_O."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import numpy as np
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample

if TYPE_CHECKING:
    from latfarm_predictors.models.roofline_gp import RooflineGP
    from latfarm_predictors.models.sibling import Sibling

LEAST_ROWS = 12
"""Number of samples of a family from which it gets a Gaussian process of its own."""
_UNKNOWN_SIGMA = 0.7
"""Deviation of the logarithm of a latency where no Gaussian process predicts it: a factor of 2."""
_UNKNOWN_DISTANCE = 2.0
"""CM_O of a layer whose family has too few samples, where 1 is the worst measured layer."""
_STEPS = 30
"""Optimisation steps of a Gaussian process: few, since it is fitted anew for each batch."""


def one_thread() -> AbstractContextManager[object]:
    """Limit linear algebra to one thread while the block runs.

    The matrices are small: with a thread for every core of a busy host, each product waits for the
    slowest thread (measured: 51 s instead of 1 s). Besides, the sums of a single thread are the
    same on every host.
    """
    import scipy.linalg  # noqa: F401 - the limit affects only libraries that are loaded already
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


class Belief:
    """One Gaussian process per family of workloads that has enough samples.

    Args:
        samples: what was measured.
        sibling: a sibling platform whose latencies the processes build on. The latencies of
            families with too few samples are estimated as a multiple of the sibling's.
    """

    def __init__(self, samples: Sequence[KernelSample], sibling: Sibling | None = None) -> None:
        self._sibling = sibling
        self._rows: dict[str, list[Workload]] = {}
        self._times: dict[str, list[float]] = {}
        self._noise: dict[str, list[float]] = {}
        self._models: dict[str, RooflineGP] = {}
        for sample in samples:
            self._add(
                workload(sample.kernel),
                sample.latency_ms,
                (sample.mad_ms / max(sample.latency_ms, 1e-9)) ** 2,
            )
        for family, rows in self._rows.items():
            if len(rows) >= LEAST_ROWS:
                self._models[family] = self._fit(family, rows)

    def _fit(self, family: str, rows: Sequence[Workload]) -> RooflineGP:
        # Imported here, since every command would load SciPy if it stood above.
        from latfarm_predictors.models.roofline_gp import RooflineGP

        model = RooflineGP(steps=_STEPS, sibling=self._sibling)
        return model.fit(rows, self._times[family], self._noise[family])

    def _add(self, row: Workload, latency_ms: float, noise: float) -> None:
        self._rows.setdefault(row.family, []).append(row)
        self._times.setdefault(row.family, []).append(max(latency_ms, 1e-6))
        self._noise.setdefault(row.family, []).append(noise)

    def of(self, rows: Sequence[Workload]) -> tuple[Array, Array]:
        """Estimated latencies in ms, and the deviations of their logarithms, each of shape (n,).

        The deviation is the part that a measurement would lower: measurement noise is left out.
        """
        latency = np.zeros(len(rows))
        sigma = np.full(len(rows), _UNKNOWN_SIGMA)
        for family, places in _by_family(rows).items():
            members = [rows[place] for place in places]
            model = self._models.get(family)
            if model is None:
                latency[places] = self._guess(members)
                continue
            mean, deviation = model.predict(members)
            own = np.maximum(deviation**2 - model.noise_sigma**2, 0.0)
            latency[places] = mean
            sigma[places] = np.minimum(np.sqrt(own), _UNKNOWN_SIGMA)
        return latency, sigma

    def distance(self, rows: Sequence[Workload]) -> Array:
        """CM_O: mean distance in feature space to the nearest measured rows, shape (n,).

        It is defined in the smart padding paper, section III-C, and scaled as there: 0 is the
        distance of the best covered measured row, 1 that of the worst. Rows of families with too
        few samples get a larger distance than both.
        """
        from latfarm_predictors.confidence.layer_confidence import Difficulty, Neighbourhood
        from latfarm_predictors.models.published.annette import raw_features

        found = np.full(len(rows), _UNKNOWN_DISTANCE)
        for family, places in _by_family(rows).items():
            known = self._rows.get(family, ())
            if len(known) < LEAST_ROWS:
                continue
            near = Neighbourhood.of(raw_features(as_table(known)))
            scale = Difficulty.of(near.own_distance())
            features = raw_features(as_table([rows[place] for place in places]))
            found[places] = scale.sigma(near.distance(features))
        return found

    def _guess(self, rows: Sequence[Workload]) -> Array:
        """Latencies of a family without a process: its work times the median time per work so far.

        The unit of work cancels, see `_work`.
        """
        known = [row for members in self._rows.values() for row in members]
        times = np.array([time for members in self._times.values() for time in members])
        work = self._work(rows)
        if not known:
            return work
        return np.asarray(work * float(np.median(times / self._work(known))))

    def _work(self, rows: Sequence[Workload]) -> Array:
        """The sibling's latencies; without a sibling a weighted sum of multiply-adds and bytes."""
        table = as_table(rows)
        if self._sibling is not None:
            return np.maximum(self._sibling.latency_ms(table), 1e-9)
        return np.asarray(1e-6 * (table.macs / 8.0 + table.total_bytes))

    def believe(self, rows: Sequence[Workload]) -> None:
        """Take the predictions of `rows` for measurements from now on."""
        latency, _ = self.of(rows)
        touched = set()
        for row, time in zip(rows, latency, strict=True):
            self._add(row, float(time), 0.0)
            touched.add(row.family)
        for family in touched & set(self._models):
            self._models[family] = self._models[family].refit(
                self._rows[family],
                np.asarray(self._times[family]),
                np.asarray(self._noise[family]),
            )


def _by_family(rows: Sequence[Workload]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        groups.setdefault(row.family, []).append(place)
    return groups
