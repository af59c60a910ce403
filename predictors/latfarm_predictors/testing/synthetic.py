"""A synthetic board whose true latencies are known, with random kernels and networks, for tests.

The latency of a model is the time of a call plus, for each kernel, a fixed time, multiply-adds
rounded up to tiles, bytes moved, and elements of slow ops. The tiles are those of a usual GEMM. In
networks, weights that do not fit into the cache take additional time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import main_op
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.samples import KernelSample, NetworkSample

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Clip"): "fused",
        ("Add", "Relu"): "fused",
        ("Gemm", "Relu"): "fused",
    },
    platform="synthetic-1t",
)

# Time per element of slow ops, in nanoseconds.
_ELEMENT_NS = {"Sigmoid": 1.5, "Softmax": 2.5, "LRN": 9.0, "Erf": 4.0, "Tanh": 2.0}


@dataclass(frozen=True)
class SyntheticBoard:
    """A board with known true latencies.

    Attributes:
        call_ms: time of a call.
        kernel_ms: fixed time of a kernel.
        macs_per_ms: multiply-adds per millisecond.
        bytes_per_ms: bytes moved per millisecond.
        out_tile: tile of output channels.
        in_tile: tile of input channels.
        noise: log-sigma of a measurement of a kernel.
        network_noise: log-sigma of a measurement of a network.
        cold_bytes_per_ms: bytes per millisecond that are read with cold caches.
    """

    call_ms: float = 0.004
    kernel_ms: float = 0.0015
    macs_per_ms: float = 2.0e7
    bytes_per_ms: float = 8.0e6
    out_tile: int = 24
    in_tile: int = 4
    noise: float = 0.02
    network_noise: float = 0.02
    cold_bytes_per_ms: float = 4.0e6

    def kernel_true_ms(self, work: Workload) -> float:
        """The true latency of a kernel within a network, with warm caches."""
        if work.family == "move" and main_op(work.type) in ("Reshape", "Flatten"):
            return 0.0
        macs = float(work.macs)
        if work.family == "conv":
            out = -(-work.out_channels // self.out_tile) * self.out_tile / work.out_channels
            inner = -(-work.in_channels // self.in_tile) * self.in_tile / work.in_channels
            macs *= out * inner
        if work.family == "dwconv":
            macs *= 4.0
        if work.family in ("pool", "global_pool"):
            macs = work.output_bytes / 4 * work.kernel_h * work.kernel_w * 2.0
        elements = work.output_bytes / 4.0
        moved = work.input_bytes + work.output_bytes + work.weight_bytes
        return (
            self.kernel_ms
            + macs / self.macs_per_ms
            + moved / self.bytes_per_ms
            + elements * _ELEMENT_NS.get(main_op(work.type), 0.2) * 1e-6
        )

    def kernel_sample(
        self, kernel: Kernel, rng: np.random.Generator, *, cold: bool = False
    ) -> KernelSample:
        """A measurement of a kernel alone."""
        work = workload(kernel)
        true_ms = self.kernel_true_ms(work) + self.call_ms
        measured = true_ms * float(np.exp(self.noise * rng.standard_normal()))
        extra = work.weight_bytes / self.cold_bytes_per_ms
        return KernelSample(
            kernel, measured, self.noise * measured, measured + extra if cold else None
        )

    def network_true_ms(self, graph: Graph, rules: FusionRules = RULES) -> float:
        """The true latency of a network: its kernels, a call, and weights that are read again."""
        works = [workload(kernel) for kernel in split(graph, rules)]
        weights = sum(work.weight_bytes for work in works)
        refetched = max(weights - 1_000_000, 0) / self.cold_bytes_per_ms
        return self.call_ms + sum(map(self.kernel_true_ms, works)) + 0.5 * refetched

    def network_sample(self, graph: Graph, rng: np.random.Generator) -> NetworkSample:
        """A measurement of a network."""
        true_ms = self.network_true_ms(graph)
        measured = true_ms * float(np.exp(self.network_noise * rng.standard_normal()))
        return NetworkSample(graph, measured, self.network_noise * measured)


def _channels(rng: np.random.Generator, low: int = 3, high: int = 256) -> int:
    return int(np.exp(rng.uniform(np.log(low), np.log(high))))


def random_kernel(rng: np.random.Generator, family: str) -> Kernel:
    """A random kernel of a family.

    Raises:
        ValueError: kernels of this family cannot be made.
    """
    b = GraphBuilder(family)
    size = int(rng.choice([7, 14, 28, 56]))
    channels = _channels(rng, 8)
    if family == "grouped_conv":
        channels = 8 * max(channels // 8, 2)
    x = b.input((1, channels, size, size))
    if family == "conv":
        window, stride = int(rng.choice([1, 3, 5])), int(rng.choice([1, 1, 2]))
        out = b.relu(b.conv(x, _channels(rng, 8), window, stride=stride))
    elif family == "grouped_conv":
        out = b.relu(b.conv(x, channels, 3, groups=4))
    elif family == "dwconv":
        out = b.relu(b.depthwise(x, int(rng.choice([3, 5])), stride=int(rng.choice([1, 2]))))
    elif family == "fc":
        out = b.fc(b.input((1, _channels(rng, 16, 2048))), _channels(rng, 16, 2048))
    elif family == "pool":
        make = b.max_pool if rng.random() < 0.5 else b.avg_pool
        out = make(x, int(rng.choice([2, 3])), stride=2)
    elif family == "global_pool":
        out = b.global_avg_pool(x)
    elif family == "eltwise":
        kind = int(rng.integers(3))
        out = (b.add(x, b.input((1, channels, size, size))), b.relu(x), b.sigmoid(x))[kind]
    elif family == "concat":
        out = b.concat([x, b.input((1, channels, size, size))])
    elif family == "norm":
        out = b.batch_norm(x)
    elif family == "lrn":
        out = b.lrn(x, 5)
    elif family == "softmax":
        out = b.softmax(b.input((1, _channels(rng, 16, 2048))))
    else:
        raise ValueError(f"no maker for family {family!r}")
    graph = b.build([out])
    # the kernel that makes the output; the graph may have others that are not needed
    kernels = split(graph, RULES)
    return next(kernel for kernel in kernels if graph.outputs[0] in _results(graph, kernel))


def _results(graph: Graph, kernel: Kernel) -> set[str]:
    names = set(kernel.node_names)
    return {t for node in graph.nodes if node.name in names for t in node.outputs}


def random_kernels(rng: np.random.Generator, counts: dict[str, int]) -> list[Kernel]:
    """Random kernels: the given number of each family."""
    return [random_kernel(rng, family) for family, count in counts.items() for _ in range(count)]


USUAL_COUNTS = {
    "conv": 60,
    "dwconv": 24,
    "fc": 16,
    "pool": 16,
    "global_pool": 8,
    "eltwise": 30,
    "concat": 10,
}
"""Numbers of kernels for a small survey: enough for a regressor of every group."""


def random_network(rng: np.random.Generator, name: str = "net", depth: int | None = None) -> Graph:
    """A random residual network with depthwise convolutions, pooling and a classifier."""
    b = GraphBuilder(name)
    x = b.input((1, 3, 56, 56))
    width = int(rng.choice([16, 24, 32, 48]))
    x = b.relu(b.conv(x, width, 3, stride=2))
    for _ in range(depth if depth is not None else int(rng.integers(2, 7))):
        kind = rng.random()
        if kind < 0.4:
            y = b.relu(b.conv(x, width, 3))
            x = b.relu(b.add(b.conv(y, width, 3), x))
        elif kind < 0.8:
            y = b.relu(b.depthwise(x, 3))
            width = width + int(rng.integers(8, 65))
            x = b.relu(b.conv(y, width, 1))
        else:
            x = b.concat([x, b.relu(b.conv(x, 16, 1))])
            width += 16
        if b.type_of(x).shape[2] > 7 and rng.random() < 0.4:
            x = b.max_pool(x, 2, stride=2)
    x = b.flatten(b.global_avg_pool(x))
    if rng.random() < 0.5:
        x = b.relu(b.fc(x, int(rng.choice([256, 512, 1024, 2048]))))
    return b.build([b.fc(x, 1000)])
