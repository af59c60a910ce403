"""Makes weights for graphs without weights: reproducible noise that keeps activations finite.

Latency hardly depends on the values of weights, as long as they are not NaN, infinite, subnormal or
all equal, and as activations have the size that trained networks give them. MNN, for example,
computes erf element by element, and an element takes 4 ns near zero and 18 ns near two. All values
are copied from one pool of a million standard normal numbers, because drawing new random numbers
for half a gigabyte of weights would be slow. The length of the pool is a prime number, so that the
rows of a matrix differ although the pool is repeated to fill it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node, TensorType
from latfarm_predictors.graph.hash import hash_of
from numpy.typing import NDArray

from latfarm_controller.builders import gains
from latfarm_controller.errors import BuildError

Array = NDArray[Any]

_SCALING = frozenset({"QuantizeLinear", "DequantizeLinear"})
# Standard deviation of int8 weights; noise is cut at 3 standard deviations, so it fits in int8.
_INTEGER_SPREAD = 40.0

# Ops that may process integer ids before these index a table.
_ID_MOVES = frozenset(
    {"Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Transpose", "Slice"}
)

_POOL_LENGTH = 1_000_003  # number of values in the pool: a prime number, see above

# The mean and the standard deviation of the noise that is used for a weight.
_Moments = tuple[float, float]
# A function that chooses the moments of a weight from the graph, the node that reads the weight,
# the index of the weight among the inputs of that node, and the shape of the weight.
_Role = Callable[[Graph, Node, int, tuple[int, ...]], _Moments]


@cache
def _pool() -> NDArray[np.float32]:
    """Return the pool: standard normal numbers cut at +-3, so that 1 + 0.2 * noise is positive."""
    drawn = np.random.default_rng(20240229).standard_normal(_POOL_LENGTH, dtype=np.float32)
    pool = np.clip(drawn, -3.0, 3.0)
    pool.flags.writeable = False
    return pool


def noise(count: int, offset: int, mean: float = 0.0, spread: float = 1.0) -> NDArray[np.float32]:
    """Return `count` values of the endlessly repeated pool, from position `offset` on.

    They are scaled to the standard deviation `spread` and the mean `mean`.
    """
    period = _period(count, offset, mean, spread)
    if count <= period.size:
        return period
    out = np.empty(count, np.float32)
    _tile(out.data.cast("B"), period)
    return out


def _period(count: int, offset: int, mean: float, spread: float) -> NDArray[np.float32]:
    """Return the part of the noise that repeats: the pool once, or all `count` values if fewer."""
    pool, start = _pool(), offset % _POOL_LENGTH
    if start + count <= _POOL_LENGTH:
        found = pool[start : start + count]
    else:
        found = np.concatenate((pool[start:], pool[: min(start, start + count - _POOL_LENGTH)]))
    scaled = found * np.float32(spread)
    scaled += np.float32(mean)
    return scaled


def _tile(out: memoryview, period: NDArray[np.float32]) -> None:
    """Fill the buffer `out` with repetitions of `period`."""
    source = period.data.cast("B")
    for start in range(0, len(out), len(source)):
        part = out[start : start + len(source)]
        part[:] = source[: len(part)]


class Weights:
    """The constants of one graph. Graphs with equal hashes have equal weights."""

    def __init__(self, graph: Graph, values: Mapping[str, Array] | None = None) -> None:
        """Use the given values, and noise for the weights that have none.

        Raises:
            BuildError: the graph has no weight of this name, or the value does not fit the weight;
                the message names it.
        """
        self._graph = graph
        self._given = {} if values is None else _checked(graph, values)
        self._base = int(hash_of(graph)[:12], 16)
        self._readers: dict[str, tuple[Node, int, int]] = {}
        for node in graph.nodes:
            for position, tensor in enumerate(node.inputs):
                if tensor in graph.weights and tensor not in self._readers:
                    self._readers[tensor] = (node, position, len(self._readers))

    def __contains__(self, tensor: str) -> bool:
        return tensor in self._graph.weights

    def type_of(self, tensor: str) -> TensorType:
        """Return the shape and the element type of a weight."""
        return self._graph.weights[tensor].type

    def array(self, tensor: str) -> Array:
        """Return the values of a weight.

        These are the values that the graph fixes, or else those that the caller gave, or else noise
        that suits the node that reads the weight.

        Returns:
            an array of the weight's shape and element type.
        """
        weight = self._graph.weights[tensor]
        dtype, shape = np.dtype(weight.type.dtype), weight.type.shape
        if weight.values is not None:
            return np.asarray(weight.values, dtype).reshape(shape)
        if tensor in self._given:
            return self._given[tensor]
        if dtype.kind != "f" or tensor not in self._readers:
            if tensor in self._readers and self._readers[tensor][0].op in _SCALING:
                return self._integers(tensor, dtype, shape)
            return np.zeros(shape, dtype)  # zero is always a valid index or mask
        made = noise(weight.type.elements, *self._recipe(tensor)).reshape(shape)
        return made.astype(dtype, copy=False)

    def _integers(self, tensor: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """Return integer weights of a quantised network, or its zero points.

        The zero points are 0, or 128 for uint8; the weights are noise around the same value.
        """
        _, position, index = self._readers[tensor]
        middle = 128 if dtype == np.uint8 else 0
        if position > 0:
            return np.full(shape, middle, dtype)
        made = noise(math.prod(shape), self._base + 15_485_863 * index, middle, _INTEGER_SPREAD)
        return np.rint(made).reshape(shape).astype(dtype)

    def write(self, tensor: str, out: memoryview) -> None:
        """Write the bytes of `array(tensor)` into `out`; large noise is written without a copy."""
        weight = self._graph.weights[tensor]
        if (
            weight.values is None
            and tensor not in self._given
            and weight.type.dtype == "float32"
            and weight.type.elements > _POOL_LENGTH
            and tensor in self._readers
        ):
            _tile(out, _period(weight.type.elements, *self._recipe(tensor)))
        else:
            out[:] = self.array(tensor).tobytes()

    def _recipe(self, tensor: str) -> tuple[int, float, float]:
        """Return where in the pool the noise of a weight begins, its mean and its deviation."""
        node, position, index = self._readers[tensor]
        role = _ROLES.get(node.op, _PLAIN)
        mean, spread = role(self._graph, node, position, self._graph.weights[tensor].type.shape)
        return self._base + 15_485_863 * index, mean, spread


def _checked(graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
    """Return the given values after a check of their names, shapes and element types."""
    for tensor, value in values.items():
        weight = graph.weights.get(tensor)
        if weight is None:
            raise BuildError(f"{graph.name}: values for {tensor!r}, which is no weight of it")
        kind = weight.type
        if value.shape != kind.shape or value.dtype != np.dtype(kind.dtype):
            raise BuildError(
                f"{graph.name}: weight {tensor!r} is {kind.dtype}{list(kind.shape)},"
                f" the values given are {value.dtype}{list(value.shape)}"
            )
        if weight.values is not None and not np.allclose(
            value.reshape(-1), weight.values, rtol=1e-6, atol=0.0
        ):
            raise BuildError(f"{graph.name}: weight {tensor!r} is fixed by the graph")
    return dict(values)


def _fan(graph: Graph, node: Node, fan_in: float) -> _Moments:
    """Return the moments that keep the mean square of activations from layer to layer (He 2015)."""
    return 0.0, math.sqrt(gains.gain(graph, node) / max(fan_in, 1.0))


def _conv(graph: Graph, node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    return _fan(graph, node, math.prod(shape[1:])) if position == 1 else (0.0, 0.05)


def _conv_transpose(graph: Graph, node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    if position != 1:
        return 0.0, 0.05
    strides, groups = node.attrs.get("strides", ()), node.attrs.get("group", 1)
    steps = math.prod(int(s) for s in strides) if isinstance(strides, tuple) else 1
    overlap = math.prod(shape[2:]) / steps
    channels = shape[0] // (groups if isinstance(groups, int) else 1)
    return _fan(graph, node, channels * overlap)


def _gemm(graph: Graph, node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    if position == 2:
        return 0.0, 0.05
    rows = position == 1 and node.attrs.get("transB", 0) == 0
    return _fan(graph, node, shape[0] if rows else shape[-1])


def _matmul(graph: Graph, node: Node, position: int, shape: tuple[int, ...]) -> _Moments:
    return _fan(graph, node, shape[-2] if position == 1 and len(shape) > 1 else shape[-1])


def _norm(_: Graph, __: Node, position: int, ___: tuple[int, ...]) -> _Moments:
    """Return the moments of a norm's scale, bias, mean or variance; a variance is in 0.4..1.6."""
    return ((1.0, 0.1), (0.0, 0.1), (0.0, 0.1), (1.0, 0.2))[position - 1]


