"""Records which blob of an ncnn network holds each tensor of a graph, and in which shape.

ncnn's blobs have up to four dimensions (c, d, h, w) and no batch, so a leading axis of size 1 is
left out. The elements of a blob always have the same order as in the graph. Therefore a reshape,
squeeze or flatten needs no layer until a later layer asks for other dimensions than the blob has.
Some layers leave out axes of size 1 themselves: global pooling, for example, gives a vector.
Networks made by ncnn's own converters do the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from latfarm_predictors.graph.graph import Graph, Node
from numpy.typing import NDArray

from latfarm_controller.builders.ncnn.file import Data, Dims, Floats, Net, Params, shape_params
from latfarm_controller.builders.noise import Weights
from latfarm_controller.errors import BuildError

_MOST_DIMS = 4  # the largest number of dimensions of an ncnn blob


def ints(node: Node, name: str) -> tuple[int, ...]:
    """Return the integers of a list attribute; () if the node does not have it."""
    value = node.attrs.get(name, ())
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()


def number(node: Node, name: str, default: float) -> float:
    """Return the value of a scalar attribute; `default` if the node does not have it."""
    value = node.attrs.get(name, default)
    return value if isinstance(value, int | float) else default


def refuse(node: Node, why: str) -> BuildError:
    """Return the error for a node that ncnn cannot express; `why` names the obstacle."""
    return BuildError(f"node {node.name!r} ({node.op}): {why}, which ncnn cannot express")


class NcnnTranslation:
    """An ncnn network that is being built, and the places of the graph's tensors in it."""

    def __init__(self, graph: Graph, values: Mapping[str, NDArray[Any]] | None = None) -> None:
        self.graph = graph
        self.net = Net()
        self.done: set[str] = set()  # first outputs of nodes that an earlier layer includes
        self.swapped: dict[str, str] = {}  # tensor -> its source with the last two axes swapped
        self._weights = Weights(graph, values)
        self._folded: dict[str, NDArray[Any]] = {}
        self._places: dict[str, tuple[int, Dims]] = {}
        self._views: dict[str, Node] = {}
        self._copies: dict[tuple[int, Dims], int] = {}
        self._constants: dict[tuple[str, Dims], int] = {}
        for tensor in graph.inputs:
            dims = self.plain(tensor)
            self._places[tensor] = (self.net.input(dims), dims)

    # Methods about the graph's tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of a tensor in the graph."""
        return self.graph.type_of(tensor).shape

    def is_constant(self, tensor: str) -> bool:
        """Return whether a tensor is a weight or was computed from weights in the translation."""
        return tensor in self.graph.weights or tensor in self._folded

    def array(self, tensor: str) -> NDArray[Any]:
        """Return the values of a constant, in the shape that it has in the graph."""
        return self._folded[tensor] if tensor in self._folded else self._weights.array(tensor)

    def fold(self, tensor: str, values: NDArray[Any]) -> None:
        """Record that a tensor is a constant with these values, so that it needs no layer."""
        self._folded[tensor] = values

    def scalar(self, tensor: str) -> float | None:
        """Return the value of a constant with one element; None for any other tensor."""
        if not self.is_constant(tensor) or prod(self.shape(tensor)) != 1:
            return None
        return float(self.array(tensor).reshape(-1)[0])

    def ints(self, node: Node, position: int) -> tuple[int, ...]:
        """Return the values of the integer operand at a position.

        Raises:
            BuildError: the operand is missing or is not a constant.
        """
        tensor = node.inputs[position] if position < len(node.inputs) else ""
        if not tensor or not self.is_constant(tensor):
            raise refuse(node, f"operand {position} is computed at run time")
        return tuple(int(value) for value in self.array(tensor).reshape(-1))

    def only_reader(self, tensor: str) -> Node | None:
        """Return the only node that reads a tensor; None if several do or it is an output."""
        readers = self.graph.consumers.get(tensor, ())
        return readers[0] if len(readers) == 1 and tensor not in self.graph.outputs else None

    # Methods about the shapes of blobs

    def axes(self, shape: Sequence[int], needed: Collection[int] = ()) -> tuple[int, ...]:
        """Return the axes of a shape that its blob keeps.

        A batch of 1 is left out. Further axes of size 1 are left out, from the first on, while
        there are more than four axes. Axes in `needed` are always kept. If the result has more
        than four axes, no blob can hold the tensor in that shape.
        """
        kept = list(range(len(shape)))
        if len(kept) > 1 and shape[0] == 1 and 0 not in needed:
            kept.remove(0)
        for axis in tuple(kept):
            if len(kept) > _MOST_DIMS and shape[axis] == 1 and axis not in needed:
                kept.remove(axis)
        return tuple(kept)

    def fitting(self, node: Node, shape: Sequence[int], needed: Collection[int]) -> tuple[int, ...]:
        """Return the axes of a shape that its blob keeps, as `axes` does.

        Raises:
            BuildError: the node would need more than four axes.
        """
        axes = self.axes(shape, needed)
        if len(axes) > _MOST_DIMS:
            raise refuse(node, f"{len(axes)} dimensions {list(shape)}")
        return axes

    def plain(self, tensor: str) -> Dims:
        """Return the usual shape of a tensor's blob.

        If more than four axes remain, the first ones are merged, so that there are four.
        """
        shape = self.shape(tensor)
        dims = pick(shape, self.axes(shape))
        extra = len(dims) - _MOST_DIMS
        return dims if extra <= 0 else (prod(dims[: extra + 1]), *dims[extra + 1 :])

    def image(self, node: Node, tensor: str) -> Dims:
        """Return the shape of a tensor without its batch, so that the channels come first.

        Raises:
            BuildError: the batch is not 1, or more than four axes remain.
        """
        shape = self.shape(tensor)
        if len(shape) < 2 or shape[0] != 1:
            raise refuse(node, f"a batch of {shape[0] if shape else 0}")
        if len(shape) - 1 > _MOST_DIMS:
            raise refuse(node, f"{len(shape) - 1} dimensions {list(shape)}")
        return shape[1:]

    # Methods about the network's blobs

    def dims(self, tensor: str) -> Dims:
        """Return the shape of a tensor's blob."""
        return self._places[tensor][1] if tensor in self._places else self.plain(tensor)

    def blob(self, tensor: str, dims: Dims | None = None) -> int:
        """Return the number of a tensor's blob in the shape `dims`.

        A Reshape or Flatten is added if the blob has another shape. Without `dims`, the blob is
        returned in the shape that it has.
        """
        if tensor not in self._places:
            return self._constant(tensor, dims or self.plain(tensor))
        found, own = self._places[tensor]
        if dims is None or dims == own:
            return found
        if (found, dims) not in self._copies:
            view = self._views.get(tensor)
            name = view.name if view is not None else f"reshape_{self.net.blobs}"
            kind, params = ("Flatten", {}) if len(dims) == 1 else ("Reshape", shape_params(dims))
            (self._copies[found, dims],) = self.net.layer(kind, name, [found], params)
        return self._copies[found, dims]

    def _constant(self, tensor: str, dims: Dims) -> int:
        if (tensor, dims) not in self._constants:
            kind = self.graph.type_of(tensor).dtype
            if kind != "float32":
                raise BuildError(f"{self.graph.name}: ncnn has no {kind} constants ({tensor!r})")
            data = Data(partial(self.array, tensor), prod(dims))
            (made,) = self.net.layer("MemoryData", tensor, (), shape_params(dims), [data])
            self._constants[tensor, dims] = made
        return self._constants[tensor, dims]

    def put(self, tensor: str, blob: int, dims: Dims) -> None:
        """Record which blob holds a tensor, and the shape of that blob."""
        self._places[tensor] = (blob, dims)

    def view(self, node: Node) -> None:
        """Record that a node's result is its first operand in another shape; add no layer."""
        source, made = node.inputs[0], node.outputs[0]
        if self.is_constant(source):
            self.fold(made, self.array(source).reshape(self.shape(made)))
            return
        self._places[made] = self._places[source]
        self._views[made] = node

    def is_view(self, tensor: str) -> bool:
        """Return whether a tensor has the elements of another tensor in another shape."""
        return tensor in self._views

    def layer(
        self,
        node: Node,
        kind: str,
        bottoms: Sequence[int],
        dims: Dims,
        params: Params | None = None,
        data: Sequence[Data] = (),
        covers: Sequence[Node] = (),
    ) -> None:
        """Append a layer with one output blob for a node and the nodes that it includes.

        Args:
            node: the first node that the layer replaces.
            kind: the layer's type in ncnn.
            bottoms: the numbers of the blobs that the layer reads.
            dims: the shape of the blob that the layer makes.
            params: the layer's parameters in `.param`, by key.
            data: the layer's weights in `.bin`.
            covers: further nodes that the layer replaces. The layer makes the result of the last.
        """
        name = "+".join(covered.name for covered in (node, *covers))
        (made,) = self.net.layer(kind, name, bottoms, params, data)
        last = (node, *covers)[-1]
        self.put(last.outputs[0], made, dims)
        self.done.update(covered.outputs[0] for covered in covers)


def pick(shape: Sequence[int], axes: Sequence[int]) -> Dims:
    """Return the sizes of some axes of a shape; (1,) if there are no axes."""
    return tuple(shape[axis] for axis in axes) or (1,)


def floats(values: NDArray[Any], *, tagged: bool = False) -> Data:
    """Return an array for `.bin` whose values are known already; `tagged` as in `Data`."""
    made: Floats = np.asarray(values, np.float32)
    return Data(lambda: made, made.size, tagged)
