"""Latency of a network by a baseline: kernels or operators summed, or the network as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.features.table import Array, Rows, as_table
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.workload import Workload, workloads_of
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.models.published.mnn_cost import MnnCost
from latfarm_predictors.models.published.network_model import NETWORK_MODELS
from latfarm_predictors.models.published.per_type import RECIPES
from latfarm_predictors.predict.kernel_estimates import estimate
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.usable import check_finite, usable_bundle

UNFUSED = FusionRules()
"""Rules by which every op that does work is a kernel; a view belongs to what made its data."""

_LEAST_NETWORKS = 3
"""A baseline that learns from networks needs this many of them."""


def baseline_ms(predictor: PlatformPredictor, graph: Graph, name: str) -> float:
    """Latency in ms of a network by a baseline.

    Args:
        predictor: the predictor with which the baseline was fitted.
        graph: the network.
        name: one of `BASELINES`.

    Raises:
        ValueError: there is no such baseline.
        NoBaselineError: the predictor was made without it.
        GraphError: the network has a kernel of a size that no board could run.
    """
    return BaselineSums(predictor, [graph]).latency_ms(name)[0]


class BaselineSums:
    """Latencies of some networks by any number of baselines.

    The networks are cut into kernels once; a kernel that several of them have is predicted once.

    Args:
        predictor: the predictor with which the baselines were fitted.
        graphs: the networks.
    """

    def __init__(self, predictor: PlatformPredictor, graphs: Sequence[Graph]) -> None:
        self._predictor = predictor
        self._graphs = graphs
        self._cut: dict[bool, _CutNetworks] = {}

    def latency_ms(self, name: str) -> list[float]:
        """Latency in ms of each network by a baseline.

        A baseline that learns from networks needs 3 of them. Where fewer were measured, our
        roofline over all kernels answers in its place.

        Args:
            name: one of `BASELINES`.

        Raises:
            ValueError: there is no such baseline.
            NoBaselineError: the predictor was made without it.
            GraphError: a network has a kernel of a size that no board could run.
            BundleError: the predictor is of a bundle whose models do not fit together.
        """
        with usable_bundle(self._predictor.bundle):
            found = self._latency_ms(name)
            if np.ndim(found) != 1:
                raise ValueError(f"{name} gives several latencies for a network")
        check_finite(self._predictor.bundle or self._predictor.platform, np.array(found))
        return found

    def _latency_ms(self, name: str) -> list[float]:
        """See `latency_ms`."""
        if name not in BASELINES:
            raise ValueError(f"no baseline {name!r}; known: {', '.join(BASELINES)}")
        predictor, baselines = self._predictor, self._predictor.baselines
        if name in NETWORK_MODELS:
            if name in baselines.names or len(predictor.correction.residuals) >= _LEAST_NETWORKS:
                whole: list[float] = baselines.network(name).predict(self._graphs)[0].tolist()
                return whole
            name = "roofline"
        if name.startswith("mnn_cost"):
            cost = baselines.kernel(name)
            assert isinstance(cost, MnnCost)  # what that name is read as, whatever a bundle says
            # as published, a call costs what its backend's schedule says, and nothing else
            return [
                cost.network_ms(graph) + (_fixed_ms(predictor, graph) if cost.scaled else 0.0)
                for graph in self._graphs
            ]
        cut = self._cut_by(unfused=name == "operators")
        latency = self._kernels_ms(name, cut.rows) if cut.rows else np.zeros(0)
        return [
            float(latency[places].sum()) + _fixed_ms(predictor, graph)
            if len(places)
            else predictor.call_overhead_ms
            for graph, places in zip(self._graphs, cut.places, strict=True)
        ]

    def _kernels_ms(self, name: str, rows: Sequence[Workload]) -> Array:
        """Latency of kernels by a baseline, shape (n,)."""
        predictor, baselines = self._predictor, self._predictor.baselines
        if name in ("sum", "operators"):
            return estimate(predictor.models, predictor.measured, rows).latency_ms
        table = as_table(rows)
        if name == "roofline":
            return predictor.models.overall.latency_ms(table)
        if name in RECIPES:
            return baselines.per_type(name, predictor.confidence).predict(table)[0]
        return baselines.kernel(name).predict(table)[0]

    def _cut_by(self, *, unfused: bool) -> _CutNetworks:
        """The networks cut into kernels, by the platform's rules or into single operators."""
        if unfused not in self._cut:
            rules = UNFUSED if unfused else self._predictor.rules
            found: dict[Workload, int] = {}
            places = [
                [found.setdefault(row, len(found)) for row in workloads_of(g, find_parts(g, rules))]
                for g in self._graphs
            ]
            self._cut[unfused] = _CutNetworks(
                list(found), [np.array(of_one, dtype=np.intp) for of_one in places]
            )
        return self._cut[unfused]


class _CutNetworks(NamedTuple):
    """Some networks as kernels.

    Attributes:
        rows: the workloads of all kernels that differ.
        places: of each network, where in `rows` its kernels are.
    """

    rows: list[Workload]
    places: list[Rows]


def _fixed_ms(predictor: PlatformPredictor, graph: Graph) -> float:
    """What a call costs, and moving the network's inputs and outputs, in ms."""
    return predictor.call_overhead_ms + predictor.transfer_ms_per_mb * boundary_mb(graph)
