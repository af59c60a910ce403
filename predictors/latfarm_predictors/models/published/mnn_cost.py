"""MNN's cost model (Jiang et al. 2020, section 3.2), which predicts latency without measuring.

Eq. 5: C_op = MUL / FLOPS * 1000 + t_schedule, with FLOPS and t_schedule from appendix C. MUL is the
number of multiplications of the direct algorithm, or, with `schemes=True`, of the algorithm that
Eqs. 2, 3 and 9 choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.mnn_backends import MnnBackend, cpu
from latfarm_predictors.features.mnn_schemes import MNN_3, PAPER, MnnTiles, Schemes, choose
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.models.base import ModelState, check_targets, robust_sigma

UNMEASURED_SIGMA = 1.0
"""Log-sigma before anything is measured: a factor of e in both directions."""

CONVERTED = FusionRules(
    {
        (first, second): "fused"
        for first in ("Conv", "BatchNormalization")
        for second in ("BatchNormalization", "Relu", "Clip")
    }
)
"""Ops that MNN's converter fuses into a convolution (section 3.1: "operator fusion")."""

_LEAST_MS = 1e-9
"""Smallest latency in ms of a kernel, so that its logarithm is finite."""


class MnnCost:
    """Eq. 5 for kernels. It predicts without a fit; a fit needs 1 row.

    Args:
        backend: what runs the kernels; one CPU thread if None.
        schemes: whether to count the operations of the algorithm that MNN chooses, instead of those
            of the direct algorithm.
        scaled: whether `fit` learns one factor for all kernels: the median of measured / predicted.
        tiles: the output tiles that Winograd's algorithm may use.
    """

    kind = "mnn-cost"

    def __init__(
        self,
        backend: MnnBackend | None = None,
        *,
        schemes: bool = True,
        scaled: bool = False,
        tiles: MnnTiles = MNN_3,
    ) -> None:
        self.backend = backend or cpu(1)
        self.schemes = schemes
        self.scaled = scaled
        self.tiles = tiles
        self.factor = 1.0
        self.sigma = UNMEASURED_SIGMA

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`: learns the size of its errors, and the factor if `scaled`."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=1)
        self.factor = 1.0
        ratio = np.log(latency / self.cost_ms(table))
        if self.scaled:
            middle = float(np.median(ratio))
            self.factor = float(np.exp(middle))
            ratio = ratio - middle
        self.sigma = robust_sigma(ratio)
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        other = type(self)(self.backend, schemes=self.schemes, scaled=self.scaled, tiles=self.tiles)
        return other.fit(workloads, latency_ms, noise)

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`."""
        table = as_table(workloads)
        return self.cost_ms(table), np.full(len(table), self.sigma)

    def cost_ms(self, table: Table) -> Array:
        """C_op of each kernel in milliseconds, shape (n,)."""
        chosen = choose(table, self.tiles)
        counted = chosen.operations if self.schemes else chosen.multiplications
        cost = counted / self.backend.multiplications_per_ms + self.backend.schedule_ms
        return np.maximum(self.factor * cost, _LEAST_MS)

    def network_ms(self, graph: Graph) -> float:
        """C_backend (Eq. 4) in ms: the sum over a network's ops, without those that do no work."""
        table, _ = operators(graph)
        return float(self.cost_ms(table).sum())

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={
                "backend": asdict(self.backend),
                "schemes": self.schemes,
                "scaled": self.scaled,
                "tiles": asdict(self.tiles),
                "factor": self.factor,
                "sigma": self.sigma,
            },
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        values = state.values
        told = values.get("tiles")  # bundles of older versions have those of the paper
        model = cls(
            MnnBackend(**values["backend"]),
            schemes=bool(values["schemes"]),
            scaled=bool(values["scaled"]),
            tiles=PAPER if told is None else _tiles_of(told),
        )
        model.factor, model.sigma = float(values["factor"]), float(values["sigma"])
        return model


def _tiles_of(told: Mapping[str, Any]) -> MnnTiles:
    """The output tiles that a state holds; a file has lists in the place of tuples."""
    return MnnTiles(tuple(int(side) for side in told["input_sides"]), int(told["positions"]))


def operators(graph: Graph) -> tuple[Table, list[str]]:
    """Each op of a network as a workload of its own, and the names of the nodes.

    Batch norms and activations that MNN's converter fuses do not count.
    """
    kernels = [
        kernel
        for kernel in split(graph, CONVERTED)
        if any(node.op not in FREE_OPS for node in kernel.graph.nodes)
    ]
    return as_table([workload(kernel) for kernel in kernels]), [k.node_names[0] for k in kernels]


def algorithms(graph: Graph) -> tuple[list[str], Schemes]:
    """Names of the nodes of a network, and the algorithm by which each would be computed."""
    table, names = operators(graph)
    return names, choose(table)
