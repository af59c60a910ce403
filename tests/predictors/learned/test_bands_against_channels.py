"""Bands of element-wise ops on the simulated NPU, along slices of which no kernel was measured.

The board takes time for each byte and each operation, so that a product of two maps takes longer
than one of a map and a number for each channel. The kernels that are learned from are drawn over
all channels and maps; those that judge lie on slices against channels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from latfarm_agent.runtimes.simulated.built_in import built_in
from latfarm_agent.runtimes.simulated.cost import exact_layers
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_predictors.features.table import as_table
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.kernels.kernel import Kernel, extract
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.learned.kernel_models import KernelModels, ignore_progress
from latfarm_predictors.predict.answer_kernels import kernel_intervals
from latfarm_predictors.samples import KernelSample, mad_of, prepare

BOARD = BoardProfile.from_json(built_in("npu"))
NOISE = 0.015
"""Standard deviation of a measurement: several runs of the built-in board in one session."""
PLACES = tuple(range(16, 800, 64))
"""Channels of the kernels that judge."""

Op = Callable[[GraphBuilder, str, int, int], str]


def product_of_maps(b: GraphBuilder, x: str, channels: int, size: int) -> str:
    """A product of two maps."""
    return b.mul(x, b.input((1, channels, size, size)))


def scaled_channels(b: GraphBuilder, x: str, channels: int, size: int) -> str:
    """A product with a number for each channel, as squeeze-and-excitation has it."""
    del size
    return b.mul(x, b.input((1, channels, 1, 1)))


def sum_of_maps(b: GraphBuilder, x: str, channels: int, size: int) -> str:
    """A sum of two maps."""
    return b.add(x, b.input((1, channels, size, size)))


def relu(b: GraphBuilder, x: str, channels: int, size: int) -> str:
    """An activation."""
    del channels, size
    return b.relu(x)


COUNTS: dict[Op, int] = {relu: 30, sum_of_maps: 30, scaled_channels: 14, product_of_maps: 6}
"""How many kernels of each op are learned from: networks have few products of maps."""


def kernel(op: Op, channels: int, size: int) -> Kernel:
    """An op on a map."""
    b = GraphBuilder(op.__name__)
    graph = b.build([op(b, b.input((1, channels, size, size)), channels, size)])
    return extract(graph, list(graph.nodes))


def true_ms(found: Kernel) -> float:
    """The latency of a kernel inside a network on this board."""
    return sum(layer.latency_ms for layer in exact_layers(found.graph.to_json(), BOARD))


@pytest.fixture(scope="module")
def models() -> KernelModels:
    rng = np.random.default_rng(0)
    samples = []
    for op, count in COUNTS.items():
        for _ in range(count):
            channels = int(np.exp(rng.uniform(np.log(8.0), np.log(1024.0))))
            found = kernel(op, channels, int(rng.choice((7, 14, 28, 56))))
            latency_ms = true_ms(found) * float(np.exp(NOISE * rng.standard_normal()))
            spread_ms = mad_of(NOISE * latency_ms)
            samples.append(KernelSample(found, latency_ms, spread_ms, insight="profile"))
    return KernelModels.fit(
        prepare(samples, 0.0), floor_ms=1e-6, seed=0, on_progress=ignore_progress, forests=False
    )


@pytest.mark.parametrize("size", [14, 28])
@pytest.mark.parametrize("op", COUNTS)
def test_most_of_a_slice_against_channels_is_inside_its_band(
    models: KernelModels, op: Op, size: int
) -> None:
    kernels = [kernel(op, channels, size) for channels in PLACES]
    truth = np.array([true_ms(each) for each in kernels])
    found = models.predict(as_table([workload(each) for each in kernels]))
    low, high = kernel_intervals(
        models.scores, found.latency_ms, found.sigma, list(found.labels), 0.9
    )
    held = (low <= truth) & (truth <= high)
    told = np.round(np.log(found.latency_ms / truth), 3).tolist()
    assert held.mean() >= 0.75, told
    assert float(np.median(high / low)) < 1.5, "a band that wide would hold anything"
