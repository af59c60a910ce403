"""TfliteReading: which tensor of the Graph stands for each tensor of a TFLite file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_constants import (
    VALUES_LIMIT,
    Array,
    Constant,
    UnsupportedError,
    array_constant,
)
from latfarm_predictors.frontends.onnx_int8 import dequantize, quantize
from latfarm_predictors.frontends.onnx_moves import view
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.frontends.tflite.axes import (
    IMAGE,
    Order,
    ordered,
    plain,
    same_sequence,
    unordered,
)
from latfarm_predictors.frontends.tflite.model import ReadModel, ReadOperator, ReadTensor
from latfarm_predictors.graph.graph import AttrValue, TensorType

_INTEGERS = ("int8", "uint8", "int32")
"""Element types whose quantised tensors are dequantised before an op computes with them."""


class Placed(NamedTuple):
    """A tensor of the Graph, and its order of axes."""

    name: str
    order: Order


@dataclass(frozen=True)
class PaddedImage:
    """An image that was padded by an operator of its own, which a window may do by itself.

    Attributes:
        source: number of the image's tensor before it was padded.
        pads: pads above, left, below and right.
        value: what the pads hold.
    """

    source: int
    pads: tuple[int, int, int, int]
    value: float


class TfliteReading:
    """A Graph that is being made of a file.

    Attributes:
        em: adds nodes and constants.
        model: the file.
        padded: padded images, by the number of the tensor that is padded.
        rescaled: whether inputs have other sizes than in the file, so that its other shapes do not
            count.
    """

    def __init__(self, em: Emitter, model: ReadModel) -> None:
        self.em = em
        self.model = model
        self.padded: dict[int, PaddedImage] = {}
        self.rescaled = False
        self._places: dict[int, Placed] = {}
        self._copies: dict[tuple[int, Order], str] = {}
        self._real: dict[str, str] = {}

    # The file's tensors

    def told(self, index: int) -> ReadTensor:
        """A tensor of the file.

        Raises:
            GraphError: it is an operand that is absent.
        """
        if index < 0:
            raise GraphError("an operand is missing")
        return self.model.tensors[index]

    def operand(self, op: ReadOperator, position: int) -> int:
        """Number of the tensor that is an operand.

        Raises:
            GraphError: the operator has no such operand.
        """
        if position >= len(op.inputs) or op.inputs[position] < 0:
            raise GraphError(f"operand {position} is missing")
        return op.inputs[position]

    def optional(self, op: ReadOperator, position: int) -> int | None:
        """Number of the tensor that is an optional operand; None if it is absent."""
        there = position < len(op.inputs) and op.inputs[position] >= 0
        return op.inputs[position] if there else None

    def is_constant(self, index: int) -> bool:
        """Whether a tensor is a constant of the file, or is computed from constants alone."""
        placed = self._places.get(index)
        if placed is not None:
            return self.em.is_constant(placed.name)
        return self.told(index).data is not None

    def values(self, index: int) -> Array:
        """The values of a small constant, in the file's order of axes.

        Raises:
            UnsupportedError: they are computed from the inputs, or are too many.
        """
        placed = self._places.get(index)
        found = None
        if placed is not None and placed.order == plain(len(placed.order)):
            found = self.em.array(placed.name)
        elif placed is None and _is_small(self.told(index)):
            found = self.told(index).array()
        if found is None:
            raise UnsupportedError(
                f"it depends on tensor {self.told(index).name!r}, which is computed or too large"
            )
        return found

    def ints(self, op: ReadOperator, position: int) -> tuple[int, ...]:
        """The values of an operand that is a constant of whole numbers, as a flat list."""
        return tuple(int(value) for value in self.values(self.operand(op, position)).reshape(-1))

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of a tensor in the file's order of axes, as the Graph has it."""
        placed = self._places.get(index)
        if placed is None:
            return self.told(index).shape
        return unordered(self.em.type_of(placed.name).shape, placed.order)

    def order(self, index: int) -> Order:
        """The order of a tensor; that of a constant of the file is plain."""
        placed = self._places.get(index)
        return plain(len(self.told(index).shape)) if placed is None else placed.order

    # Tensors of the Graph

    def put(self, index: int, name: str, order: Order) -> None:
        """Let a tensor of the Graph stand for a tensor of the file.

        Raises:
            GraphError: its type is not the one that the file tells.
        """
        told, made = self.told(index), self.em.type_of(name)
        if index in self._places:
            raise GraphError(f"tensor {told.name!r} is made twice")
        shape = unordered(made.shape, order)
        if not self.rescaled and told.dtype and shape != told.shape:
            raise GraphError(f"it makes {list(shape)}, and the file says {list(told.shape)}")
        self._places[index] = Placed(name, order)

    def get(self, index: int, order: Order | None = None) -> str:
        """The tensor of the Graph for a tensor of the file.

        Args:
            index: number of the file's tensor.
            order: the order that it shall have; None: the one that it has.

        Raises:
            GraphError: the tensor is not made yet, or has another rank.
        """
        told, placed = self.told(index), self._places.get(index)
        wanted = self.order(index) if order is None else order
        if len(wanted) != len(self.order(index)):
            raise GraphError(f"tensor {told.name!r} has shape {list(told.shape)}")
        if placed is not None and placed.order == wanted:
            return placed.name
        key = (index, wanted)
        if key not in self._copies:
            if placed is not None:
                self._copies[key] = self.turned(placed, wanted)
            elif told.data is not None:
                self._copies[key] = self.em.constant(_constant(told, wanted))
            else:
                raise GraphError(f"tensor {told.name!r} is used before it is made")
        return self._copies[key]

    def turned(self, placed: Placed, order: Order) -> str:
        """A tensor in another order: a view where that is enough, else a transpose."""
        kind = self.em.type_of(placed.name)
        shape = unordered(kind.shape, placed.order)
        if same_sequence(placed.order, order, shape):
            return view(self.em, placed.name, ordered(shape, order))[0]
        moves = tuple(placed.order.index(axis) for axis in order)
        return self.em.op("Transpose", [placed.name], {"perm": moves})

    def aligned(self, index: int, order: Order) -> str:
        """An operand of a broadcasting op, whose result has this order; scales are taken off.

        A constant of one element is a scalar. Others get leading axes of size 1.
        """
        told, rank = self.told(index), len(order)
        shape = self.shape(index)
        known = index not in self._places and told.data is not None and not told.is_quantised
        if known and told.type.elements == 1:
            return self.em.constant(array_constant(_native(told).reshape(())))
        if len(shape) == rank:
            return self.real(index, order)
        if len(shape) > rank:
            raise GraphError(f"tensor {told.name!r} has shape {list(shape)}")
        full = (1,) * (rank - len(shape)) + shape
        if known:
            return self.em.constant(_constant(told, order, full))
        raised = view(self.em, self.real(index, plain(len(shape))), full)[0]
        return self.turned(Placed(raised, plain(rank)), order)

    # Quantised tensors

    def real(self, index: int, order: Order | None = None) -> str:
        """The real numbers of a tensor: of one that is quantised, they are dequantised once."""
        told, wanted = self.told(index), self.order(index) if order is None else order
        name = self.get(index, wanted)
        if told.is_quantised and told.dtype == "int16":
            raise UnsupportedError(
                f"tensor {told.name!r} is quantised to int16; int8 and uint8 are"
            )
        if not told.is_quantised or self.em.type_of(name).dtype not in _INTEGERS:
            return name
        if name not in self._real:
            scale, zero, axis = self._scaling(told, wanted)
            self._real[name] = dequantize(self.em, name, scale, zero, axis)
        return self._real[name]

    def make(self, index: int, name: str, order: Order) -> None:
        """Let real numbers stand for a tensor of the file, quantised where the file's tensor is."""
        told = self.told(index)
        if told.is_quantised and self.em.type_of(name).dtype.startswith("float"):
            scale, zero, axis = self._scaling(told, order)
            name = quantize(self.em, name, scale, zero, axis)
        self.put(index, name, order)

    def same_scales(self, *indices: int) -> bool:
        """Whether some tensors have the same type and scales, so that integers can be moved."""
        told = [self.told(index) for index in indices]
        return len({(t.dtype, t.scales, t.zeros) for t in told}) == 1

    def moved(self, index: int, made: int, order: Order | None = None) -> str:
        """An operand of an op that moves data: integers if it has the scales of the result."""
        return self.get(index, order) if self.same_scales(index, made) else self.real(index, order)

    def _scaling(self, told: ReadTensor, order: Order) -> tuple[str, str, int]:
        """Scale, zero point and axis of a quantised tensor, as operands."""
        zeros = told.zeros or (0,)
        one = len(told.scales) == 1
        scales = np.array(told.scales[0] if one else told.scales, np.float32)
        zero = np.array(zeros[0] if one else np.broadcast_to(zeros, scales.shape))
        whole = np.iinfo(told.dtype)
        if not np.isfinite(scales).all() or zero.min() < whole.min or zero.max() > whole.max:
            raise GraphError(f"tensor {told.name!r} has a scale or a zero point that is none")
        constants = [self.em.constant(array_constant(x)) for x in (scales, zero.astype(told.dtype))]
        return constants[0], constants[1], order.index(told.axis) if not one else 0

    # Nodes

    def op(self, kind: str, operands: Sequence[str], **attrs: AttrValue) -> str:
        """Add a node with one result; returns its name."""
        return self.em.op(kind, operands, attrs)

    def activated(self, x: str, fused: int) -> str:
        """The result of an operator's fused activation, by its number in the schema.

        Raises:
            UnsupportedError: the number is not known.
        """
        if fused == 0:
            return x
        if fused == 1:
            return self.op("Relu", [x])
        if fused in (2, 3):
            return self.clipped(x, *((-1.0, 1.0) if fused == 2 else (0.0, 6.0)))
        if fused == 4:
            return self.op("Tanh", [x])
        raise UnsupportedError(f"fused activation {fused}")

    def clipped(self, x: str, low: float, high: float) -> str:
        """Add a Clip."""
        return self.op("Clip", [x, self.em.scalar_like(x, low), self.em.scalar_like(x, high)])


