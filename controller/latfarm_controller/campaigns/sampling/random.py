"""Sampler `random`: uniform draws from nn-Meter's sample space (Zhang et al. 2021, Table 5).

The baseline of the paper's Table 10. Each value of a dimension is as likely as another: most draws
are layers that no network has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.layers import LayerFilter, draw_new
from latfarm_controller.campaigns.sampling.samplers import EVERYTHING, Excluded, SamplingScope
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
"""Table 5."""


class RandomSampler:
    """Convolutions, depthwise ones, fully connected layers and pools in the paper's proportions.

    Args:
        count: how many kernels.
        rules: how the platform fuses.
        excluded: kernels that are never drawn.
        seed: of all draws.
        batch: kernels in a batch.
        scope: what may be drawn.
    """

    def __init__(
        self,
        count: int,
        rules: FusionRules,
        excluded: Excluded,
        *,
        seed: int = 0,
        batch: int = 50,
        scope: SamplingScope = EVERYTHING,
    ) -> None:
        self._left = count
        self._batch = batch
        self._random = Random(f"random sampler {seed}")
        self._gate = LayerFilter(rules, excluded, scope.most_macs)
        self._shares = dict(scope.shares(SHARES))

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`; what was measured plays no part."""
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
        average = kind == "pool" and self._random.random() < 0.5
        return self._gate.kernel(lambda: kernel_graph(kind, sizes, average=average))
