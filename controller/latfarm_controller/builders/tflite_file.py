"""A TFLite model in memory, and its flatbuffer: written straight to the schema, no TensorFlow.

The schema's Python classes ship with ai-edge-litert; so nothing has to be generated or kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latfarm_controller.errors import BuildError

Array = NDArray[Any]
Option = int | float | bool

FILE_IDENTIFIER = b"TFL3"
SCHEMA_VERSION = 3

_ALIGNMENT = 16  # the schema's force_align of a buffer's data
_MAX_BYTES = 2**31 - 2**20

# The options table of each operator, where it is not the operator's own name.
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
    **dict.fromkeys(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"), "ReducerOptions"),
}


@dataclass
class Tensor:
    """A tensor of the model; `data` for constants. Quantised when it has scales."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = None
    scales: NDArray[np.float32] | None = None
    zero_point: int = 0
    axis: int = 0


@dataclass
class Operator:
    """One operator; an absent optional operand is -1."""

    code: str
    inputs: list[int]
    outputs: list[int]
    options: dict[str, Option] = field(default_factory=dict)


@dataclass
class Model:
    """Tensors, operators in order, and which tensors are the model's inputs and outputs."""

    name: str
    tensors: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def tensor(self, name: str, shape: Sequence[int], dtype: str) -> int:
        """A new activation; its index."""
        self.tensors.append(Tensor(name, tuple(shape), dtype))
        return len(self.tensors) - 1

    def constant(self, name: str, data: Array) -> int:
        """A new constant; its index."""
        self.tensors.append(Tensor(name, data.shape, data.dtype.name, np.ascontiguousarray(data)))
        return len(self.tensors) - 1

    def operator(
        self, code: str, inputs: Sequence[int], outputs: Sequence[int], **options: Option
    ) -> None:
        """Append an operator; options by the schema's names."""
        self.operators.append(Operator(code, list(inputs), list(outputs), options))


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


def serialise(model: Model) -> bytes:
    """The model as a TFLite flatbuffer.

    Raises:
        BuildError: ai-edge-litert is not installed, or the weights exceed 2 GB.
    """
    schema = _schema()
    import flatbuffers

    size_bytes = sum(t.data.nbytes for t in model.tensors if t.data is not None)
    if size_bytes > _MAX_BYTES:
        raise BuildError(f"{model.name}: {size_bytes} bytes of weights exceed TFLite's 2 GB")
    # Room for all from the start: growing copies everything each time.
    builder = flatbuffers.Builder(size_bytes + 512 * len(model.tensors) + 4096)
    buffers = [schema.BufferT().Pack(builder)]  # index 0 is the empty buffer, by convention
    places = []
    for tensor in model.tensors:
        places.append(0 if tensor.data is None else len(buffers))
        if tensor.data is not None:
            buffers.append(_buffer(builder, schema, tensor.data))
    codes = list(dict.fromkeys(operator.code for operator in model.operators))
    graph = _subgraph(builder, schema, model, places, codes)
    opcodes = [_opcode(builder, schema, code) for code in codes]
    buffer_vector = _offsets(builder, buffers)
    graph_vector = _offsets(builder, [graph])
    opcode_vector = _offsets(builder, opcodes)
    description = builder.CreateString(model.name)
    schema.ModelStart(builder)
    schema.ModelAddVersion(builder, SCHEMA_VERSION)
    schema.ModelAddOperatorCodes(builder, opcode_vector)
    schema.ModelAddSubgraphs(builder, graph_vector)
    schema.ModelAddDescription(builder, description)
    schema.ModelAddBuffers(builder, buffer_vector)
    builder.Finish(schema.ModelEnd(builder), FILE_IDENTIFIER)
    return bytes(memoryview(builder.Bytes)[builder.Head() :])


def _offsets(builder: Any, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())


def _buffer(builder: Any, schema: Any, data: Array) -> int:
    raw = data.reshape(-1).view(np.uint8).data
    builder.StartVector(1, len(raw), _ALIGNMENT)
    builder.head -= len(raw)
    builder.Bytes[builder.head : builder.head + len(raw)] = raw
    vector = builder.EndVector()
    schema.BufferStart(builder)
    schema.BufferAddData(builder, vector)
    return int(schema.BufferEnd(builder))


def _opcode(builder: Any, schema: Any, code: str) -> int:
    number = getattr(schema.BuiltinOperator, code)
    made = schema.OperatorCodeT()
    # Old readers know only the first field, which is a byte.
    made.deprecatedBuiltinCode = min(
        number, schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES
    )
    made.builtinCode = number
    made.version = 1
    return int(made.Pack(builder))


def _subgraph(
    builder: Any, schema: Any, model: Model, places: Sequence[int], codes: Sequence[str]
) -> int:
    tensors = [
        _tensor(builder, schema, tensor, place)
        for tensor, place in zip(model.tensors, places, strict=True)
    ]
    operators = [_operator(builder, schema, op, codes.index(op.code)) for op in model.operators]
    tensor_vector = _offsets(builder, tensors)
    operator_vector = _offsets(builder, operators)
    inputs = builder.CreateNumpyVector(np.asarray(model.inputs, np.int32))
    outputs = builder.CreateNumpyVector(np.asarray(model.outputs, np.int32))
    name = builder.CreateString("main")
    schema.SubGraphStart(builder)
    schema.SubGraphAddTensors(builder, tensor_vector)
    schema.SubGraphAddInputs(builder, inputs)
    schema.SubGraphAddOutputs(builder, outputs)
    schema.SubGraphAddOperators(builder, operator_vector)
    schema.SubGraphAddName(builder, name)
    return int(schema.SubGraphEnd(builder))


def _tensor(builder: Any, schema: Any, tensor: Tensor, buffer: int) -> int:
    made = schema.TensorT()
    made.name = tensor.name
    made.shape = np.asarray(tensor.shape, np.int32)
    made.type = getattr(schema.TensorType, tensor.dtype.upper())
    made.buffer = buffer
    if tensor.scales is not None:
        quantised = schema.QuantizationParametersT()
        quantised.scale = np.asarray(tensor.scales, np.float32)
        quantised.zeroPoint = np.full(len(tensor.scales), tensor.zero_point, np.int64)
        quantised.quantizedDimension = tensor.axis
        made.quantization = quantised
    return int(made.Pack(builder))


@cache
def _options_class(code: str) -> tuple[str, Any]:
    name = _OPTIONS.get(code)
    if name is None:
        name = "".join(word.capitalize() for word in code.split("_")) + "Options"
        name = re.sub(r"2d\b", "2D", name)
    return name, getattr(_schema(), f"{name}T", None)


def _operator(builder: Any, schema: Any, operator: Operator, opcode: int) -> int:
    made = schema.OperatorT()
    made.opcodeIndex = opcode
    made.inputs = np.asarray(operator.inputs, np.int32)
    made.outputs = np.asarray(operator.outputs, np.int32)
    name, options = _options_class(operator.code)
    if options is not None:
        made.builtinOptionsType = getattr(schema.BuiltinOptions, name)
        made.builtinOptions = options()
        for key, value in operator.options.items():
            if not hasattr(made.builtinOptions, key):
                raise BuildError(f"{operator.code}: the TFLite schema has no option {key!r}")
            setattr(made.builtinOptions, key, value)
    elif operator.options:
        raise BuildError(f"{operator.code}: the TFLite schema has no options for it")
    return int(made.Pack(builder))
