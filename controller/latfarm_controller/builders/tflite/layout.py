"""Tracks which TFLite tensor holds each tensor of a graph, and in which order its axes are stored.

A graph is channels-first, and TFLite's operators are channels-last. Images (tensors of rank 4) are
stored channels-last from the network's input on. Thus a transpose is only needed where the order
of elements matters: before a flatten, or in a reshape that mixes channels with pixels. A layout is
a tuple of axes: the stored axis i is the axis layout[i] of the graph's tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node

from latfarm_controller.builders.noise import Weights
from latfarm_controller.builders.tflite.file import Array, Option, TfliteModel
from latfarm_controller.errors import BuildError

Layout = tuple[int, ...]

# Layout of an image: the graph's axes (N, C, H, W) are stored as (N, H, W, C).
IMAGE: Layout = (0, 2, 3, 1)
# Layout of an image whose channels are split into two axes, as in a channel shuffle. Both axes of
# channels are stored after the pixels.
SPLIT_IMAGE: Layout = (0, 3, 4, 1, 2)
# Layout of an image whose height and width are merged into one axis, as in attention over images.
# The pixels are stored before the channels.
PIXELS: Layout = (0, 2, 1)

# Ops that need their operands in the Graph's axis order. A network input of rank 4 that only these
# ops read is not stored as an image.
_PLAIN_READERS = frozenset({"MatMul"})


def plain(rank: int) -> Layout:
    """Return the layout that keeps the Graph's axis order, for a tensor of the given rank."""
    return tuple(range(rank))


def keeps_order(layout: Layout, shape: Sequence[int]) -> bool:
    """Whether a layout stores the elements in the same sequence as the Graph's axis order.

    Axes of size 1 can be anywhere, because they do not change the sequence.
    """
    real = [axis for axis in layout if shape[axis] > 1]
    return real == sorted(real)


