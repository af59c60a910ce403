"""NodeBuilder: add nodes of any op to a graph, with names, types and attributes filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, overload

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.canonical import canonical_attrs, tidy_float
from latfarm_predictors.graph.graph import DTYPE_BYTES, AttrValue, Graph, Node, TensorType, Weight
from latfarm_predictors.graph.shapes import infer
from latfarm_predictors.graph.shapes.call import Values


class NodeBuilder:
    """Adds inputs, weights and nodes of any op to one graph; not thread-safe.

    Args:
        name: of the graph.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._weights: dict[str, Weight] = {}
        self._types: dict[str, TensorType] = {}

    def input(self, shape: Sequence[int], dtype: str = "float32") -> str:
        """Add a network input of a static shape; returns its name."""
        name = f"input_{len(self._inputs)}" if self._inputs else "input"
        self._types[name] = checked_type(dtype, shape)
        self._inputs.append(name)
        return name

    def weight(
        self, shape: Sequence[int], dtype: str = "float32", values: Sequence[float] | None = None
    ) -> str:
        """Add a constant operand; returns its name.

        Args:
            shape: of the constant.
            dtype: element type, as a numpy name.
            values: in row-major order, only where they change what is computed or how long it
                takes (shapes, axes, bounds); other weights are filled when a model is built.

        Raises:
            GraphError: the number of values does not fit the shape, or no such type or shape.
        """
        name = f"weight_{len(self._weights)}"
        kind = checked_type(dtype, shape)
        if values is None:
            self._weights[name] = Weight(kind)
            return name
        if len(values) != kind.elements:
            raise GraphError(f"{self._name}: {len(values)} values for shape {list(shape)}")
        kept: Values
        if dtype.startswith("float"):
            kept = tuple([tidy_float(float(v)) for v in values])
        else:
            kept = tuple([int(v) for v in values])
        self._weights[name] = Weight(kind, kept)
        return name

    def scalar_like(self, x: str, value: float) -> str:
        """Add a constant scalar with the element type of `x`; returns its name."""
        return self.weight((), self.type_of(x).dtype, (value,))

    def type_of(self, x: str) -> TensorType:
        """Type of a tensor that was added before.

        Raises:
            GraphError: there is no such tensor.
        """
        found = self._types.get(x)
        if found is not None:
            return found
        if x in self._weights:
            return self._weights[x].type
        raise GraphError(f"{self._name}: no tensor {x!r}")

    @overload
    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: Literal[1] = 1,
    ) -> str: ...

    @overload
    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: int = 1,
    ) -> tuple[str, ...]: ...

    def op(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None = None,
        outputs: int = 1,
    ) -> str | tuple[str, ...]:
        """Add a node of any op that has shape inference.

        Args:
            op_type: ONNX opset-13 name.
            inputs: names of the operands; "" stands for an absent optional operand.
            attrs: attributes; those left out get the defaults of ONNX.
            outputs: number of results.

        Returns:
            The name of the result, or a tuple of names when `outputs` is more than 1.

        Raises:
            GraphError: the op is unknown, or its operands or attributes do not fit.
        """
        types: list[TensorType | None] = []
        values: list[Values | None] = []
        for tensor in inputs:
            kind, known = self._types.get(tensor), None
            if kind is None and tensor:
                weight = self._weights.get(tensor)
                if weight is None:
                    raise GraphError(f"{self._name}: no tensor {tensor!r}")
                kind, known = weight.type, weight.values
            types.append(kind)
            values.append(known)
        name = f"{op_type.lower()}_{len(self._nodes)}"
        try:
            full = canonical_attrs(op_type, attrs or {}, types)
            made = infer(op_type, types, values, full, outputs)
        except GraphError as error:
            raise GraphError(f"{self._name}: {name}: {error}") from error
        if outputs == 1:
            return self.append(op_type, tuple(inputs), full, made[0])
        names = tuple(f"{name}_{i}" for i in range(outputs))
        self._types.update(zip(names, made, strict=True))
        self._nodes.append(Node(name, op_type, tuple(inputs), names, full))
        return names

    def build(self, outputs: Sequence[str]) -> Graph:
        """The graph of all that was added so far, with these outputs."""
        return Graph(
            self._name,
            tuple(self._inputs),
            tuple(outputs),
            tuple(self._nodes),
            dict(self._weights),
            dict(self._types),
        )

    def append(
        self,
        op_type: str,
        inputs: tuple[str, ...],
        attrs: Mapping[str, AttrValue],
        made: TensorType,
    ) -> str:
        """Add a node with canonical attributes and one result of a known type; returns its name."""
        name = f"{op_type.lower()}_{len(self._nodes)}"
        self._types[name] = made
        self._nodes.append(Node(name, op_type, inputs, (name,), attrs))
        return name


def checked_type(dtype: str, shape: Sequence[int]) -> TensorType:
    """The type of a tensor.

    Raises:
        GraphError: no such element type, or a size is no integer of at least 1.
    """
    if dtype not in DTYPE_BYTES:
        raise GraphError(f"unknown element type {dtype!r}")
    for size in shape:
        if not isinstance(size, int) or size < 1:
            raise GraphError(f"shape {list(shape)} must be of integers of at least 1")
    return TensorType(dtype, tuple(shape))
