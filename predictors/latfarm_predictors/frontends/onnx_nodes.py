"""Emitter: makes the nodes and weights of a Graph while an ONNX file is read node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.checker
import onnx.shape_inference

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_constants import (
    Array,
    Constant,
    Recipe,
    UnsupportedError,
    array_constant,
    compute,
    dtype_name,
    fold,
)
from latfarm_predictors.graph.canonical import canonical_attrs, tidy_float
from latfarm_predictors.graph.graph import AttrValue, Graph, Node, TensorType, Weight
from latfarm_predictors.graph.shapes import infer, supported_ops
from latfarm_predictors.graph.shapes.call import Values
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

# Positions of operands whose values decide what an op does. Of all other constants, only the type
# is kept.
_STRUCTURAL: Mapping[str, tuple[int, ...]] = {
    "Clip": (1, 2),
    "Pad": (1, 2),
    "Reshape": (1,),
    "Squeeze": (1,),
    "Unsqueeze": (1,),
    "Split": (1,),
    "Slice": (1, 2, 3, 4),
    "ReduceSum": (1,),
    "Resize": (2, 3),
    "Expand": (1,),
    "Tile": (1,),
    "Gather": (1,),
    "CumSum": (1,),
    "TopK": (1,),
    "OneHot": (1, 2),
}
# Ops whose scalar operands keep their value: it may choose the code that runs (x^2, x * 0.5).
_SCALAR_OPERANDS = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod"})
# Up to this number of elements, the indices of a Gather keep their values.
_GATHER_LIMIT = 16
# The number of results that an op must have, even if not all are read.
_FEWEST_OUTPUTS = {"TopK": 2}
# For an op without shape inference of ours, `onnx` is asked with these opsets, in this order: ours,
# then the last one of IR version 8.
_SCHEMA_OPSETS = (13, 17)


class Emitter:
    """Builds a Graph; all names that it makes are unique among tensors and among nodes.

    Attributes:
        batch: the batch in the file and the wanted one, where they differ, else None.
        inputs: names of the inputs.
        nodes: nodes in topological order.
    """

    def __init__(self) -> None:
        self.batch: tuple[int, int] | None = None
        self.inputs: list[str] = []
        self.nodes: list[Node] = []
        self._types: dict[str, TensorType] = {}
        self._constants: dict[str, Constant] = {}
        self._alias: dict[str, str] = {}
        self._made_by: dict[str, Node] = {}
        self._node_names: dict[str, int] = {}
        self._prefix = "node"

    def add_input(self, name: str, kind: TensorType) -> None:
        """Add a network input."""
        self.inputs.append(name)
        self._types[name] = kind

    def add_constant(self, name: str, constant: Constant) -> None:
        """Add a weight or a constant under its name in the file."""
        self._constants[name] = constant

    def bind(self, name: str, tensor: str) -> None:
        """Let a name of the file stand for a tensor of the Graph; an empty name stands for none."""
        if name and name != tensor:
            self._alias[name] = tensor

    def start(self, node_name: str) -> None:
        """Name the next nodes after this node of the file."""
        self._prefix = node_name

    def resolve(self, name: str) -> str:
        """The tensor of the Graph for which a name of the file stands.

        Raises:
            GraphError: no node read so far makes it.
        """
        found = self._alias.get(name, name)
        if found and found not in self._types and found not in self._constants:
            raise GraphError(f"tensor {name!r} is used before it is made")
        return found

    def type_of(self, x: str) -> TensorType:
        """Type of a tensor or constant of the Graph."""
        found = self._types.get(x)
        return found if found is not None else self._constants[x].type

    def is_constant(self, x: str) -> bool:
        """Whether the tensor is a constant."""
        return x in self._constants

    def values(self, x: str) -> Values | None:
        """Values of a small constant, else None."""
        constant = self._constants.get(x)
        return None if constant is None else constant.values()

    def array(self, x: str) -> Array | None:
        """Values of a small constant as an array, else None."""
        constant = self._constants.get(x)
        return None if constant is None else constant.read()

    def producer(self, x: str) -> Node | None:
        """The node of the Graph that makes `x`."""
        return self._made_by.get(x)

    def constant(self, constant: Constant) -> str:
        """Add a constant under a new name; returns the name."""
        name = self._fresh("constant")
        self._constants[name] = constant
        return name

    def ints(self, values: Sequence[int]) -> str:
        """Add a one-dimensional int64 constant; returns its name."""
        return self.constant(array_constant(np.asarray(values, dtype=np.int64)))

    def weight(self, kind: TensorType, recipe: Recipe | None = None) -> str:
        """Add a weight of which only the type matters; returns its name.

        Args:
            kind: its type.
            recipe: computes its values for those who ask for them.
        """
        return self.constant(Constant(kind, recipe=recipe))

    def full(self, x: str) -> Recipe:
        """A function that returns the values of a constant of any size."""
        return self._constants[x].full

    def scalar_like(self, x: str, value: float) -> str:
        """Add a scalar constant with the element type of `x`; returns its name."""
        return self.constant(array_constant(np.asarray(value, dtype=self.type_of(x).dtype)))

    def op(
        self, op_type: str, inputs: Sequence[str], attrs: Mapping[str, AttrValue] | None = None
    ) -> str:
        """Add a node with one result, or a constant if all operands are; returns its name."""
        return self.ops(op_type, inputs, attrs, 1)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[str],
        attrs: Mapping[str, AttrValue] | None,
        outputs: int,
    ) -> tuple[str, ...]:
        """Add a node with several results; returns their names.

        If all operands are constants, the results are constants too, and no node is added.

        Raises:
            GraphError: operands or attributes do not fit.
            UnsupportedError: no shape inference is known for the op.
        """
        operands = list(inputs)
        while operands and not operands[-1]:
            operands.pop()
        types = [self.type_of(x) if x else None for x in operands]
        full = canonical_attrs(op_type, attrs or {}, types)
        # The scaling of int8 weights is part of the network: they do not become float constants.
        constant = op_type != "DequantizeLinear" and self._all_constant(operands)
        if constant and outputs == 1:
            array = fold(op_type, [self.array(x) for x in operands if x], full)
            if array is not None:
                return (self.constant(array_constant(array)),)
        structural = _STRUCTURAL.get(op_type, ())
        values = [
            self.values(x) if index in structural else None for index, x in enumerate(operands)
        ]
        outputs = max(outputs, _FEWEST_OUTPUTS.get(op_type, 1))
        if op_type in supported_ops():
            made = infer(op_type, types, values, full, outputs)
        else:
            made = self._infer_by_schema(op_type, operands, full, outputs)
        if constant:
            return tuple(
                self.weight(kind, self._recipe(op_type, operands, full, kind, index))
                for index, kind in enumerate(made)
            )
        name = self._node_name()
        tensors: list[str] = []
        for kind in made:
            tensors.append(self._fresh(name))
            self._types[tensors[-1]] = kind
        node = Node(name, op_type, tuple(operands), tuple(tensors), full)
        self.nodes.append(node)
        self._made_by.update(dict.fromkeys(tensors, node))
        return node.outputs

    def finish(self, name: str, outputs: Sequence[str]) -> Graph:
        """The Graph of all nodes that `outputs` need; the others are dropped.

        Raises:
            GraphError: the outputs do not depend on any input.
        """
        wanted = set(outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        kept.reverse()
        if not kept:
            raise GraphError("no op is left: the outputs do not depend on the inputs")
        valued = _SCALAR_OPERANDS | {"Clip", "Pad"}
        scalars = {x for node in kept if node.op in valued for x in node.inputs}
        weights: dict[str, Weight] = {}
        for node in kept:
            op = node.op
            if op == "DequantizeLinear" and node.outputs[0] in scalars:
                x = node.inputs[0]
                if x in self._constants and self._constants[x].type.elements == 1:
                    op = "int8 scalar"
            for index, x in enumerate(node.inputs):
                if x in self._constants:
                    values = self._kept_values(op, index, x)
                    if x not in weights or values is not None:
                        weights[x] = Weight(self._constants[x].type, values)
        inputs = tuple(x for x in self.inputs if x in wanted)
        made = {t for node in kept for t in node.outputs}
        types = {x: kind for x, kind in self._types.items() if x in made or x in inputs}
        ends = tuple(dict.fromkeys(x for x in outputs if x not in self._constants))
        return Graph(name, inputs, ends, tuple(kept), weights, types)

    def _all_constant(self, operands: Sequence[str]) -> bool:
        return bool(operands) and all(not x or x in self._constants for x in operands)

    def _recipe(
        self,
        op: str,
        operands: Sequence[str],
        attrs: Mapping[str, AttrValue],
        kind: TensorType,
        index: int,
    ) -> Recipe | None:
        """A function that computes a large constant; None for all results but the first."""
        if index:
            return None
        sources = [self._constants[x] if x else None for x in operands]

        def recipe() -> Array:
            return compute(op, [None if s is None else s.full() for s in sources], attrs, kind)

        return recipe

    def _kept_values(self, op: str, index: int, x: str) -> Values | None:
        constant = self._constants[x]
        elements = constant.type.elements
        if (
            op == "int8 scalar"
        ):  # multiplied by its scale it is a scalar again, so no digit may be lost
            return constant.values()
        if op in _SCALAR_OPERANDS:
            if elements != 1:
                return None
        elif index not in _STRUCTURAL.get(op, ()) or (op == "Gather" and elements > _GATHER_LIMIT):
            return None
        values = constant.values()
        if values is not None and constant.type.dtype.startswith("float"):
            return tuple(tidy_float(float(value)) for value in values)
        return values

    def _infer_by_schema(
        self,
        op: str,
        operands: Sequence[str],
        attrs: Mapping[str, AttrValue],
        outputs: int,
    ) -> tuple[TensorType, ...]:
        """The types of the results as `onnx` infers them, for ops without a rule of ours."""
        opset = next((o for o in _SCHEMA_OPSETS if onnx.defs.has(op, o, "")), None)
        if opset is None:
            raise UnsupportedError(f"op {op} is not part of ONNX opset 13")
        schema = onnx.defs.get_schema(op, opset, "")
        names = [f"x{index}" if x else "" for index, x in enumerate(operands)]
        codes = {dtype: code for code, dtype in CAST_CODES.items()}
        kinds, data = {}, {}
        for tensor, x in zip(names, operands, strict=True):
            if not x:
                continue
            kind = self.type_of(x)
            kinds[tensor] = onnx.helper.make_tensor_type_proto(codes[kind.dtype], kind.shape)
            array = self.array(x)
            if array is not None:
                data[tensor] = onnx.numpy_helper.from_array(array)
        results = [f"y{index}" for index in range(outputs)]
        try:
            node = onnx.helper.make_node(op, names, results, **dict(attrs))
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, kinds, data, opset_imports=[onnx.helper.make_opsetid("", opset)]
            )
            return tuple(_proto_type(found[result]) for result in results)
        except (
            KeyError,
            RuntimeError,
            TypeError,
            ValueError,
            onnx.checker.ValidationError,
            onnx.shape_inference.InferenceError,
        ) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "unknown"
            raise UnsupportedError(f"the result of {op} has no static type: {reason}") from error

    def _node_name(self) -> str:
        name = self._prefix
        count = self._node_names.get(name, 0)
        while name in self._node_names:
            count += 1
            name = f"{self._prefix}_{count + 1}"
        self._node_names[self._prefix] = count
        self._node_names.setdefault(name, 0)
        return name

    def _fresh(self, stem: str) -> str:
        # Few files have colons in names, so new names rarely meet theirs.
        count = len(self._types) + len(self._constants)
        name = f"{stem}:{count}"
        while name in self._types or name in self._constants or name in self._alias:
            count += 1
            name = f"{stem}:{count}"
        return name


def _proto_type(kind: Any) -> TensorType:
    tensor = kind.tensor_type
    if tensor.elem_type not in CAST_CODES:
        raise ValueError(f"element type {dtype_name(tensor.elem_type)}")
    if not tensor.HasField("shape") or any(d.dim_value < 1 for d in tensor.shape.dim):
        raise ValueError("its shape depends on the data")
    return TensorType(CAST_CODES[tensor.elem_type], tuple(d.dim_value for d in tensor.shape.dim))
