"""An ONNX model that is being built, and how it is written to bytes.

The file has IR version 8, and opset 13 unless a node needs a newer one. The versions that the
package onnx uses by default are too new for the runtimes of older boards; every runtime in use
reads IR version 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import BytesIO
from typing import Any, NamedTuple

import onnx
from latfarm_predictors.graph.graph import AttrValue, Node, TensorType
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto

from latfarm_controller.builders.noise import Weights
from latfarm_controller.errors import BuildError

IR_VERSION = 8
OPSET = 13
NEWEST_OPSET = 17  # the newest opset that IR version 8 was made for

ELEMENT_TYPES: Mapping[str, int] = {
    "float64": TensorProto.DOUBLE,
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}
"""ONNX's number for each element type."""
MOST_BYTES = 2**31 - 2**20
"""Most bytes of constants in one file: protobuf's limit of 2 GiB, minus 1 MiB for the nodes."""


class DataPlace(NamedTuple):
    """Where a constant lies that is not in the model: a file beside it, and a place in the file."""

    file: str
    offset: int
    size_bytes: int


@dataclass
class OnnxDraft:
    """An ONNX model that is being built: its nodes in order, and its constants as arrays.

    If the value of a constant is None, the weight with the same name is taken from `weights` when
    the model is written.
    """

    name: str
    weights: Weights
    inputs: dict[str, TensorType] = field(default_factory=dict)
    outputs: dict[str, TensorType] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, NDArray[Any] | None] = field(default_factory=dict)

    def node(
        self,
        op: str,
        inputs: tuple[str, ...],
        output: str,
        attrs: Mapping[str, AttrValue] | None = None,
    ) -> str:
        """Add a node with one output, and return the name of that output."""
        self.nodes.append(Node(self.fresh(f"{output}/{op}"), op, inputs, (output,), attrs or {}))
        return output

    def successor(self) -> OnnxDraft:
        """Return an empty draft with the same inputs and outputs, which does not reuse names."""
        made = OnnxDraft(self.name, self.weights, self.inputs, self.outputs)
        made._names = set(self._names)
        return made

    def fresh(self, stem: str) -> str:
        """Return a name that no tensor and no node has, and reserve it."""
        name, count = stem, 1
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def write(self, constant: str, out: memoryview) -> None:
        """Write the bytes of a constant into `out`."""
        data = self.constants[constant]
        if data is None:
            self.weights.write(constant, out)
        else:
            out[:] = data.tobytes()

    @cached_property
    def _names(self) -> set[str]:
        made = (tensor for node in self.nodes for tensor in node.outputs)
        return {*self.inputs, *self.constants, *made, *(node.name for node in self.nodes)}

    def type_of(self, constant: str) -> TensorType:
        """Return the shape and the element type of a constant."""
        data = self.constants[constant]
        if data is None:
            return self.weights.type_of(constant)
        return TensorType(data.dtype.name, data.shape)


def opset_of(nodes: list[Node]) -> int:
    """Return the oldest opset, from 13 on, that has the op of every node.

    Raises:
        BuildError: no opset that IR version 8 was made for has an op; the message names the node
            and its op.
    """
    return max((_opset(node) for node in nodes), default=OPSET)


def serialise(draft: OnnxDraft, outside: Mapping[str, DataPlace] | None = None) -> bytes:
    """Return the bytes of the model.

    Args:
        draft: the model.
        outside: where those constants lie whose bytes are not in the model.

    Raises:
        BuildError: IR version 8 cannot express an op or attribute (the message names the node and
            its op), or the model is larger than 2 GB.
    """
    places = outside or {}
    kinds = {tensor: draft.type_of(tensor) for tensor in draft.constants if tensor not in places}
    size_bytes = sum(kind.size_bytes for kind in kinds.values())
    if size_bytes > MOST_BYTES:
        raise BuildError(f"{draft.name}: {size_bytes} bytes of weights exceed ONNX's 2 GB")
    opset = opset_of(draft.nodes)
    model = ModelProto(ir_version=IR_VERSION, producer_name="latfarm")
    model.opset_import.add(domain="", version=opset)
    proto = GraphProto(name=draft.name)
    for tensor, kind in draft.inputs.items():
        _describe(proto.input.add(), tensor, kind)
    for tensor, kind in draft.outputs.items():
        _describe(proto.output.add(), tensor, kind)
    for node in draft.nodes:
        _add_node(proto.node.add(), node, opset)
    for tensor, place in places.items():
        _refer(proto.initializer.add(), tensor, draft.type_of(tensor), place)
    return _assemble(draft, kinds, model.SerializeToString(), proto.SerializeToString())


