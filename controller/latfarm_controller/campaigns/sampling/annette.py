"""Sampler `annette`: ANNETTE's sweep over layer parameters (Wess et al. 2024, III-B, Table 2).

"The width and height of the images are limited to 1024 and the kernel sizes are limited to 11. The
resulting parameter space is sub-sampled randomly and then balanced across the FLOPs dimension."
The paper measures about 1,000 layers of each of seven types. What layers networks really contain
has no influence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from random import Random
from types import MappingProxyType

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.base import SamplingTask
from latfarm_controller.campaigns.sampling.layers import LayerFilter, draw_new, operations

PER_TYPE = 1000
"""Largest number of layers of each type, as published."""
SIDES: Sequence[int] = (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 112, 128, 224, 256, 512, 1024)
"""Heights and widths of a tensor, in elements; the paper limits them to 1024."""
CHANNELS = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Numbers of channels of a tensor."""
KERNELS = (1, 3, 5, 7, 9, 11)
"""Heights and widths of a window, in elements; the paper limits them to 11."""
STRIDES = (1, 2)
"""Strides of a window, in elements."""
_BINS = 12
"""Number of bins of equal width in log FLOPs, each of which gets as many layers as the others."""
_SUBSAMPLE = 6
"""Number of random draws for each layer that is kept."""
_SQUARE = 0.5
"""Probability that height and width are equal."""


def _pair(values: Sequence[int], random: Random) -> tuple[int, int]:
    """A height and a width: equal in half the draws, independent in the other half."""
    first = random.choice(values)
    return first, first if random.random() < _SQUARE else random.choice(values)


def _image(b: GraphBuilder, random: Random) -> str:
    return b.input((1, random.choice(CHANNELS), *_pair(SIDES, random)))


def _window(random: Random) -> tuple[tuple[int, int], tuple[int, int]]:
    return _pair(KERNELS, random), _pair(STRIDES, random)


def _conv(b: GraphBuilder, random: Random) -> str:
    return b.relu(b.conv(_image(b, random), random.choice(CHANNELS), *_window(random)))


def _depthwise(b: GraphBuilder, random: Random) -> str:
    return b.relu(b.depthwise(_image(b, random), *_window(random)))


def _fc(b: GraphBuilder, random: Random) -> str:
    return b.fc(b.input((1, random.choice(CHANNELS))), random.choice(CHANNELS))


def _max_pool(b: GraphBuilder, random: Random) -> str:
    return b.max_pool(_image(b, random), *_window(random), "same")


def _avg_pool(b: GraphBuilder, random: Random) -> str:
    return b.avg_pool(_image(b, random), *_window(random), "same")


def _add(b: GraphBuilder, random: Random) -> str:
    x = _image(b, random)
    return b.relu(b.add(x, b.input(b.type_of(x).shape)))


def _concat(b: GraphBuilder, random: Random) -> str:
    x = _image(b, random)
    other = (1, random.choice(CHANNELS), *b.type_of(x).shape[2:])
    return b.concat([x, b.input(other)])


TYPES: Mapping[str, Callable[[GraphBuilder, Random], str]] = MappingProxyType(
    {
        "conv": _conv,
        "dwconv": _depthwise,
        "fc": _fc,
        "maxpool": _max_pool,
        "avgpool": _avg_pool,
        "add": _add,
        "concat": _concat,
    }
)
"""The seven types of layers of Table 2, each with the function that adds one to a graph."""

KINDS: Mapping[str, str] = MappingProxyType(
    {"maxpool": "pool", "avgpool": "pool", "add": "eltwise"}
)
"""The kind of kernel (see `zoo.draws.prior.SHARES`) of each type whose name differs from it."""


class AnnetteSampler:
    """The same number of layers of each type, and of each size in FLOPs.

    All layers are drawn at once and given out in batches. An activation that the platform runs as a
    kernel of its own is left out.

    Args:
        task: what to draw; at most `PER_TYPE` layers of each type are drawn.
    """

    def __init__(self, task: SamplingTask) -> None:
        self._types = [name for name in TYPES if task.scope.holds(KINDS.get(name, name))]
        self._count = min(task.count, PER_TYPE * len(self._types))
        self._batch = task.batch
        self._random = Random(f"annette sampler {task.seed}")
        self._gate = LayerFilter(task.rules, task.excluded, task.scope.most_macs)
        self._queue: list[Kernel] | None = None

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`; the samples change nothing."""
        del samples
        if self._queue is None:
            self._queue = self._sweep()
        batch, self._queue = self._queue[: self._batch], self._queue[self._batch :]
        return batch

    def _sweep(self) -> list[Kernel]:
        types = self._types
        shares = [self._count // max(len(types), 1)] * len(types)
        for index in range(self._count % max(len(types), 1)):
            shares[index] += 1
        found: list[Kernel] = []
        for name, share in zip(types, shares, strict=True):
            found += self._balanced(name, share)
        self._random.shuffle(found)
        return found

    def _balanced(self, name: str, count: int) -> list[Kernel]:
        """A random sub-sample of a type's parameters, equally many layers per bin of FLOPs."""
        drawn: list[tuple[float, Kernel]] = []
        while len(drawn) < count * _SUBSAMPLE:
            kernel = draw_new(lambda: self._draw(name))
            if kernel is None:
                break
            drawn.append((log(max(operations(workload(kernel)), 1)), kernel))
        if not drawn:
            return []
        least, most = min(work for work, _ in drawn), max(work for work, _ in drawn)
        width = (most - least) / _BINS or 1.0
        bins: dict[int, list[Kernel]] = {}
        for work, kernel in drawn:
            bins.setdefault(min(int((work - least) / width), _BINS - 1), []).append(kernel)
        turn = [bins[index] for index in sorted(bins)]
        found: list[Kernel] = []
        while len(found) < count and any(turn):
            # One layer of each bin in turn, the bin with the most FLOPs first.
            found += [bin_.pop() for bin_ in reversed(turn) if bin_][: count - len(found)]
        return found

    def _draw(self, name: str) -> Kernel | None:
        def make() -> Graph:
            b = GraphBuilder(name)
            return b.build([TYPES[name](b, self._random)])

        return self._gate.kernel(make)