def stored(shape: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Return a shape with its axes in the order of a layout."""
    return tuple(shape[axis] for axis in layout)


def refuse(node: Node, why: str) -> BuildError:
    """Return the error for a node that TFLite cannot express; `why` names the obstacle."""
    return BuildError(f"node {node.name!r} ({node.op}): {why}, which TFLite cannot express")


class TfliteTranslation:
    """A TFLite model that is being built from a Graph.

    It knows which tensor of the model holds each tensor of the Graph, and in which layout.
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Array] | None = None) -> None:
        self.graph = graph
        self.weights = Weights(graph, weights)
        self.model = TfliteModel(graph.name)
        self.done: set[str] = set()  # names of nodes merged into earlier ones
        self._places: dict[str, tuple[int, Layout]] = {}
        self._copies: dict[tuple[str, Layout], int] = {}
        for tensor in graph.inputs:
            self.model.inputs.append(self.put(tensor, self._input_layout(tensor)))

    def _input_layout(self, tensor: str) -> Layout:
        rank = len(self.shape(tensor))
        readers = {node.op for node in self.graph.consumers.get(tensor, ())}
        if rank == 4 and not (readers and readers <= _PLAIN_READERS):
            return IMAGE
        if rank == 5 and readers and readers <= {"Transpose", "Reshape"}:
            return SPLIT_IMAGE
        return plain(rank)

    # The Graph's tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape that a tensor has in the Graph."""
        return self.graph.type_of(tensor).shape

    def is_constant(self, tensor: str) -> bool:
        """Whether a tensor of the Graph is a weight."""
        return tensor in self.graph.weights

    def array(self, tensor: str) -> Array:
        """Return the values of a weight, with the axes in the Graph's order."""
        return self.weights.array(tensor)

    def ints(self, node: Node, position: int) -> list[int]:
        """Return the values of the operand at `position`, a flat list of constant integers.

        Raises:
            BuildError: the operand is missing or is computed at run time.
        """
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        if not self.is_constant(tensor):
            raise refuse(node, f"operand {position} is computed at run time")
        return [int(value) for value in self.array(tensor).reshape(-1)]

    def layout(self, tensor: str) -> Layout:
        """Return the layout in which a tensor is stored; weights have the Graph's axis order."""
        if tensor in self._places:
            return self._places[tensor][1]
        return plain(len(self.shape(tensor)))

    # The model's tensors

    def dtype(self, tensor: str) -> str:
        """Return the element type that a tensor has in the model: int64 becomes int32."""
        found = self.graph.type_of(tensor).dtype
        return "int32" if found == "int64" else found

    def put(self, tensor: str, layout: Layout) -> int:
        """Add a tensor for an activation of the Graph, and return its index in the model."""
        index = self.model.tensor(tensor, stored(self.shape(tensor), layout), self.dtype(tensor))
        self._places[tensor] = (index, layout)
        return index

    def alias(self, tensor: str, index: int, layout: Layout) -> None:
        """Record that a tensor of the model also holds the given activation of the Graph."""
        self._places[tensor] = (index, layout)

    def rename(self, index: int, tensor: str, layout: Layout) -> None:
        """Turn a scratch tensor into an activation of the Graph, and rename it accordingly."""
        self.model.tensors[index].name = tensor
        self._places[tensor] = (index, layout)

    def scratch(self, shape: Sequence[int], dtype: str = "float32") -> int:
        """Add a tensor that carries data between two operators of one node; return its index."""
        return self.model.tensor(f"scratch_{len(self.model.tensors)}", shape, dtype)

    def apply(
        self,
        code: str,
        operands: Sequence[int],
        made: int | None = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: str = "float32",
        **options: Option,
    ) -> int:
        """Add an operator with one result, and return the result's index.

        Options have the names that the schema gives them. `made` is the index of the tensor that
        receives the result. If it is None, a new tensor with element type `dtype` is added; its
        shape is `shape`, or the broadcast shape of the operands if `shape` is None.
        """
        if made is None:
            shapes = [self.model.tensors[index].shape for index in operands]
            made = self.scratch(np.broadcast_shapes(*shapes) if shape is None else shape, dtype)
        self.model.operator(code, operands, [made], **options)
        return made

    def number(self, value: float) -> int:
        """Add a float32 scalar constant to the model and return its index."""
        return self.constant(np.array(value, np.float32))

    def constant(self, data: Array) -> int:
        """Add a constant to the model and return its index."""
        return self.model.constant(f"constant_{len(self.model.tensors)}", data)

    def indices(self, values: Sequence[int]) -> int:
        """Add an int32 vector constant, such as a shape or a list of axes; return its index."""
        return self.constant(np.asarray(values, np.int32))

    def data(self, tensor: str, layout: Layout) -> int:
        """Return the index of a model tensor that holds the Graph's tensor in the given layout.

        If the tensor is stored in another layout, a TRANSPOSE is added, or a RESHAPE if that is
        enough. Later calls with the same layout reuse its result.
        """
        if tensor not in self._places:
            key = (tensor, layout)
            if key not in self._copies:
                self._copies[key] = self.constant(_narrow(self.array(tensor)).transpose(layout))
            return self._copies[key]
        index, own = self._places[tensor]
        if own == layout:
            return index
        if (tensor, layout) not in self._copies:
            shape = self.shape(tensor)
            made = self.scratch(stored(shape, layout), self.dtype(tensor))
            order = [axis for axis in own if shape[axis] > 1]
            if order == [axis for axis in layout if shape[axis] > 1]:
                self.reshape(index, made)
            else:
                permutation = [own.index(axis) for axis in layout]
                self.model.operator("TRANSPOSE", [index, self.indices(permutation)], [made])
            self._copies[tensor, layout] = made
        return self._copies[tensor, layout]

    def reshape(self, source: int, made: int) -> int:
        """Add a RESHAPE from `source` to the tensor `made`, and return `made`."""
        shape = self.indices(self.model.tensors[made].shape)
        self.model.operator("RESHAPE", [source, shape], [made])
        return made

    def aligned(self, tensor: str, rank: int, layout: Layout) -> int:
        """Prepare an operand for broadcasting and return its index.

        Leading axes of size 1 are added until the operand has the given rank. Then its axes are
        brought into the given layout.
        """
        shape = self.shape(tensor)
        full = (1,) * (rank - len(shape)) + shape
        if self.is_constant(tensor):
            return self.constant(_narrow(self.array(tensor)).reshape(full).transpose(layout))
        if len(shape) == rank:
            return self.data(tensor, layout)
        source = self.data(tensor, plain(len(shape)))
        made = self.scratch(full, self.dtype(tensor))
        self.reshape(source, made)
        if layout == plain(rank):
            return made
        turned = self.scratch(stored(full, layout), self.dtype(tensor))
        if keeps_order(layout, full):
            self.reshape(made, turned)
        else:
            self.model.operator("TRANSPOSE", [made, self.indices(layout)], [turned])
        return turned

    def only_reader(self, tensor: str) -> Node | None:
        """Return the node that reads a tensor, if it is the tensor's only use.

        Returns:
            None if no node or several nodes read the tensor, or if it is an output of the network.
        """
        readers = self.graph.consumers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self.graph.outputs else None


def _narrow(data: Array) -> Array:
    """Convert int64 constants to int32, which TFLite uses for indices."""
    return data.astype(np.int32) if data.dtype == np.int64 else data
