"""Sampler `random`: uniform draws from nn-Meter's sample space (Zhang et al. 2021, Table 5).

It is the baseline of the paper's Table 10. All values of a dimension are equally likely, so that
most draws are layers that no network contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.base import SamplingTask
from latfarm_controller.campaigns.sampling.layers import LayerFilter, draw_new
from latfarm_controller.zoo.draws.marginal_prior import SHARES, kernel_graph
from latfarm_controller.zoo.draws.marginals import DIMENSIONS

SPACE: Mapping[str, Sequence[int]] = MappingProxyType(
    {
        "hw": (224, 112, 56, 32, 28, 27, 14, 13, 8, 7, 1),
        "kernel": (1, 3, 5, 7, 9),
        "stride": (1, 2, 4),
        "cin": range(3, 2161),
        "cout": range(16, 2049),
    }
)
"""Table 5: the values of each dimension of a layer. `hw` is the height and width of its input."""
_AVERAGE = 0.5
"""Probability that a pool takes averages; otherwise it takes maxima."""


class RandomSampler:
    """Convolutions, depthwise ones, fully connected layers and pools in the paper's proportions.

    Args:
        task: what to draw.
    """

    def __init__(self, task: SamplingTask) -> None:
        self._left = task.count
        self._batch = task.batch
        self._random = Random(f"random sampler {task.seed}")
        self._gate = LayerFilter(task.rules, task.excluded, task.scope.most_macs)
        self._shares = dict(task.scope.shares(SHARES))

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`; the samples change nothing."""
        del samples
        found: list[Kernel] = []
        while len(found) < min(self._batch, self._left) and self._shares:
            kind = self._random.choices(list(self._shares), list(self._shares.values()))[0]
            kernel = draw_new(lambda kind=kind: self._draw(kind))  # type: ignore[misc]
            if kernel is None:
                del self._shares[kind]
            else:
                found.append(kernel)
        self._left -= len(found)
        return found

    def _draw(self, kind: str) -> Kernel | None:
        sizes = {name: self._random.choice(SPACE[name]) for name in DIMENSIONS[kind]}
        average = kind == "pool" and self._random.random() < _AVERAGE
        return self._gate.kernel(lambda: kernel_graph(kind, sizes, average=average))
