"""Which kernels to measure next: samplers behind one Protocol, to be compared on equal terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

import numpy as np
from latfarm_predictors.fusion import FusionRules, split
from latfarm_predictors.graph import Graph
from latfarm_predictors.kernels import Kernel
from latfarm_predictors.samples import KernelSample
from latfarm_predictors.table import identity
from latfarm_predictors.workload import Workload, workload

from latfarm_controller import zoo
from latfarm_controller.zoo.prior import KernelPrior

if TYPE_CHECKING:
    from latfarm_predictors.models.roofline_gp import RooflineGP


class Sampler(Protocol):
    """Draws kernels in batches: a function of its seed and of the samples it was shown, no more."""

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """Kernels to measure next, none of them drawn before; empty when there are enough.

        Args:
            samples: all that was measured so far, in the order in which it was drawn. Kernels that
                failed are missing.
        """
        ...


@dataclass(frozen=True)
class Excluded:
    """Kernels that must not be measured, as those of held-out networks.

    By id, and by what predictors can see of a kernel: two ids may be one configuration to them
    (other paddings, other clip bounds), and a twin would give the held-out kernel away.
    """

    ids: frozenset[str] = frozenset()
    configurations: frozenset[tuple[object, ...]] = frozenset()

    @staticmethod
    def of(graphs: Iterable[Graph], rules: FusionRules, ids: Iterable[str] = ()) -> Excluded:
        """All kernels of `graphs`, and `ids`."""
        kernels = [kernel for graph in graphs for kernel in split(graph, rules)]
        return Excluded(
            frozenset((*ids, *(kernel.kernel_id for kernel in kernels))),
            frozenset(identity(workload(kernel)) for kernel in kernels),
        )

    def __contains__(self, kernel: Kernel) -> bool:
        """Whether it is one of them."""
        return kernel.kernel_id in self.ids or identity(workload(kernel)) in self.configurations


class PriorSampler:
    """One batch of representative draws: joint configurations from zoo x resolution x width.

    Args:
        count: how many kernels.
        rules: how networks are cut into kernels.
        excluded: kernels that are never drawn.
        families: names of zoo families to draw from; all `sampled` where None.
    """

    def __init__(
        self,
        count: int,
        rules: FusionRules,
        excluded: Excluded,
        *,
        seed: int = 0,
        families: Collection[str] | None = None,
    ) -> None:
        self._count = count
        self._draws = _Draws(chosen_families(families), rules, excluded, seed)
        self._drawn = False

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        del samples
        if self._drawn:
            return []
        self._drawn = True
        return self._draws.draw(self._count)


class _Draws:
    """The prior without the excluded kernels and without those taken elsewhere."""

    def __init__(
        self,
        families: Mapping[str, zoo.Family],
        rules: FusionRules,
        excluded: Excluded,
        seed: int,
    ) -> None:
        self._prior = KernelPrior(families, seed)
        self._rules = rules
        self._excluded = excluded
        self.taken: set[str] = set()

    def draw(self, count: int) -> list[Kernel]:
        """`count` kernels; fewer only when the prior has no more."""
        found: list[Kernel] = []
        while len(found) < count:
            drawn = self._prior.draw(
                count - len(found), self._rules, exclude=self._excluded.ids | self.taken
            )
            if not drawn:
                break
            found += [kernel for kernel in drawn if kernel not in self._excluded]
        self.taken.update(kernel.kernel_id for kernel in found)
        return found


class AdaptiveSampler:
    """Representative draws first; then batches, half of them where a model is unsure.

    The unsure half is taken among layers of real networks, by the predictive deviation of a
    Gaussian process times the layer's share of its network: what it adds to that network's error.
    After some picks the process is told its own predictions (kriging believer, Ginsbourger et al.
    2010), so that a batch does not crowd in one place. Picking by variance alone leaves the
    distribution that is predicted for; the representative half keeps to it.

    Args:
        initial: representative draws before the first batch.
        batch: kernels in a batch.
    """

    def __init__(
        self,
        count: int,
        rules: FusionRules,
        excluded: Excluded,
        *,
        seed: int = 0,
        families: Collection[str] | None = None,
        initial: int = 100,
        batch: int = 50,
    ) -> None:
        self._count = count
        self._rules = rules
        self._initial = min(initial, count)
        self._batch = batch
        self._seed = seed
        self._families = chosen_families(families)
        self._excluded = excluded
        self._draws = _Draws(self._families, rules, excluded, seed)
        self._drawn = 0
        self._layers: list[Layer] | None = None

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        left = self._count - self._drawn
        if left <= 0:
            return []
        if self._drawn == 0:
            kernels = self._draws.draw(self._initial)
        else:
            size = min(self._batch, left)
            kernels = self._unsure(size // 2, samples)
            kernels += self._draws.draw(size - len(kernels))
        if not kernels:
            self._drawn = self._count
            return []
        self._drawn += len(kernels)
        return kernels

    def _unsure(self, count: int, samples: Sequence[KernelSample]) -> list[Kernel]:
        if self._layers is None:
            layers = network_layers(self._families, self._rules, seed=self._seed)
            self._layers = [layer for layer in layers if layer.kernel not in self._excluded]
        taken = self._draws.taken
        left = [layer for layer in self._layers if layer.kernel.kernel_id not in taken]
        picked = pick_unsure(left, samples, count)
        taken.update(kernel.kernel_id for kernel in picked)
        return picked


@dataclass
class Layer:
    """A distinct kernel of the zoo's networks; `networks`: how often each of them runs it."""

    kernel: Kernel
    workload: Workload
    networks: dict[int, int] = field(default_factory=dict)


