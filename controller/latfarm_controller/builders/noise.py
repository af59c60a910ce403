"""Noise: the weights of a weightless Graph, deterministic, and scaled to keep activations finite.

Latency does not depend on values, as long as they are neither NaN, infinite, subnormal nor all
equal. Values are slices of one pool of a million normal deviates, so that half a gigabyte of
weights takes a copy and no random number. The pool's length is prime: rows of a tiled matrix
differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from latfarm_predictors.graph import Graph, Node
from numpy.typing import NDArray

Array = NDArray[Any]

_POOL_LENGTH = 1_000_003

# What a weight's noise is: the mean and the standard deviation.
_Moments = tuple[float, float]


@cache
def _pool() -> NDArray[np.float32]:
    """Standard normal deviates cut at 3, so that 1 + 0.2 * noise is positive."""
    drawn = np.random.default_rng(20240229).standard_normal(_POOL_LENGTH, dtype=np.float32)
    pool = np.clip(drawn, -3.0, 3.0)
    pool.flags.writeable = False
    return pool


def noise(count: int, offset: int, mean: float = 0.0, spread: float = 1.0) -> NDArray[np.float32]:
    """`count` deviates from position `offset` of the endless tiling of the pool."""
    period = _period(count, offset, mean, spread)
    if count <= period.size:
        return period
    out = np.empty(count, np.float32)
    _tile(out.data.cast("B"), period)
    return out


def _period(count: int, offset: int, mean: float, spread: float) -> NDArray[np.float32]:
    """What the noise repeats: its first `count` deviates, or a whole turn of the pool."""
    pool, start = _pool(), offset % _POOL_LENGTH
    if start + count <= _POOL_LENGTH:
        found = pool[start : start + count]
    else:
        found = np.concatenate((pool[start:], pool[: min(start, start + count - _POOL_LENGTH)]))
    scaled = found * np.float32(spread)
    scaled += np.float32(mean)
    return scaled


def _tile(out: memoryview, period: NDArray[np.float32]) -> None:
    """Fill bytes with repetitions of `period`."""
    source = period.data.cast("B")
    for start in range(0, len(out), len(source)):
        part = out[start : start + len(source)]
        part[:] = source[: len(part)]


class Weights:
    """The constants of one graph. Equal graphs (by hash) have equal weights in order of use."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._base = int(graph.hash[:12], 16)
        self._readers: dict[str, tuple[Node, int, int]] = {}
        for node in graph.nodes:
            for position, tensor in enumerate(node.inputs):
                if tensor in graph.weights and tensor not in self._readers:
                    self._readers[tensor] = (node, position, len(self._readers))

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._graph.weights

    def array(self, tensor: str) -> Array:
        """Values of a weight: its own where it has some, else noise that suits its first reader.

        Returns:
            an array of the weight's shape and element type.
        """
        weight = self._graph.weights[tensor]
        dtype, shape = np.dtype(weight.type.dtype), weight.type.shape
        if weight.values is not None:
            return np.asarray(weight.values, dtype).reshape(shape)
        if dtype.kind != "f" or tensor not in self._readers:
            return np.zeros(shape, dtype)  # indices, masks: zero is always in range
        made = noise(weight.type.elements, *self._recipe(tensor)).reshape(shape)
        return made.astype(dtype, copy=False)

    def write(self, tensor: str, out: memoryview) -> None:
        """`array(tensor)` as bytes into `out`, without a second copy of large ones."""
        weight = self._graph.weights[tensor]
        if (
            weight.values is None
            and weight.type.dtype == "float32"
            and weight.type.elements > _POOL_LENGTH
            and tensor in self._readers
        ):
            _tile(out, _period(weight.type.elements, *self._recipe(tensor)))
        else:
            out[:] = self.array(tensor).tobytes()

    def _recipe(self, tensor: str) -> tuple[int, float, float]:
        """Offset, mean and spread of a weight's noise."""
        node, position, index = self._readers[tensor]
        mean, spread = _moments(node, position, self._graph.weights[tensor].type.shape)
        return self._base + 15_485_863 * index, mean, spread


def _he(fan_in: float) -> _Moments:
    """He et al. 2015: keeps the variance of activations through a ReLU."""
    return 0.0, math.sqrt(2.0 / max(fan_in, 1.0))


def _conv(_: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    return _he(math.prod(shape[1:])) if position == 1 else (0.0, 0.05)


def _conv_transpose(node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    if position != 1:
        return 0.0, 0.05
    strides = node.attrs.get("strides", ())
    steps = math.prod(int(s) for s in strides) if isinstance(strides, tuple) else 1
    overlap = math.prod(shape[2:]) / steps
    return _he(shape[0] * overlap)


def _gemm(node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    if position == 2:
        return 0.0, 0.05
    rows = position == 1 and node.attrs.get("transB", 0) == 0
    return _he(shape[0] if rows else shape[-1])


def _matmul(_: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    return _he(shape[-2] if position == 1 and len(shape) > 1 else shape[-1])


def _norm(_: Node, position: int, __: tuple[int, ...]) -> _Moments:
    """Scale, bias, mean, variance: the variance is in 0.4..1.6."""
    return ((1.0, 0.1), (0.0, 0.1), (0.0, 0.1), (1.0, 0.2))[position - 1]


def _recurrent(_: Node, __: int, shape: tuple[int, ...]) -> _Moments:
    return 0.0, 1.0 / math.sqrt(max(shape[-1], 1))


def _constant(mean: float, spread: float) -> Callable[[Node, int, tuple[int, ...]], _Moments]:
    return lambda _, __, ___: (mean, spread)


def _clip(_: Node, position: int, __: tuple[int, ...]) -> _Moments:
    return (-1.0, 0.1) if position == 1 else (3.0, 0.1)


_ROLES: dict[str, Callable[[Node, int, tuple[int, ...]], _Moments]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), _norm),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **dict.fromkeys(("Mul", "Div"), _constant(1.0, 0.1)),
    "PRelu": _constant(0.25, 0.05),
    "Pow": _constant(2.0, 0.0),
    "Sqrt": _constant(1.0, 0.1),
    "Log": _constant(1.0, 0.1),
    "Clip": _clip,
}
_PLAIN = _constant(0.0, 0.1)


def _moments(node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    return _ROLES.get(node.op, _PLAIN)(node, position, shape)