def _assemble(
    draft: OnnxDraft, kinds: Mapping[str, TensorType], model: bytes, nodes: bytes
) -> bytes:
    """Return the bytes of the model; constants are written directly to their place in the file.

    With protobuf objects, half a gigabyte of weights would be copied four times, and touching that
    much new memory takes seconds. `model` is the model message without its graph, and `nodes` is
    the graph message without the initializers of `kinds`. The missing fields can be appended as
    bytes, because a serialised message is the concatenation of its fields.
    """
    heads: list[bytes] = []
    for tensor, kind in kinds.items():
        head = TensorProto(
            name=tensor, data_type=ELEMENT_TYPES[kind.dtype], dims=kind.shape
        ).SerializeToString() + _prefix(TensorProto.RAW_DATA_FIELD_NUMBER, kind.size_bytes)
        field_head = _prefix(GraphProto.INITIALIZER_FIELD_NUMBER, len(head) + kind.size_bytes)
        heads.append(field_head + head)
    inner = len(nodes) + sum(map(len, heads)) + sum(kind.size_bytes for kind in kinds.values())
    start = model + _prefix(ModelProto.GRAPH_FIELD_NUMBER, inner) + nodes
    file = BytesIO()
    file.seek(len(start) - len(nodes) + inner - 1)
    file.write(b"\0")  # allocates the whole file at once; getvalue() below does not copy it
    with file.getbuffer() as out:
        out[: len(start)] = start
        at = len(start)
        for head, (tensor, kind) in zip(heads, kinds.items(), strict=True):
            out[at : at + len(head)] = head
            at += len(head)
            with out[at : at + kind.size_bytes] as part:
                draft.write(tensor, part)
            at += kind.size_bytes
    return file.getvalue()


def _prefix(number: int, size_bytes: int) -> bytes:
    """Return the tag and the length that precede a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(size_bytes)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _refer(made: Any, name: str, kind: TensorType, place: DataPlace) -> None:
    """Fill in a tensor whose bytes lie in another file."""
    made.name = name
    made.data_type = ELEMENT_TYPES[kind.dtype]
    made.dims.extend(kind.shape)
    made.data_location = TensorProto.EXTERNAL
    for key, value in (
        ("location", place.file),
        ("offset", str(place.offset)),
        ("length", str(place.size_bytes)),
    ):
        made.external_data.add(key=key, value=value)


def _describe(info: Any, name: str, kind: TensorType) -> None:
    info.name = name
    info.type.tensor_type.elem_type = ELEMENT_TYPES[kind.dtype]
    shape = info.type.tensor_type.shape
    shape.SetInParent()  # writes the shape of a scalar too, which has no dimensions
    for size in kind.shape:
        shape.dim.add(dim_value=size)


@cache
def _schema(op: str, opset: int) -> Mapping[str, int] | None:
    """Return the type of each attribute of an op; None if the opset does not have the op."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        return None
    return {name: int(attribute.type.value) for name, attribute in schema.attributes.items()}


@cache
def _first_opset(op: str) -> int | None:
    for opset in range(OPSET, NEWEST_OPSET + 1):
        if _schema(op, opset) is not None:
            return opset
    return None


def _opset(node: Node) -> int:
    found = _first_opset(node.op)
    if found is None:
        raise BuildError(
            f"node {node.name!r} ({node.op}): not in ONNX opsets {OPSET} to {NEWEST_OPSET}"
        )
    return found


def _add_node(made: Any, node: Node, opset: int) -> None:
    made.name = node.name
    made.op_type = node.op
    made.input.extend(node.inputs)
    made.output.extend(node.outputs)
    known = _schema(node.op, opset) or {}
    for name, value in sorted(node.attrs.items()):
        kind = known.get(name)
        if kind is not None:
            _set_attribute(made.attribute.add(name=name, type=kind), kind, value)
        elif not _says_nothing(name, value):
            raise BuildError(
                f"node {node.name!r} ({node.op}): opset {opset} has no attribute {name} ({value!r})"
            )


def _says_nothing(name: str, value: AttrValue) -> bool:
    """Whether an attribute that an older opset lacks has the value that this opset implies."""
    if isinstance(value, tuple):
        return name == "dilations" and all(size == 1 for size in value)
    return name == "ceil_mode" and value == 0


def _set_attribute(made: Any, kind: int, value: AttrValue) -> None:
    many = value if isinstance(value, tuple) else (value,)
    if kind == AttributeProto.INT:
        made.i = int(many[0])
    elif kind == AttributeProto.FLOAT:
        made.f = float(many[0])
    elif kind == AttributeProto.STRING:
        made.s = str(many[0]).encode()
    elif kind == AttributeProto.INTS:
        made.ints.extend(int(v) for v in many)
    elif kind == AttributeProto.FLOATS:
        made.floats.extend(float(v) for v in many)
    elif kind == AttributeProto.STRINGS:
        made.strings.extend(str(v).encode() for v in many)
    else:
        raise BuildError(f"attribute {made.name}: type {kind} cannot be written")
