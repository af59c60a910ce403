"""Predictors that look at a network as a whole: what one is, and the two simplest.

`NetworkModel` is the place for predictors that learn from whole networks (a graph neural network, a
regression on totals) and know nothing of kernels. One that is added to `NETWORK_MODELS`, and its
name to `baseline_names.NETWORKS`, is fitted to the calibration networks of a platform, saved with
its bundle, known to `PlatformPredictor.predict_baseline`, and stands in every comparison.
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


class NetworkModel(Protocol):
    """A regressor of whole networks' latency.

    Deterministic: the same data gives the same model. Not thread-safe while fitting; a fitted model
    is never changed by `predict` and may be shared.
    """

    kind: str

    def fit(self, networks: Sequence[NetworkSample]) -> Self:
        """Learn from networks measured whole, all latencies positive and finite.

        Raises:
            NotEnoughDataError: fewer networks than the model needs; the bundle then has none.
        """
        ...

    def predict(self, graphs: Sequence[Graph]) -> tuple[Array, Array]:
        """Latency in ms, positive, and the standard deviation of its logarithm; each (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned; `from_state` gives back a model that predicts the same bits."""
        ...

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """A fitted model from its state."""
        ...


class Totals:
    """Linear in a network's multiply-adds, or in these and bytes moved (nn-Meter, section 7.1).

    Bytes are those of feature maps and weights, the paper's memory access cost: each kernel reads
    its inputs and weights and writes its outputs once. Needs 3 networks.

    Args:
        rules: that tell which feature maps are written at all.
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
        """The same of one network; those of the last ones are remembered, for who fits anew."""
        # the graph is kept with what was read of it: no other can have its identity meanwhile
        known = self._read.find([id(graph)])[0]
        if known is None:
            table = as_table(workloads_of(graph, find_parts(graph, self.rules)))
            known = (graph, float(table.macs.sum()), float(table.total_bytes.sum()))
            self._read.keep([(id(graph), known)])
        return known[1], known[2]


@dataclass(frozen=True)
class Maker:
    """Makes a network model: unfitted, given a platform's fusion rules, or from its state."""

    make: Callable[[FusionRules], NetworkModel]
    from_state: Callable[[ModelState], NetworkModel]


NETWORK_MODELS: Mapping[str, Maker] = MappingProxyType(
    {
        "flops": Maker(lambda rules: Totals(rules, traffic=False), Totals.from_state),
        "flops_mac": Maker(lambda rules: Totals(rules, traffic=True), Totals.from_state),
    }
)
"""Network models by the names of their baselines."""
