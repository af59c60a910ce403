"""Graph: a network as an immutable, weightless DAG of ops, with the op names of ONNX opset 13.

Weights are known by type alone. Only constants that change what is computed or how long it takes
(shapes, axes, pads, clip bounds) keep their values; when a model file is built from a graph, the
other weights are filled with noise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from latfarm_predictors.errors import GraphError

Value = TypeVar("Value")
AttrValue = int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "float16": 2,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
    }
)
"""Size in bytes of one element of each element type (numpy names)."""


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type (numpy name) and static shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size in bytes when stored densely."""
        return self.elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant operand: its type and, only where they matter, its values in row-major order.

    Values matter where they change what is computed or how long it takes: shapes, axes, bounds.
    """

    type: TensorType
    values: tuple[int, ...] | tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """One op. The empty name stands for an absent optional operand or result, as in ONNX."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Graph:
    """A network. Two graphs are equal when all their fields are, names included.

    Two graphs are the same network if `hash.hash_of`, which ignores names, is equal for both, or
    `equivalences.network_hash_of`, which also ignores what tools write differently.

    Attributes:
        name: of the network.
        inputs: names of the tensors that come from outside.
        outputs: names of the tensors that are results of the network.
        nodes: the ops in topological order.
        weights: constants by name.
        types: types of the inputs and of all results of nodes, by name.

    Raises:
        GraphError: on construction, when a tensor is unknown, is made twice, has no type or is used
            before it is made.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    types: Mapping[str, TensorType]

    def __post_init__(self) -> None:
        """Check that every tensor is made once, before its use, and has a type."""
        made = {*self.inputs, ""}  # the empty name stands for an absent operand or result
        for name in self.weights:
            if name in made:
                raise GraphError(f"{self.name}: tensor {name!r} is both an input and a weight")
            made.add(name)
        for node in self.nodes:
            if not made.issuperset(node.inputs):
                early = next(tensor for tensor in node.inputs if tensor not in made)
                raise GraphError(
                    f"{self.name}: node {node.name!r} ({node.op}) uses {early!r} before it is made"
                )
            for tensor in node.outputs:
                if tensor in made:
                    if tensor:
                        raise GraphError(f"{self.name}: tensor {tensor!r} is made twice")
                    continue
                made.add(tensor)
        for tensor in self.outputs:
            if not tensor or tensor not in made:
                raise GraphError(f"{self.name}: output {tensor!r} is never made")
        made.discard("")
        for tensor in made.difference(self.types, self.weights):
            raise GraphError(f"{self.name}: tensor {tensor!r} has no type")

    def type_of(self, tensor: str) -> TensorType:
        """Type of any tensor of the graph, weights included.

        Raises:
            GraphError: the graph has no such tensor.
        """
        found = self.types.get(tensor)
        if found is not None:
            return found
        weight = self.weights.get(tensor)
        if weight is None:
            raise GraphError(f"{self.name}: no tensor {tensor!r}")
        return weight.type

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that makes each tensor; inputs and weights of the network are not in it."""
        return {tensor: node for node in self.nodes for tensor in node.outputs if tensor}

    @cached_property
    def readers(self) -> Mapping[str, tuple[int, ...]]:
        """Indices of the nodes that read each tensor; tensors that no node reads are not in it."""
        found: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(node.inputs):
                if tensor:
                    found.setdefault(tensor, []).append(index)
        return {tensor: tuple(indices) for tensor, indices in found.items()}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor, in order; tensors that no node reads are not in it."""
        nodes = self.nodes
        return {t: tuple([nodes[i] for i in found]) for t, found in self.readers.items()}

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Index of the node that makes each tensor; inputs and weights are not in it."""
        return {t: index for index, node in enumerate(self.nodes) for t in node.outputs if t}

    def data_inputs(self, node: Node) -> tuple[str, ...]:
        """The operands of a node that are activations: they are present and are no weights."""
        return tuple(t for t in node.inputs if t and t not in self.weights)

    @cached_property
    def traffic_bytes(self) -> int:
        """Size in bytes of weights, inputs and all results, each counted once."""
        weights = sum(weight.type.size_bytes for weight in self.weights.values())
        made = (kind for name, kind in self.types.items() if name not in self.weights)
        return weights + sum(kind.size_bytes for kind in made)

    def once(self, make: Callable[[Graph], Value]) -> Value:
        """The value that a function computes from this graph; it is computed once and then kept.

        Functions beside this class (`hash.hash_of`, `totals.macs_of`) use it as a property would.

        Args:
            make: a pure function; its name is no other function's that is given here.
        """
        kept = self.__dict__  # where cached properties are kept too
        name = make.__name__
        if name in kept:
            known: Value = kept[name]
            return known
        found = kept[name] = make(self)
        return found

    def to_json(self) -> dict[str, Any]:
        """The graph as plain JSON types; `Graph.from_json` reads an equal graph from them."""
        return {
            "name": self.name,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "nodes": [
                {
                    "name": n.name,
                    "op": n.op,
                    "inputs": list(n.inputs),
                    "outputs": list(n.outputs),
                    "attrs": {
                        k: list(v) if isinstance(v, tuple) else v
                        for k, v in sorted(n.attrs.items())
                    },
                }
                for n in self.nodes
            ],
            "weights": {
                k: {"dtype": w.type.dtype, "shape": list(w.type.shape)}
                | ({} if w.values is None else {"values": list(w.values)})
                for k, w in self.weights.items()
            },
            "types": {k: {"dtype": t.dtype, "shape": list(t.shape)} for k, t in self.types.items()},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Graph:
        """Read what `to_json` wrote.

        Raises:
            GraphError: the data do not describe a valid graph.
        """
        try:
            return Graph(
                name=str(data["name"]),
                inputs=_names(data["inputs"]),
                outputs=_names(data["outputs"]),
                nodes=tuple(
                    Node(
                        str(n["name"]),
                        str(n["op"]),
                        _names(n["inputs"]),
                        _names(n["outputs"]),
                        {k: tuple(v) if isinstance(v, list) else v for k, v in n["attrs"].items()},
                    )
                    for n in data["nodes"]
                ),
                weights={
                    k: Weight(_type(w), tuple(w["values"]) if "values" in w else None)
                    for k, w in data["weights"].items()
                },
                types={k: _type(t) for k, t in data["types"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise GraphError(f"not a graph: {error!r}") from error

    def dumps(self) -> str:
        """Compact JSON text of `to_json`."""
        return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False)


def _type(data: Mapping[str, Any]) -> TensorType:
    dtype = str(data["dtype"])
    if dtype not in DTYPE_BYTES:
        raise GraphError(f"unknown element type {dtype!r}")
    shape = tuple(int(size) for size in data["shape"])
    if any(size < 1 for size in shape):
        raise GraphError(f"shape {list(shape)} has a size below 1")
    return TensorType(dtype, shape)


def _names(data: Any) -> tuple[str, ...]:
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise GraphError(f"not a graph: {data!r} is not a list of names")
    return tuple(data)
