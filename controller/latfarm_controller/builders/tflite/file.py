"""Represents a TFLite model in memory, and writes it as a flatbuffer without TensorFlow.

The numbers of operators, types and options come from the Python classes of the schema, which are
part of ai-edge-litert. These classes pack only the operators' options, because packing all tables
with them would take longer than everything else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latfarm_controller.builders.flatbuffer import Fields, FlatbufferWriter
from latfarm_controller.errors import BuildError

Array = NDArray[Any]
Option = int | float | bool

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3

# Largest total size of the constants in bytes: 1 MiB less than TFLite's limit of 2 GiB.
_MAX_BYTES = 2**31 - 2**20

# Name of the options table by operator, for operators whose table `_options` cannot derive from the
# operator's name.
_OPTIONS: Mapping[str, str] = {
    "CONV_2D": "Conv2DOptions",
    "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions",
    "LOCAL_RESPONSE_NORMALIZATION": "LocalResponseNormalizationOptions",
    "PADV2": "PadV2Options",
    "BATCH_MATMUL": "BatchMatMulOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "ATAN2": "ATan2Options",
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"), "ReducerOptions"),
}
# Version number that is written for an operator: the first one that runtimes know. Operators that
# are not listed get version 1.
_VERSIONS: Mapping[str, int] = {"BROADCAST_TO": 2}

# Tables of the schema. For each field that is written, they give its slot in the schema and its
# struct code; "I" is also used for pointers. The comments name the fields in the same order.
_MODEL: Fields = tuple((slot, "I") for slot in range(5))  # version, opcodes, graphs, text, buffers
_BUFFER: Fields = ((0, "I"),)  # data
_OPCODE: Fields = ((2, "i"), (3, "i"), (0, "b"))  # version, code, deprecated 8-bit code
_GRAPH: Fields = tuple((slot, "I") for slot in range(5))  # tensors, inputs, outputs, ops, name
_TENSOR: Fields = ((0, "I"), (2, "I"), (3, "I"), (1, "b"))  # shape, buffer, name, type
_QUANTISED: Fields = ((0, "I"), (2, "I"), (3, "I"), (4, "I"), (1, "b"))  # also scales, before type
_SCALES: Fields = ((2, "I"), (3, "I"), (6, "i"))  # scales, zero points, axis
_OPERATOR: Fields = ((0, "I"), (1, "I"), (2, "I"))  # opcode, inputs, outputs
_WITH_OPTIONS: Fields = (*_OPERATOR, (4, "I"), (3, "B"))  # also options, and their type


@dataclass
class TfliteTensor:
    """A tensor of the model.

    `data` holds the values of a constant and is None for an activation. The tensor is quantised if
    it has `scales`; several scales belong to the indices of `axis`, in order.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = None
    scales: NDArray[np.float32] | None = None
    zero_point: int = 0
    axis: int = 0


@dataclass
class BuiltOperator:
    """One operator of the model.

    `inputs` and `outputs` are indices of tensors; -1 stands for an optional operand that is absent.
    `node` is the name of the graph's node for which the operator was made.
    """

    code: str
    inputs: list[int]
    outputs: list[int]
    options: dict[str, Option] = field(default_factory=dict)
    node: str = ""


@dataclass
class TfliteModel:
    """A TFLite model: its tensors, and its operators in the order of execution.

    `inputs` and `outputs` are the indices of the tensors that enter and leave the model.
    """

    name: str
    tensors: list[TfliteTensor] = field(default_factory=list)
    operators: list[BuiltOperator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: str) -> int:
        """Add an activation to the model and return its index."""
        self.tensors.append(TfliteTensor(name, tuple(shape), dtype))
        return len(self.tensors) - 1

    def constant(self, name: str, data: Array) -> int:
        """Add a constant to the model and return its index."""
        self.tensors.append(TfliteTensor(name, data.shape, data.dtype.name, data))
        return len(self.tensors) - 1

    def operator(
        self, code: str, inputs: Sequence[int], outputs: Sequence[int], **options: Option
    ) -> None:
        """Append an operator; its options have the names that the schema gives them."""
        self.operators.append(BuiltOperator(code, list(inputs), list(outputs), options))


@cache
def _schema() -> ModuleType:
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise BuildError(
            "building TFLite models needs the schema that ships with ai-edge-litert: "
            "pip install ai-edge-litert"
        ) from error
    return schema_py_generated  # type: ignore[no-any-return]