def _factor(graph: Graph, node: Node, _: int, __: tuple[int, ...]) -> _Moments:
    mean = gains.factor(graph, node)
    return mean, 0.1 * mean


def _recurrent(_: Graph, __: Node, ___: int, shape: tuple[int, ...]) -> _Moments:
    return 0.0, 1.0 / math.sqrt(max(shape[-1], 1))


def _constant(mean: float, spread: float) -> _Role:
    return lambda _, __, ___, ____: (mean, spread)


def _clip(_: Graph, __: Node, position: int, ___: tuple[int, ...]) -> _Moments:
    return (-1.0, 0.1) if position == 1 else (3.0, 0.1)


def _scaling(graph: Graph, node: Node, _: int, __: tuple[int, ...]) -> _Moments:
    """Return the moments of the scale of a QuantizeLinear or DequantizeLinear node.

    Integers with the standard deviation `_INTEGER_SPREAD` then stand for real numbers whose
    standard deviation suits the node that reads them.
    """
    real = 1.0
    readers = graph.consumers.get(node.outputs[0], ())
    if node.inputs[0] in graph.weights and readers:
        shape = graph.type_of(node.outputs[0]).shape
        position = readers[0].inputs.index(node.outputs[0])
        real = max(_ROLES.get(readers[0].op, _PLAIN)(graph, readers[0], position, shape)[1], 1e-3)
    return real / _INTEGER_SPREAD, 0.1 * real / _INTEGER_SPREAD


