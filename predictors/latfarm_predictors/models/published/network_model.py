"""Baselines that learn from whole networks and know nothing of kernels; the two simplest ones.

To add one, for example a graph neural network, write a `NetworkModel`, add it to `NETWORK_MODELS`,
and add its name to `baselines.names.NETWORKS`. It is then fitted to the calibration networks of
every platform, saved with the bundle, known to `baseline_ms`, and part of every comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, Self

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import workloads_of
from latfarm_predictors.memo import Memo
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.published.analytic import Linear
from latfarm_predictors.samples import NetworkSample

_REMEMBERED = 256
"""Number of networks whose totals are remembered."""


class NetworkModel(Protocol):
    """A regressor of the latency of whole networks.

    It is deterministic: the same data gives the same model. It is not thread-safe while it is
    fitted. Predicting never changes a fitted model, so threads may share one.
    """

    kind: str

    def fit(self, networks: Sequence[NetworkSample]) -> Self:
        """Learn from networks that were measured as a whole; all latencies are positive and finite.

        Raises:
            NotEnoughDataError: the model needs more networks; a bundle is then made without it.
        """
        ...

    def predict(self, graphs: Sequence[Graph]) -> tuple[Array, Array]:
        """Latency in ms, positive, and the standard deviation of its logarithm; both (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned, as plain data; a model made from it predicts the same bits."""
        ...

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A fitted model from its state."""
        ...


class Totals:
    """Latency linear in a network's multiply-adds, or in these and the bytes that it moves.

    Needs 3 networks (nn-Meter, section 7.1). Bytes are the paper's memory access cost: every kernel
    reads its inputs and weights once and writes its outputs once.

    Args:
        rules: how the platform fuses ops; a feature map inside a kernel is not written.
        traffic: whether bytes count.
    """

    kind = "totals"

    def __init__(self, rules: FusionRules, *, traffic: bool) -> None:
        self.rules = rules
        self.linear = Linear(traffic=traffic)
        self._read: Memo[int, tuple[Graph, float, float]] = Memo(_REMEMBERED)

    def fit(self, networks: Sequence[NetworkSample]) -> Self:
        """See `NetworkModel.fit`."""
        if len(networks) < 3:
            raise NotEnoughDataError(f"{len(networks)} networks, a regression on totals needs 3")
        latency = np.array([network.latency_ms for network in networks], dtype=np.float64)
        self.linear.fit_totals(*self._totals([each.graph for each in networks]), latency)
        return self

    def predict(self, graphs: Sequence[Graph]) -> tuple[Array, Array]:
        """See `NetworkModel.predict`."""
        latency = self.linear.predict_totals(*self._totals(graphs))
        return latency, np.full(len(latency), self.linear.sigma)

    def state(self) -> ModelState:
        """See `NetworkModel.state`."""
        return ModelState(
            self.kind, {"rules": self.rules.to_json()}, parts={"linear": self.linear.state()}
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `NetworkModel.from_state`."""
        linear = Linear.from_state(state.parts["linear"])
        model = cls(FusionRules.from_json(state.values["rules"]), traffic=linear.traffic)
        model.linear = linear
        return model

    def _totals(self, graphs: Sequence[Graph]) -> tuple[Array, Array]:
        """Multiply-adds and bytes of networks, each of shape (n,)."""
        found = [self._totals_of(graph) for graph in graphs]
        told = np.array(found, dtype=np.float64).reshape(len(graphs), 2)
        return told[:, 0], told[:, 1]

    def _totals_of(self, graph: Graph) -> tuple[float, float]:
        """Multiply-adds and bytes of one network, remembered for some networks."""
        # the graph is kept with its totals, so that no other graph can get the same id
        known = self._read.find([id(graph)])[0]
        if known is None:
            table = as_table(workloads_of(graph, find_parts(graph, self.rules)))
            known = (graph, float(table.macs.sum()), float(table.total_bytes.sum()))
            self._read.keep([(id(graph), known)])
        return known[1], known[2]


@dataclass(frozen=True)
class Maker:
    """Makes a network model.

    Attributes:
        make: makes an unfitted model, given a platform's fusion rules.
        from_state: makes a fitted model from its state.
    """

    make: Callable[[FusionRules], NetworkModel]
    from_state: Callable[[ModelState], NetworkModel]


NETWORK_MODELS: Mapping[str, Maker] = MappingProxyType(
    {
        "flops": Maker(lambda rules: Totals(rules, traffic=False), Totals.from_state),
        "flops_mac": Maker(lambda rules: Totals(rules, traffic=True), Totals.from_state),
    }
)
"""Network models by the names of their baselines."""
