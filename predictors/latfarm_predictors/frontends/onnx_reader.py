"""Reader: reads an opened ONNX model as a Graph of opset 13 with static shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import onnx
import onnx.checker

from latfarm_predictors.errors import (
    DynamicShapeError,
    GraphError,
    ModelFileError,
    UnsupportedOpError,
)
from latfarm_predictors.frontends.onnx_call import OnnxCall
from latfarm_predictors.frontends.onnx_constants import (
    Constant,
    UnsupportedError,
    dtype_name,
    tensor_constant,
)
from latfarm_predictors.frontends.onnx_file import ModelFile
from latfarm_predictors.frontends.onnx_fused import FUSED
from latfarm_predictors.frontends.onnx_int8 import MICROSOFT
from latfarm_predictors.frontends.onnx_nodes import Emitter
from latfarm_predictors.frontends.onnx_ops import convert
from latfarm_predictors.graph.graph import Graph, TensorType
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

OLDEST_OPSET = 7
"""The oldest opset that is read."""

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_STANDARD = ("", "ai.onnx")
# The largest number of letters of a file's own texts that an error message quotes.
_QUOTED_LETTERS = 300
# Errors that libraries raise on damaged or hostile files.
_FOREIGN = (
    *(ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError),
    *(ValueError, onnx.checker.ValidationError),
)

Dims = tuple[int | str | None, ...]
Shapes = Mapping[str, Sequence[int]]


class Reader:
    """Reads one model once.

    Args:
        opened: the model.
        batch: the first dimension of every input, instead of the one in the file.
        shapes: full shapes of inputs by name, instead of those in the file.
        weights: names of inputs that are weights without values (see `onnx_slim`).

    Attributes:
        emitter: has the constants after `read`, for those who want their values.
    """

    def __init__(
        self,
        opened: ModelFile,
        batch: int | None = None,
        shapes: Shapes = MappingProxyType({}),
        weights: frozenset[str] = frozenset(),
    ) -> None:
        self._opened = opened
        self._file = opened.path
        self._model = opened.model
        self._batch = batch
        self._shapes = shapes
        self._weights = weights
        self._opset = 0
        self.emitter = Emitter()

    def read(self) -> Graph:
        """The whole model as a Graph.

        Raises:
            ModelFileError: its parts contradict each other, or cannot be expressed.
        """
        self._opset = self._declared_opset()
        graph, emitter = self._model.graph, self.emitter
        try:
            for proto in graph.initializer:
                emitter.add_constant(proto.name, self._constant(proto))
        except UnsupportedError as error:
            raise UnsupportedOpError(
                f"{self._file}: {_short(str(error))}; export the model with float32 tensors"
            ) from error
        except GraphError as error:
            raise self._error(
                error,
                "export the model as one file (with PyTorch: external_data=False)",
            ) from error
        if graph.sparse_initializer:
            raise UnsupportedOpError(
                f"{self._file}: has sparse weights; export the model with dense ones"
            )
        self._read_inputs({proto.name for proto in graph.initializer})
        self._read_nodes(graph)
        try:
            outputs = [emitter.resolve(value.name) for value in graph.output]
            name = "".join(c if c.isprintable() else " " for c in graph.name)
            return emitter.finish(name or self._file.stem, outputs)
        except GraphError as error:
            raise self._error(error, "export the model again") from error

    def _constant(self, proto: Any) -> Constant:
        found, opened = tensor_constant(proto), self._opened
        if opened.is_big(proto.name):
            name, kind = proto.name, found.type
            return Constant(kind, recipe=lambda: opened.tensor(name, kind.dtype, kind.shape))
        return found

    def _declared_opset(self) -> int:
        versions = [o.version for o in self._model.opset_import if o.domain in _STANDARD]
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

    # Inputs

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
                    f"{self._file}: input {value.name!r} is not a tensor; export it as one"
                )
            code = kind.tensor_type.elem_type
            if code not in CAST_CODES:
                raise UnsupportedOpError(
                    f"{self._file}: input {value.name!r} has element type {dtype_name(code)};"
                    " export the model with float inputs"
                )
            shape = self._bound_shape(value.name, kind.tensor_type)
            found = TensorType(CAST_CODES[code], shape)
            if value.name in self._weights:
                self.emitter.add_constant(value.name, Constant(found))
            else:
                self.emitter.add_input(value.name, found)

    def _bound_shape(self, name: str, tensor: Any) -> tuple[int, ...]:
        """The static shape of an input: the one that was asked for, else the one in the file."""
        declared: Dims | None = None
        if tensor.HasField("shape"):
            declared = tuple(
                d.dim_value if d.dim_value > 0 else (d.dim_param or None) for d in tensor.shape.dim
            )
        asked = self._shapes.get(name)
        if asked is not None:
            shape = tuple(int(size) for size in asked)
            if any(size < 1 for size in shape) or len(shape) != len(declared or shape):
                own = "?" if declared is None else _shape_text(declared)
                raise ModelFileError(
                    f"{self._file}: shape {_shape_text(shape)} does not fit input {name!r} of shape"
                    f" {own}; give --shape with as many sizes, each at least 1"
                )
        elif declared is None:
            raise DynamicShapeError(
                f"{self._file}: input {name!r} has no shape; give --shape {name}:1,3,224,224 for "
                f"an image, or --shape {name}:1,128 for 128 tokens"
            )
        else:
            wanted = declared if self._batch is None else (self._batch, *declared[1:])
            shape = self._closed(name, declared, wanted if declared else ())
        first = declared[0] if declared else None
        if shape and isinstance(first, int) and first != shape[0]:
            self.emitter.batch = (first, shape[0])
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
            f"{self._file}: input {name!r} has open dimensions {_shape_text(declared)}; {remedy}"
        )

    # Nodes

    def _read_nodes(self, graph: Any) -> None:
        used = set(filter(None, _used_names(graph)))
        for index, node in enumerate(graph.node):
            label = _short(node.name) or f"{node.op_type}_{index}"
            try:
                self._read_node(node, label, used)
            except UnsupportedError as error:
                raise self._unsupported(
                    label, node, f"is not supported: {_short(str(error))}"
                ) from error
            except (GraphError, *_FOREIGN) as error:
                raise ModelFileError(
                    f"{self._file}: node {label!r} ({node.op_type}): {_short(str(error))};"
                    " check the model with onnx.checker, or simplify it with fixed input shapes"
                ) from error

    def _read_node(self, node: Any, label: str, used: set[str]) -> None:
        emitter, op = self.emitter, node.op_type
        own = None if node.domain in _STANDARD else MICROSOFT.get(op, FUSED.get(op))
        if node.domain not in _STANDARD and (own is None or node.domain != "com.microsoft"):
            raise self._unsupported(
                label, node, f"comes from domain {node.domain!r}", "export with standard ops alone"
            )
        emitter.start(label)
        if op == "If" and self._read_branch(node):
            return
        if op in _CONTROL_FLOW or any(_is_graph(attribute) for attribute in node.attribute):
            raise self._unsupported(
                label, node, "is control flow, whose latency depends on the data"
            )
        last = max((i for i, name in enumerate(node.output) if name in used), default=0)
        inputs = [emitter.resolve(name) for name in node.input]
        attrs = {a.name: _attribute(a) for a in node.attribute}
        call = OnnxCall(op, inputs, attrs, last + 1, self._opset)
        made = convert(emitter, call) if own is None else own(emitter, call)
        for name, tensor in zip(node.output, made, strict=False):
            emitter.bind(name, tensor)

    def _read_branch(self, node: Any) -> bool:
        """Read the branch that the condition of an If selects; False if that is unknown."""
        emitter = self.emitter
        condition = emitter.resolve(node.input[0]) if node.input else ""
        known = emitter.values(condition) if condition else None
        if known is None or len(known) != 1:
            return False
        wanted = "then_branch" if known[0] else "else_branch"
        branch = next((a.g for a in node.attribute if a.name == wanted), None)
        if branch is None or branch.sparse_initializer:
            raise GraphError(f"If: no {wanted}")
        for proto in branch.initializer:
            emitter.bind(proto.name, emitter.constant(tensor_constant(proto)))
        self._read_nodes(branch)
        made = [emitter.resolve(value.name) for value in branch.output]
        for name, tensor in zip(node.output, made, strict=False):
            emitter.bind(name, tensor)
        return True

    def _unsupported(
        self, label: str, node: Any, what: str, remedy: str = "export the model without it"
    ) -> UnsupportedOpError:
        return UnsupportedOpError(f"{self._file}: node {label!r} ({node.op_type}) {what}; {remedy}")

    def _error(self, error: GraphError, remedy: str) -> ModelFileError:
        return ModelFileError(f"{self._file}: {_short(str(error))}; {remedy}")


def _used_names(graph: Any) -> Iterator[str]:
    """Names that a graph and its branches read; an empty one stands for what is left out."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if _is_graph(attribute):
                yield from _used_names(attribute.g)