_ROLES: dict[str, _Role] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "LayerNormalization"), _norm),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    "Mul": _factor,
    "Div": _constant(1.0, 0.1),
    **dict.fromkeys(("Gather", "Concat"), _constant(0.0, 1.0)),  # token embeddings
    **dict.fromkeys(_SCALING, _scaling),
    "PRelu": _constant(0.25, 0.05),
    "Pow": _constant(2.0, 0.0),
    "Sqrt": _constant(1.0, 0.1),
    "Log": _constant(1.0, 0.1),
    "Clip": _clip,
}
_PLAIN = _constant(0.0, 0.1)


def inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """Make inputs to run a graph with; they depend only on the graph's inputs and the seed.

    Returns:
        an array for each input, by name. Floats are standard normal numbers within +-3. Integers
        are valid ids if they index a table, and ones otherwise, because they are masks then.
    """
    made: dict[str, Array] = {}
    for index, tensor in enumerate(graph.inputs):
        kind = graph.type_of(tensor)
        dtype = np.dtype(kind.dtype)
        if dtype.kind == "f":
            drawn = noise(kind.elements, 7_368_787 * (seed + 1) + 179_426_549 * index)
            made[tensor] = drawn.reshape(kind.shape).astype(dtype, copy=False)
        else:
            size = _table_size(graph, tensor)
            draw = np.random.default_rng((seed, index))
            ids = np.ones(kind.shape) if size is None else draw.integers(0, size, kind.shape)
            made[tensor] = ids.astype(dtype)
    return made


def _table_size(graph: Graph, tensor: str) -> int | None:
    """Return the row count of the smallest table that a tensor indexes; None if it indexes none."""
    sizes = []
    for node in graph.consumers.get(tensor, ()):
        if node.op == "Gather" and node.inputs[1] == tensor:
            axis = node.attrs.get("axis", 0)
            sizes.append(graph.type_of(node.inputs[0]).shape[axis if isinstance(axis, int) else 0])
        elif node.op in _ID_MOVES and node.inputs[0] == tensor:
            sizes += [s for t in node.outputs if t and (s := _table_size(graph, t)) is not None]
    return min(sizes, default=None)
