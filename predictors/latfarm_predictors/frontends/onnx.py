"""Read an ONNX file as a Graph: any user's file, opset 7 to the newest that `onnx` knows.

Folded away: constants (weights made by ConstantOfShape are never made real), shape chains,
Identity, inference Dropout, views that change nothing. BatchNormalization stays: whether it costs
anything is the runtime's affair. Whatever is wrong with a file ends in one ModelFileError of one
line that names the file, the node and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError

from latfarm_predictors.errors import (
    DynamicShapeError,
    GraphError,
    ModelFileError,
    UnsupportedOpError,
)
from latfarm_predictors.frontends.onnx_constants import dtype_name, tensor_constant
from latfarm_predictors.frontends.onnx_nodes import Emitter, UnsupportedError
from latfarm_predictors.frontends.onnx_ops import Call, convert
from latfarm_predictors.graph import Graph, TensorType
from latfarm_predictors.shapes import CAST_CODES

SIZE_LIMIT_BYTES = 2 * 1024**3
OLDEST_OPSET = 7

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_QUANTIZED = (
    "QLinear",
    "Quantize",
    "Dequantize",
    "DynamicQuantize",
    "ConvInteger",
    "MatMulInteger",
)

Dims = tuple[int | str | None, ...]


def read_onnx(
    path: str | Path,
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Graph:
    """Read the model in `path`.

    Args:
        path: an .onnx file.
        batch: first dimension of every input, whatever the file says.
        shapes: full shapes of inputs by name, whatever the file says; stronger than `batch`.

    Raises:
        ModelFileError: no file, no ONNX, damaged, or its parts contradict each other.
        UnsupportedOpError: it uses an op, or a form of one, that cannot be expressed.
        DynamicShapeError: an input's dimension is open, and neither `batch` nor `shapes` binds it.
    """
    file = Path(path)
    model = _load(file)
    return _Reader(file, model, batch, shapes or {}).read()


def _load(file: Path) -> Any:
    """The file as a ModelProto that has a graph and says its opset."""
    try:
        if file.is_dir():
            raise ModelFileError(f"{file}: is a folder; name an .onnx file in it")
        size = file.stat().st_size
        if size > SIZE_LIMIT_BYTES:
            raise ModelFileError(
                f"{file}: {size / 1024**3:.1f} GiB exceeds ONNX's 2 GiB; export a smaller model"
            )
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise ModelFileError(f"{file}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelFileError(
            f"{file}: cannot be read: {reason}; check the path and its permissions"
        ) from error
    if not data:
        raise ModelFileError(f"{file}: is empty; export the model again")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise ModelFileError(
            f"{file}: is no ONNX model, or is cut off; export or copy it again"
        ) from error
    if not model.graph.node:
        raise ModelFileError(f"{file}: is no ONNX model: it holds no graph; export the model again")
    # protobuf hands over text that is not UTF-8 as bytes.
    sound = all(isinstance(text, str) for text in _texts(model))
    if not sound or not all(node.op_type.isidentifier() for node in model.graph.node):
        raise ModelFileError(
            f"{file}: is damaged: a name in it is no text; export or copy it again"
        )
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (RuntimeError, ValueError) as error:
            raise ModelFileError(
                f"{file}: its functions cannot be inlined: {_line(error)}; export without functions"
            ) from error
    return model


class _Reader:
    """One reading of one model."""

    def __init__(
        self, file: Path, model: Any, batch: int | None, shapes: Mapping[str, Sequence[int]]
    ) -> None:
        self._file = file
        self._model = model
        self._batch = batch
        self._shapes = shapes
        self._emitter = Emitter()

    def read(self) -> Graph:
        """The whole model as a Graph."""
        opset = self._opset()
        graph, emitter = self._model.graph, self._emitter
        try:
            for proto in graph.initializer:
                emitter.add_constant(proto.name, tensor_constant(proto))
        except GraphError as error:
            raise self._error(error, "export the model as one file of float tensors") from error
        if graph.sparse_initializer:
            raise UnsupportedOpError(
                f"{self._file}: has sparse weights; export the model with dense ones"
            )
        self._read_inputs({proto.name for proto in graph.initializer})
        used = {name for node in graph.node for name in node.input}
        used.update(value.name for value in graph.output)
        for index, node in enumerate(graph.node):
            self._read_node(node, index, used, opset)
        try:
            outputs = [emitter.resolve(value.name) for value in graph.output]
            name = "".join(c if c.isprintable() else " " for c in graph.name)
            return emitter.finish(name or self._file.stem, outputs)
        except GraphError as error:
            raise self._error(error, "export the model again") from error

    def _opset(self) -> int:
        versions = [o.version for o in self._model.opset_import if o.domain in ("", "ai.onnx")]
        if not versions:
            raise ModelFileError(
                f"{self._file}: does not say its opset; export the model again at opset 13"
            )
        newest = onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= versions[0] <= newest:
            raise ModelFileError(
                f"{self._file}: opset {versions[0]} is not between {OLDEST_OPSET} and {newest};"
                " export the model again at opset 13"
            )
        return int(versions[0])

    def _read_inputs(self, weights: set[str]) -> None:
        if self._batch is not None and self._batch < 1:
            raise ModelFileError(f"{self._file}: a batch of {self._batch}; give --batch 1 or more")
        declared = [value for value in self._model.graph.input if value.name not in weights]
        names = [value.name for value in declared]
        for name in self._shapes:
            if name not in names:
                raise ModelFileError(
                    f"{self._file}: has no input {name!r}; give --shape for {', '.join(names)}"
                )
        for value in declared:
            kind = value.type
            if kind.WhichOneof("value") != "tensor_type":
                raise UnsupportedOpError(
                    f"{self._file}: input {value.name!r} is no tensor; export it as one"
                )
            code = kind.tensor_type.elem_type
            if code not in CAST_CODES:
                raise UnsupportedOpError(
                    f"{self._file}: input {value.name!r} has element type {dtype_name(code)};"
                    " export the model with float inputs"
                )
            shape = self._bound_shape(value.name, kind.tensor_type)
            self._emitter.add_input(value.name, TensorType(CAST_CODES[code], shape))

    def _bound_shape(self, name: str, tensor: Any) -> tuple[int, ...]:
        """An input's static shape: as asked for, else as declared."""
        declared: Dims | None = None
        if tensor.HasField("shape"):
            declared = tuple(
                d.dim_value if d.dim_value > 0 else (d.dim_param or None) for d in tensor.shape.dim
            )
        asked = self._shapes.get(name)
        if asked is not None:
            shape = tuple(int(size) for size in asked)
            if any(size < 1 for size in shape) or len(shape) != len(declared or shape):
                told = "?" if declared is None else _told(declared)
                raise ModelFileError(
                    f"{self._file}: shape {_told(shape)} does not fit input {name!r} of shape"
                    f" {told}; give --shape with as many sizes, each at least 1"
                )
        elif declared is None:
            raise DynamicShapeError(
                f"{self._file}: input {name!r} has no shape; give --shape {name}:1,3,224,224"
            )
        else:
            wanted = declared if self._batch is None else (self._batch, *declared[1:])
            shape = self._closed(name, declared, wanted if declared else ())
        first = declared[0] if declared else None
        if shape and isinstance(first, int) and first != shape[0]:
            self._emitter.batch = (first, shape[0])
        return shape

    def _closed(self, name: str, declared: Dims, wanted: Dims) -> tuple[int, ...]:
        shape = tuple(size for size in wanted if isinstance(size, int))
        if len(shape) == len(wanted):
            return shape
        if all(isinstance(size, int) for size in declared[1:]):
            remedy = "give --batch 1"
        else:
            filled = _suggestion(wanted)
            remedy = f"give --shape {name}:{filled}"
        raise DynamicShapeError(
            f"{self._file}: input {name!r} has open dimensions {_told(declared)}; {remedy}"
        )

    def _read_node(self, node: Any, index: int, used: set[str], opset: int) -> None:
        label = node.name or f"{node.op_type}_{index}"
        if node.domain not in ("", "ai.onnx"):
            raise self._unsupported(
                label, node, f"comes from domain {node.domain!r}", "export with standard ops alone"
            )
        if node.op_type in _CONTROL_FLOW or any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
            for a in node.attribute
        ):
            raise self._unsupported(
                label,
                node,
                "is control flow, whose latency depends on the data",
                "export the model without it",
            )
        if node.op_type.startswith(_QUANTIZED):
            raise self._unsupported(
                label, node, "is int8 arithmetic, which is not read yet", "give the float model"
            )
        emitter = self._emitter
        emitter.start(label)
        last = max((i for i, name in enumerate(node.output) if name in used), default=0)
        try:
            inputs = [emitter.resolve(name) for name in node.input]
            attrs = {a.name: self._attribute(a) for a in node.attribute}
            made = convert(emitter, Call(node.op_type, inputs, attrs, last + 1, opset))
            for name, tensor in zip(node.output, made, strict=False):
                emitter.bind(name, tensor)
        except UnsupportedError as error:
            raise self._unsupported(
                label, node, f"is not supported: {error}", "export the model without it"
            ) from error
        except GraphError as error:
            raise ModelFileError(
                f"{self._file}: node {label!r} ({node.op_type}): {error};"
                " check the model with onnx.checker, or simplify it with fixed input shapes"
            ) from error

    def _attribute(self, proto: Any) -> Any:
        """An attribute as plain values; tensors stay protos."""
        kind = onnx.AttributeProto
        if proto.type == kind.INT:
            return int(proto.i)
        if proto.type == kind.FLOAT:
            return float(proto.f)
        if proto.type == kind.STRING:
            return proto.s.decode(errors="replace")
        if proto.type == kind.INTS:
            return tuple(int(item) for item in proto.ints)
        if proto.type == kind.FLOATS:
            return tuple(float(item) for item in proto.floats)
        if proto.type == kind.STRINGS:
            return tuple(item.decode(errors="replace") for item in proto.strings)
        if proto.type == kind.TENSOR:
            return proto.t
        raise UnsupportedError(f"attribute {proto.name!r} has a type that is not known")

    def _unsupported(self, label: str, node: Any, what: str, remedy: str) -> UnsupportedOpError:
        return UnsupportedOpError(f"{self._file}: node {label!r} ({node.op_type}) {what}; {remedy}")

    def _error(self, error: GraphError, remedy: str) -> ModelFileError:
        return ModelFileError(f"{self._file}: {error}; {remedy}")


def _texts(model: Any) -> Iterator[object]:
    """Every text of a model that the reader looks at."""
    graph = model.graph
    yield graph.name
    yield from (entry.domain for entry in model.opset_import)
    yield from (proto.name for proto in (*graph.initializer, *graph.output, *graph.input))
    for value in graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _told(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _suggestion(shape: Dims) -> str:
    """Sizes to start from: 1 for the batch, 224 for open image sides."""
    filled = [
        size if isinstance(size, int) else (1 if axis == 0 else 3 if axis == 1 else 224)
        for axis, size in enumerate(shape)
    ]
    return ",".join(str(size) for size in filled)


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