def serialise(model: TfliteModel) -> bytes:
    """Return the model as a TFLite flatbuffer.

    Raises:
        BuildError: ai-edge-litert is not installed, or the weights exceed 2 GB.
    """
    schema = _schema()
    data = [tensor.data for tensor in model.tensors if tensor.data is not None]
    size_bytes = sum(array.nbytes for array in data)
    if size_bytes > _MAX_BYTES:
        raise BuildError(f"{model.name}: {size_bytes} bytes of weights exceed TFLite's 2 GB")
    out = FlatbufferWriter(FILE_IDENTIFIER)
    _, opcodes, graphs, text, buffers = out.table(0, _MODEL, (SCHEMA_VERSION, 0, 0, 0, 0))
    codes = {code: i for i, code in enumerate(dict.fromkeys(op.code for op in model.operators))}
    for place, code in zip(out.pointers(opcodes, len(codes)), codes, strict=True):
        number = getattr(schema.BuiltinOperator, code)
        # Old readers know only the deprecated field, which is one byte wide.
        old = min(number, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
        out.table(place, _OPCODE, (_VERSIONS.get(code, 1), number, old))
    out.text(text, model.name)
    tensors, inputs, outputs, operators, name = out.table(
        next(out.pointers(graphs, 1)), _GRAPH, (0, 0, 0, 0, 0)
    )
    out.text(name, "main")
    out.integers(inputs, model.inputs)
    out.integers(outputs, model.outputs)
    filled = 0
    for place, tensor in zip(out.pointers(tensors, len(model.tensors)), model.tensors, strict=True):
        filled += tensor.data is not None
        _tensor(out, place, tensor, 0 if tensor.data is None else filled)
    for place, operator in zip(
        out.pointers(operators, len(model.operators)), model.operators, strict=True
    ):
        _operator(out, place, operator, codes[operator.code])
    # By convention, buffer 0 is empty; all tensors without data refer to it.
    places = out.pointers(buffers, len(data) + 1)
    out.table(next(places), (), ())
    return out.finish([out.table(place, _BUFFER, (0,))[0] for place in places], data)


@cache
def _type(dtype: str) -> int:
    return int(getattr(_schema().TensorType, dtype.upper()))


def _tensor(out: FlatbufferWriter, field: int, tensor: TfliteTensor, buffer: int) -> None:
    kind = _type(tensor.dtype)
    if tensor.scales is None:
        shape, _, name, _ = out.table(field, _TENSOR, (0, buffer, 0, kind))
    else:
        shape, _, name, quantised, _ = out.table(field, _QUANTISED, (0, buffer, 0, 0, kind))
        scales, zeros, _ = out.table(quantised, _SCALES, (0, 0, tensor.axis))
        out.array(scales, np.asarray(tensor.scales, np.float32))
        out.array(zeros, np.full(len(tensor.scales), tensor.zero_point, np.int64))
    out.integers(shape, tensor.shape)
    out.text(name, tensor.name)


def _operator(out: FlatbufferWriter, field: int, operator: BuiltOperator, opcode: int) -> None:
    kind, packed = _options(operator.code, tuple(sorted(operator.options.items())))
    if packed:
        _, inputs, outputs, options, _ = out.table(field, _WITH_OPTIONS, (opcode, 0, 0, 0, kind))
        out.whole(options, packed)
    else:
        _, inputs, outputs = out.table(field, _OPERATOR, (opcode, 0, 0))
    out.integers(inputs, operator.inputs)
    out.integers(outputs, operator.outputs)


@lru_cache(maxsize=4096)
def _options(code: str, given: tuple[tuple[str, Option], ...]) -> tuple[int, bytes]:
    """Pack the options of an operator.

    Returns:
        the number of the options table's type in the schema, and a separate flatbuffer whose root
        is this table; 0 and no bytes for an operator that has no options table.
    """
    import flatbuffers

    schema = _schema()
    name = _OPTIONS.get(code)
    if name is None:
        name = "".join(word.capitalize() for word in code.split("_")) + "Options"
        name = re.sub(r"2d\b", "2D", name)
    made = getattr(schema, f"{name}T", None)
    if made is None:
        if given:
            raise BuildError(f"{code}: the TFLite schema has no options for it")
        return 0, b""
    options = made()
    for key, value in given:
        if not hasattr(options, key):
            raise BuildError(f"{code}: the TFLite schema has no option {key!r}")
        setattr(options, key, value)
    builder = flatbuffers.Builder(64)
    builder.Finish(options.Pack(builder))
    return int(getattr(schema.BuiltinOptions, name)), bytes(builder.Output())
