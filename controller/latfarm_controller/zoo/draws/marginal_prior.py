"""MarginalPrior: nn-Meter's prior (section 5.2), each dimension drawn by itself. The baseline.

Convolutions, depthwise convolutions, fully connected layers and pools, in the paper's proportions.
What networks combine is lost: (224, 2160 channels in, 2048 out) is as likely here as its parts are.
`prior.KernelPrior` draws whole layers instead.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload

from latfarm_controller.zoo.draws.marginals import (
    CHANNELS,
    DIMENSIONS,
    Marginals,
    csv_marginals,
    quantile,
    zoo_marginals,
)
from latfarm_controller.zoo.draws.prior import MAX_BYTES, MAX_MACS
from latfarm_controller.zoo.family import Family

# N of Algorithm 2: 10,000 for conv, 5,000 for depthwise conv, 2,000 for each other kernel, of which
# table 6 has one fully connected and two pooling ones.
SHARES: Mapping[str, float] = MappingProxyType({"conv": 10, "dwconv": 5, "fc": 2, "pool": 4})
_PATIENCE = 400  # draws in a row without a new kernel before a kind counts as exhausted


class MarginalPrior:
    """Draws kernels whose dimensions are independent; the same seed and calls give the same ones.

    Map sizes, kernel sizes and strides are values that the layers have, as often as they have them.
    Channels come from the smoothed distribution (inverse transform sampling, linear between
    neighbours), so that counts between those of known networks come up too.

    Args:
        families: whose layers, as published; by default `marginals.published_classifiers()`.
        seed: of all draws.
        marginals: in place of those of the families.
        shares: weight of each kind of kernel; kinds that are left out are not drawn.
        max_bytes: largest kernel, its weights and activations together.
        max_macs: most multiply-adds of a kernel; independent draws reach far beyond any network's.

    Raises:
        ValueError: there is nothing to draw.
    """

    def __init__(
        self,
        families: Mapping[str, Family] | None = None,
        seed: int = 0,
        *,
        marginals: Marginals | None = None,
        shares: Mapping[str, float] = SHARES,
        max_bytes: int = MAX_BYTES,
        max_macs: int = MAX_MACS,
    ) -> None:
        self.marginals = zoo_marginals(families) if marginals is None else marginals
        self._shares = {k: s for k, s in shares.items() if s > 0 and k in self.marginals}
        if not self._shares:
            raise ValueError(f"a prior needs layers; kinds: {', '.join(DIMENSIONS)}")
        self._random = random.Random(f"marginal prior {seed}")
        self._max_bytes = max_bytes
        self._max_macs = max_macs
        self._drawn: set[str] = set()

    @staticmethod
    def from_csv(folder: Path, seed: int = 0) -> MarginalPrior:
        """A prior of the layers in conv.csv, dwconv.csv, fc.csv and pooling.csv.

        Raises:
            UsageError: a file is missing or no such table.
        """
        return MarginalPrior(seed=seed, marginals=csv_marginals(folder))

    def draw(
        self, count: int, rules: FusionRules, *, exclude: Collection[str] = ()
    ) -> list[Kernel]:
        """`count` kernels whose ids are new to this prior and not in `exclude`.

        Convolutions are followed by batch norm and ReLU, as nn-Meter measures them, as far as
        `rules` make one kernel of that. Kinds that run out give their share to the others; fewer
        than `count` come back only when all have run out.

        Args:
            count: how many.
            rules: how the platform fuses.
            exclude: kernel ids that must not be drawn.
        """
        barred = frozenset(exclude)
        left = dict(self._shares)
        found: list[Kernel] = []
        while len(found) < count and left:
            kind = self._random.choices(list(left), list(left.values()))[0]
            kernel = self._new(kind, rules, barred)
            if kernel is None:
                del left[kind]
            else:
                self._drawn.add(kernel.kernel_id)
                found.append(kernel)
        return found

    def _new(self, kind: str, rules: FusionRules, barred: Collection[str]) -> Kernel | None:
        """A kernel of a kind that was not drawn before; None where there seems to be none left."""
        for _ in range(_PATIENCE):
            kernel = self._kernel(kind, rules)
            if kernel is None or kernel.kernel_id in self._drawn or kernel.kernel_id in barred:
                continue
            return kernel
        return None

    def configuration(self, kind: str) -> dict[str, int]:
        """One draw of each dimension of a kind of kernel, each by itself."""
        return {
            name: round(quantile(values, self._random.random()))
            if name in CHANNELS
            else self._random.choice(values)
            for name, values in self.marginals[kind].items()
        }

    def _kernel(self, kind: str, rules: FusionRules) -> Kernel | None:
        """One drawn kernel; None where it is too large or cannot be."""
        average = kind == "pool" and self._random.random() < 0.5
        try:
            graph = kernel_graph(kind, self.configuration(kind), average=average)
        except GraphError:  # a pool wider than its map
            return None
        kernel = split(graph, rules)[0]
        work = workload(kernel)
        size_bytes = work.input_bytes + work.output_bytes + work.weight_bytes
        return kernel if size_bytes <= self._max_bytes and work.macs <= self._max_macs else None


def kernel_graph(kind: str, sizes: Mapping[str, int], *, average: bool = False) -> Graph:
    """The network that is one layer: conv or dwconv with batch norm and ReLU, fc, or pool.

    Args:
        kind: one of `DIMENSIONS`.
        sizes: of each of its dimensions.
        average: a pool's mean in place of its maximum.

    Raises:
        GraphError: the sizes make no such layer.
    """
    b = GraphBuilder(kind)
    if kind == "fc":
        return b.build([b.fc(b.input((1, sizes["cin"])), sizes["cout"])])
    x = b.input((1, sizes["cin"], sizes["hw"], sizes["hw"]))
    kernel, stride = sizes["kernel"], sizes["stride"]
    if kind == "pool":
        pool = b.avg_pool if average else b.max_pool
        return b.build([pool(x, kernel, stride, "same")])
    if kind == "dwconv":
        x = b.depthwise(x, kernel, stride)
    else:
        x = b.conv(x, sizes["cout"], kernel, stride)
    return b.build([b.relu(b.batch_norm(x))])