def _is_graph(attribute: Any) -> bool:
    return attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def _attribute(proto: Any) -> Any:
    """An attribute as a plain value; a tensor stays a TensorProto."""
    kind = onnx.AttributeProto
    if proto.type == kind.INT:
        return int(proto.i)
    if proto.type == kind.INTS:
        return tuple(proto.ints)
    if proto.type == kind.FLOAT:
        return float(proto.f)
    if proto.type == kind.STRING:
        return proto.s.decode(errors="replace")
    if proto.type == kind.FLOATS:
        return tuple(proto.floats)
    if proto.type == kind.STRINGS:
        return tuple(item.decode(errors="replace") for item in proto.strings)
    if proto.type == kind.TENSOR:
        return proto.t
    raise UnsupportedError(f"attribute {proto.name!r} has a type that is not known")


_OF_SEQUENCES = ("seq", "len", "token", "time", "frame")
"""What names of open axes contain that hold the length of a sequence."""


def _short(text: str) -> str:
    """A text of the file, in one line and cut to a bounded length."""
    text = "".join(c if c.isprintable() else " " for c in text[: _QUOTED_LETTERS + 1])
    return text if len(text) <= _QUOTED_LETTERS else f"{text[:_QUOTED_LETTERS]}..."


def _shape_text(shape: Sequence[int | str | None]) -> str:
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


def _suggestion(shape: Dims) -> str:
    """Sizes that an error message suggests: 1 for an open batch, 128 for the length of a sequence.

    Four sizes are those of an image: three channels, and sides of 224 pixels.
    """
    filled = [
        size if isinstance(size, int) else _likely(axis, size or "", len(shape))
        for axis, size in enumerate(shape)
    ]
    return ",".join(str(size) for size in filled)


def _likely(axis: int, name: str, rank: int) -> int:
    """A likely size of an open axis, by its name in the model, its place and the number of axes."""
    told = name.lower()
    if any(word in told for word in _OF_SEQUENCES):
        return 128
    if axis == 0 or "batch" in told:
        return 1
    if rank != 4:
        return 128
    return 3 if axis == 1 else 224