def chosen_families(names: Collection[str] | None) -> Mapping[str, zoo.Family]:
    """The zoo families of those names, or all that are `sampled`.

    Raises:
        UsageError: there is no such family.
    """
    if names is None:
        return zoo.calibration_families()
    return {name: zoo.find(name)[0] for name in names}


def network_layers(
    families: Mapping[str, zoo.Family], rules: FusionRules, *, seed: int = 0
) -> list[Layer]:
    """The distinct kernels of each family as published and once scaled at random."""
    random = Random(seed)
    graphs: list[Graph] = []
    for family in families.values():
        graphs.append(family.build(seed=seed))
        width = random.choice((0.5, 0.75, 1.25))
        graphs.append(family.build(width=width, seed=seed + 1))
    layers: dict[str, Layer] = {}
    for index, graph in enumerate(graphs):
        for kernel in split(graph, rules):
            layer = layers.setdefault(kernel.kernel_id, Layer(kernel, workload(kernel)))
            layer.networks[index] = layer.networks.get(index, 0) + 1
    return list(layers.values())


def pick_unsure(
    layers: Sequence[Layer], samples: Sequence[KernelSample], count: int, *, rounds: int = 4
) -> list[Kernel]:
    """The layers whose uncertainty adds most to the error of the networks that they are part of.

    Args:
        layers: candidates, none of them measured.
        samples: what was measured.
        count: how many to pick.
        rounds: how often the models are told of the picks in between.
    """
    import scipy.linalg  # noqa: F401 - limits only reach libraries that are loaded
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    # Small matrices: with a thread for every core of a busy host, each product waits for the
    # slowest (measured: 51 s against 1 s). And the sums of one thread are the same everywhere.
    with threadpool_limits(1):
        return _pick_unsure(layers, samples, count, rounds)


def _pick_unsure(
    layers: Sequence[Layer], samples: Sequence[KernelSample], count: int, rounds: int
) -> list[Kernel]:
    belief = _Belief(samples)
    left = list(layers)
    picked: list[Layer] = []
    for number in range(rounds):
        want = count * (number + 1) // rounds - len(picked)
        if want <= 0 or not left:
            continue
        latency, deviation = belief.of([layer.workload for layer in left])
        totals: dict[int, float] = {}
        for layer, time in zip(left, latency, strict=True):
            for network, times in layer.networks.items():
                totals[network] = totals.get(network, 0.0) + times * time
        scores = []
        for index, (layer, time, sigma) in enumerate(zip(left, latency, deviation, strict=True)):
            share = max(times * time / totals[net] for net, times in layer.networks.items())
            # Ties by place in the list: the same samples give the same picks.
            scores.append((-sigma * share, index))
        chosen = {index for _, index in sorted(scores)[:want]}
        new = [left[index] for index in sorted(chosen)]
        belief.believe([layer.workload for layer in new])
        picked += new
        left = [layer for index, layer in enumerate(left) if index not in chosen]
    return [layer.kernel for layer in picked]


_UNKNOWN_SIGMA = 0.7
_LEAST_ROWS = 12


class _Belief:
    """One Gaussian process per family of workloads that has enough samples."""

    def __init__(self, samples: Sequence[KernelSample]) -> None:
        # Here and not above: SciPy and its like would be loaded by every command.
        import numpy as np
        from latfarm_predictors.models.roofline_gp import RooflineGP

        self._np = np
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
            if len(rows) >= _LEAST_ROWS:
                model = RooflineGP(steps=30)
                self._models[family] = model.fit(rows, self._times[family], self._noise[family])

    def _add(self, row: Workload, latency_ms: float, noise: float) -> None:
        self._rows.setdefault(row.family, []).append(row)
        self._times.setdefault(row.family, []).append(max(latency_ms, 1e-6))
        self._noise.setdefault(row.family, []).append(noise)

    def of(self, rows: Sequence[Workload]) -> tuple[list[float], list[float]]:
        """Latencies in ms and the deviations of their logarithms that measuring would lower."""
        latency = [0.0] * len(rows)
        sigma = [_UNKNOWN_SIGMA] * len(rows)
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            groups.setdefault(row.family, []).append(index)
        for family, indices in groups.items():
            model = self._models.get(family)
            if model is None:
                for index in indices:
                    latency[index] = self._guess(rows[index])
                continue
            mean, deviation = model.predict([rows[i] for i in indices])
            for index, time, spread in zip(indices, mean, deviation, strict=True):
                latency[index] = float(time)
                own = max(float(spread) ** 2 - model.noise_sigma**2, 0.0)
                sigma[index] = min(own**0.5, _UNKNOWN_SIGMA)
        return latency, sigma

    def _guess(self, row: Workload) -> float:
        # No model yet: the median pace of all samples, by bytes and operations together.
        def work(one: Workload) -> float:
            return one.macs / 8.0 + one.input_bytes + one.output_bytes + one.weight_bytes + 1.0

        paces = sorted(
            time / work(one)
            for family, known in self._rows.items()
            for one, time in zip(known, self._times[family], strict=True)
        )
        return work(row) * (paces[len(paces) // 2] if paces else 1e-6)

    def believe(self, rows: Sequence[Workload]) -> None:
        """Take the predictions of `rows` for measured."""
        touched = set()
        for row in rows:
            model = self._models.get(row.family)
            if model is None:
                continue
            mean, _ = model.predict([row])
            self._add(row, float(mean[0]), 0.0)
            touched.add(row.family)
        for family in touched:
            self._models[family] = self._models[family].refit(
                self._rows[family],
                np.asarray(self._times[family]),
                np.asarray(self._noise[family]),
            )
