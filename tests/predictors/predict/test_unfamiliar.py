"""A corrector's interval is wider for a network with kernels that resemble nothing measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.sample import load_sample


class SumOfKernels:
    """A corrector that tells the sum of kernels, with the same interval for every network."""

    method = "nnlp"
    calibration = ScorePool(np.linspace(0.01, 0.1, 40))

    def predict(self, networks: Sequence[KernelSum]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each network."""
        return np.array([each.sum_ms for each in networks]), np.ones(len(networks))

    def state(self) -> ModelState:
        """Nothing."""
        return ModelState("none")


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    return replace(load_sample(), corrector=SumOfKernels())


def network(channels: int, *, unknown: bool = False) -> Graph:
    builder = GraphBuilder("net")
    x = builder.relu(builder.conv(builder.input((1, 16, 28, 28)), channels, 3))
    if unknown:
        x = builder.append("NobodyKnows", (x,), {}, builder.type_of(x))
    return builder.build([builder.relu(builder.conv(x, channels, 3))])


def width(predictor: PlatformPredictor, graph: Graph, coverage: float = 0.9) -> float:
    """Upper over lower end of the interval."""
    low, high = predictor.predict(graph, coverage).interval_ms
    return high / low


def test_familiar_networks_keep_the_interval_of_the_corrector(
    predictor: PlatformPredictor,
) -> None:
    factor, _ = SumOfKernels.calibration.factor(0.9)
    assert width(predictor, network(24)) == pytest.approx(float(np.exp(2.0 * factor)))


def test_an_unknown_op_or_a_huge_kernel_widens_it(predictor: PlatformPredictor) -> None:
    plain = width(predictor, network(24))
    unknown = predictor.predict(network(24, unknown=True))
    assert unknown.unsupported
    assert width(predictor, network(24, unknown=True)) > 1.05 * plain
    assert width(predictor, network(200_000)) > 1.5 * plain
    both = predictor.predict_many([network(24), network(24, unknown=True)])
    assert [each.interval_ms for each in both] == [
        predictor.predict(network(24)).interval_ms,
        unknown.interval_ms,
    ]
