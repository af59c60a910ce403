"""Sampler `nn-meter`: adaptive data sampling as published (Zhang et al. 2021, Algorithm 2).

Draws of the marginal prior train a random forest. Around each layer of the test set TD that the
forest predicts badly, further layers are drawn that differ in their channels only; this is repeated
until TD is predicted well. TD steers the draws and is measured as well, so that it cannot judge the
accuracy. `judge.Judge` does that, with kernels that the sampler is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random

from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import main_node
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller import zoo
from latfarm_controller.campaigns.sampling.base import SamplingTask
from latfarm_controller.campaigns.sampling.layers import LayerFilter, draw_new, near, usable
from latfarm_controller.campaigns.sampling.random import SPACE
from latfarm_controller.zoo.draws.marginal_prior import SHARES, MarginalPrior, kernel_graph
from latfarm_controller.zoo.draws.marginals import CHANNELS, DIMENSIONS, configuration

AROUND = 10
"""M in the paper: number of layers drawn around each layer with a large error."""
PAPER_PRIOR_SHARE = 10 / 16
"""Share of the kernels that the paper draws before the first iteration: of the 16,000 convolutions
that Algorithm 2 collects, 10,000 are draws of the prior and 6,000 are fine-grained."""
_TEST_KINDS = {"conv": 2800, "dwconv": 500}
"""Number of layers of each kind in the published test set TD."""
_PRIOR_LAYERS = 21_000
"""Number of layers that the paper draws from its prior beside TD: N = 10,000 + 5,000 + 6,000."""
_TEST_SHARE = sum(_TEST_KINDS.values()) / (sum(_TEST_KINDS.values()) + _PRIOR_LAYERS)
"""Share of TD in the kernels before the first iteration, as published."""
_TO_TEST = 0.2
"""Probability that a layer drawn in an iteration joins TD instead of the training set."""
_TREES = 50
"""Number of trees of the forest."""
_LEAST_ROWS = 3
"""Number of samples of a family below which no forest is trained and all of TD counts as wrong."""


def initial_count(count: int, initial: int, prior_share: float | None) -> int:
    """Number of kernels before the first iteration.

    A fixed number would give Algorithm 2 another proportion at every budget, so that it would be
    compared in a form that nobody published.

    Args:
        count: number of kernels in all.
        initial: this number, where no share is asked for.
        prior_share: share of all kernels, `PAPER_PRIOR_SHARE` as published; None: none is asked
            for.
    """
    return initial if prior_share is None else max(1, round(count * prior_share))


class NnMeterSampler:
    """Algorithm 2, its sizes N, TD and batches scaled to a budget.

    Args:
        task: what to draw. Its families are those whose layers the prior is made of, all
            classifiers where it names none; `initial` counts the prior's draws and TD together.
        threshold: e in the paper, the relative error above which a layer of TD counts as
            inaccurate.
        target: the sampler ends when this share of TD is accurate; None: when all of it is.
    """

    def __init__(
        self, task: SamplingTask, *, threshold: float = 0.1, target: float | None = None
    ) -> None:
        names = task.families
        families = None if names is None else {name: zoo.find(name)[0] for name in names}
        scope = task.scope
        self._left = task.count
        self._rules = task.rules
        self._initial = min(task.initial, task.count)
        self._batch = task.batch
        self._threshold = threshold
        self._target = 1.0 if target is None else target
        self._scope = scope
        self._prior = MarginalPrior(
            families, task.seed, shares=scope.shares(SHARES), max_macs=int(scope.most_macs)
        )
        self._random = Random(f"nn-meter sampler {task.seed}")
        self._gate = LayerFilter(task.rules, task.excluded, scope.most_macs)
        self._test: set[str] = set()
        self._started = False

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`."""
        if self._left <= 0:
            return []
        if self._started:
            kernels = self._fine_grained(self._inaccurate(samples))[: self._left]
            self._test.update(
                kernel.kernel_id for kernel in kernels if self._random.random() < _TO_TEST
            )
        else:
            self._started = True
            tests = self._test_set(round(self._initial * _TEST_SHARE))
            self._test.update(kernel.kernel_id for kernel in tests)
            kernels = self._from_prior(self._initial - len(tests)) + tests
        self._left = self._left - len(kernels) if kernels else 0
        return kernels

    def _from_prior(self, count: int) -> list[Kernel]:
        found: list[Kernel] = []
        while len(found) < count:
            drawn = self._prior.draw(count - len(found), self._rules, exclude=self._gate.barred)
            if not drawn:
                break
            found += [kernel for kernel in drawn if self._gate.take(kernel)]
        return found

    def _test_set(self, count: int) -> list[Kernel]:
        """TD: sizes and strides from the whole sample space, with the channels of real layers."""
        kinds = {k: n for k, n in _TEST_KINDS.items() if self._tests(k)}
        found: list[Kernel] = []
        while len(found) < count and kinds:
            kind = self._random.choices(list(kinds), list(kinds.values()))[0]
            kernel = draw_new(lambda kind=kind: self._test_layer(kind))  # type: ignore[misc]
            if kernel is None:
                del kinds[kind]
            else:
                found.append(kernel)
        return found

    def _tests(self, kind: str) -> bool:
        return kind in self._prior.marginals and self._scope.holds(kind)

    def _test_layer(self, kind: str) -> Kernel | None:
        sizes = {
            name: self._random.choice(
                self._prior.marginals[kind][name] if name in CHANNELS else SPACE[name]
            )
            for name in DIMENSIONS[kind]
        }
        return self._gate.kernel(lambda: kernel_graph(kind, sizes))

    def _inaccurate(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """X* in the paper: layers of TD with an error above the threshold, the worst first."""
        errors = self._errors(samples)
        wrong = [(-error, place) for place, (error, _) in enumerate(errors)]
        worst = [errors[place][1] for error, place in sorted(wrong) if -error > self._threshold]
        accurate = 1.0 - len(worst) / len(errors) if errors else 1.0
        return [] if accurate >= self._target else worst

    def _errors(self, samples: Sequence[KernelSample]) -> list[tuple[float, Kernel]]:
        """The relative error of each layer of TD, predicted by a forest trained on other layers."""
        from latfarm_predictors.models.trees.forest import Forest

        groups: dict[str, list[KernelSample]] = {}
        for sample in usable(samples):
            groups.setdefault(workload(sample.kernel).family, []).append(sample)
        errors: list[tuple[float, Kernel]] = []
        for rows in groups.values():
            train = [row for row in rows if row.kernel.kernel_id not in self._test]
            test = [row for row in rows if row.kernel.kernel_id in self._test]
            if not test:
                continue
            if len(train) < _LEAST_ROWS:
                errors += [(inf, row.kernel) for row in test]
                continue
            forest = Forest(trees=_TREES).fit(
                [workload(row.kernel) for row in train], [row.latency_ms for row in train]
            )
            predicted, _ = forest.predict([workload(row.kernel) for row in test])
            errors += [
                (abs(float(guess) / row.latency_ms - 1.0), row.kernel)
                for guess, row in zip(predicted, test, strict=True)
            ]
        return errors

    def _fine_grained(self, layers: Sequence[Kernel]) -> list[Kernel]:
        """`AROUND` new layers around each of these layers, until the batch is full."""
        found: list[Kernel] = []
        for layer in layers:
            if len(found) >= self._batch:
                break
            for _ in range(min(AROUND, self._batch - len(found))):
                kernel = draw_new(lambda layer=layer: self._beside(layer))  # type: ignore[misc]
                if kernel is None:
                    break
                found.append(kernel)
        return found

    def _beside(self, layer: Kernel) -> Kernel | None:
        """The same layer with other channels; input size, kernel size and stride are kept."""
        node = main_node(layer.graph)
        described = configuration(layer.graph, node)
        if described is None:
            return None
        kind, values = described
        sizes = {
            name: near(size, self._random) if name in CHANNELS else size
            for name, size in zip(DIMENSIONS[kind], values, strict=True)
        }
        average = node.op == "AveragePool"
        return self._gate.kernel(lambda: kernel_graph(kind, sizes, average=average))