def input_order(model: ReadModel, index: int) -> Order:
    """The order of an input: that of an image if an operator on images reads such tensors."""
    rank = len(model.tensors[index].shape)
    images = any(op.code in _ON_IMAGES for op in model.operators)
    return IMAGE if rank == 4 and images else plain(rank)


_ON_IMAGES = frozenset(
    {
        "AVERAGE_POOL_2D",
        "CONV_2D",
        "DEPTHWISE_CONV_2D",
        "DEPTH_TO_SPACE",
        "LOCAL_RESPONSE_NORMALIZATION",
        "MAX_POOL_2D",
        "RESIZE_BILINEAR",
        "RESIZE_NEAREST_NEIGHBOR",
        "SPACE_TO_DEPTH",
        "TRANSPOSE_CONV",
    }
)
"""Operators whose operand is an image, (N, H, W, C) in the file."""


def _is_small(told: ReadTensor) -> bool:
    """Whether a tensor is a constant whose values may decide what an operator does."""
    return told.data is not None and told.type.elements <= VALUES_LIMIT


def _native(told: ReadTensor) -> Array:
    """The values of a constant, in the byte order of this machine."""
    return told.array().astype(told.dtype, copy=False)


def _constant(told: ReadTensor, order: Order, shape: tuple[int, ...] | None = None) -> Constant:
    """A constant of the file in an order; the values of a large one are read on request.

    Args:
        told: the tensor.
        order: the order.
        shape: the shape that it gets before it is ordered; None: its own.
    """
    full = told.shape if shape is None else shape
    kind = TensorType(told.type.dtype, ordered(full, order))
    if kind.elements <= VALUES_LIMIT:
        return array_constant(_native(told).reshape(full).transpose(order).copy())
    size_bytes = 0 if told.data is None else len(told.data)
    if size_bytes != kind.size_bytes:
        told.array()  # raises
    return Constant(kind, recipe=lambda: _native(told).reshape(full).transpose(order))
