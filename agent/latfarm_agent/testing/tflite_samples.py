"""Small valid TFLite models of many operators, written with the schema of ai-edge-litert.

`tflite_mutants` breaks copies of them.
"""

from __future__ import annotations

import struct
from typing import Any, Callable, Dict, Mapping, Sequence

Dims = Sequence[int]
Fields = Dict[str, Any]
_INT8_SCALE = 0.05
"""Scale of activations and weights in int8 models."""

# Operator -> scale and zero point that its int8 kernel requires of the output.
_INT8_OUTPUTS = {
    "LOGISTIC": (1 / 256, -128),
    "SOFTMAX": (1 / 256, -128),
    "LOG_SOFTMAX": (16 / 256, 127),
    "TANH": (1 / 128, 0),
    "L2_NORMALIZATION": (1 / 128, 0),
}
_VERSIONS = {"BROADCAST_TO": 2}
"""Operator -> its version in the file, where that is not 1."""


class SampleWriter:
    """Builds a model step by step; tensors are referred to by number.

    With the `dtype` "int8", activations and weights are quantised. Weights have one scale for each
    output channel, and biases are int32.
    """

    def __init__(self, dtype: str = "fp32") -> None:
        import ai_edge_litert.schema_py_generated as schema

        self.schema: Any = schema
        self.dtype = dtype
        self._buffers = [schema.BufferT()]
        self._codes: list[str] = []
        self._graphs: list[Any] = []
        self.subgraph()

    def subgraph(self) -> int:
        """Begin another subgraph and return its number."""
        graph = self.schema.SubGraphT()
        graph.tensors, graph.inputs, graph.outputs, graph.operators = [], [], [], []
        graph.name = f"graph{len(self._graphs)}".encode()
        self._graphs.append(graph)
        return len(self._graphs) - 1

    def tensor(self, shape: Dims, kind: str = "", scales: int = 0, axis: int = 0) -> int:
        """Add a tensor to the current subgraph.

        Args:
            shape: its shape.
            kind: a type of the schema; empty: the type of the model's activations.
            scales: number of its scales if it is quantised; 0: one for an INT8 tensor.
            axis: the dimension to which several scales belong.
        """
        made = self.schema.TensorT()
        kind = kind or ("INT8" if self.dtype == "int8" else "FLOAT32")
        made.name, made.shape, made.buffer = b"t", list(shape), 0
        made.type = getattr(self.schema.TensorType, kind)
        if self.dtype == "int8" and (kind == "INT8" or scales):
            made.quantization = self.schema.QuantizationParametersT()
            count = scales or 1
            scale = _INT8_SCALE * _INT8_SCALE if kind == "INT32" else _INT8_SCALE
            made.quantization.scale = [scale] * count
            made.quantization.zeroPoint = [0] * count
            made.quantization.quantizedDimension = axis
        self._graphs[-1].tensors.append(made)
        return len(self._graphs[-1].tensors) - 1

    def input(self, shape: Dims, kind: str = "") -> int:
        """Add a tensor that is an input of the current subgraph."""
        made = self.tensor(shape, kind)
        self._graphs[-1].inputs.append(made)
        return made

    def output(self, *tensors: int) -> None:
        """Make tensors outputs of the current subgraph."""
        self._graphs[-1].outputs.extend(tensors)

    def ints(self, *values: int, shape: Dims | None = None) -> int:
        """Add a constant of int32, with one dimension unless a shape is given."""
        made = self.tensor([len(values)] if shape is None else shape, "INT32")
        self.fill(made, struct.pack(f"<{len(values)}i", *values))
        return made

    def weight(self, *shape: int, axis: int = -1) -> int:
        """Add a constant of the model's type; `axis`: dimension with several scales, or -1."""
        count = _count(shape)
        if self.dtype == "int8":
            made = self.tensor(shape, "INT8", shape[axis] if axis >= 0 else 0, max(axis, 0))
            self.fill(made, bytes((i * 37) % 101 for i in range(count)))
        else:
            made = self.tensor(shape)
            values = [((i * 37) % 101 - 50) / 500 for i in range(count)]
            self.fill(made, struct.pack(f"<{count}f", *values))
        return made

    def bias(self, count: int) -> int:
        """Add a bias with `count` channels."""
        if self.dtype == "int8":
            made = self.tensor([count], "INT32", count)
            self.fill(made, bytes(4 * count))
            return made
        return self.weight(count)

    def op(
        self,
        code: str,
        inputs: Sequence[int],
        shape: Dims | Sequence[Dims],
        options: str = "",
        kind: str = "",
        **fields: object,
    ) -> Any:
        """Add an operator; return the tensor that it makes, or a list for several shapes.

        Args:
            code: name of the operator in the schema.
            inputs: tensors that it reads.
            shape: shape of the tensor that it makes, or several shapes.
            options: name of its options in the schema; empty: none.
            kind: type of what it makes; empty: the type of the model's activations.
            fields: fields of the options.
        """
        schema = self.schema
        several = bool(shape) and not isinstance(shape[0], int)
        shapes: Any = shape if several else [shape]
        made = [self.tensor(each, kind) for each in shapes]
        operator = schema.OperatorT()
        if code not in self._codes:
            self._codes.append(code)
        if self.dtype == "int8" and code in _INT8_OUTPUTS:
            scale, zero_point = _INT8_OUTPUTS[code]
            quantisation = self.described(made[0]).quantization
            quantisation.scale, quantisation.zeroPoint = [scale], [zero_point]
        operator.opcodeIndex = self._codes.index(code)
        operator.inputs, operator.outputs = list(inputs), made
        if options:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            operator.builtinOptions = getattr(schema, options + "T")()
            for name, value in fields.items():
                setattr(operator.builtinOptions, name, value)
        self._graphs[-1].operators.append(operator)
        return made if several else made[0]

    def described(self, tensor: int) -> Any:
        """The schema's object for a tensor of the current subgraph; a caller may change it."""
        return self._graphs[-1].tensors[tensor]

    def fill(self, tensor: int, data: bytes) -> None:
        """Make a tensor of the current subgraph a constant with these bytes."""
        made = self.schema.BufferT()
        made.data = list(data)
        self.described(tensor).buffer = len(self._buffers)
        self._buffers.append(made)

    def finish(self) -> bytes:
        """Return the bytes of the file."""
        import flatbuffers

        schema = self.schema
        model = schema.ModelT()
        model.version, model.subgraphs, model.buffers = 3, self._graphs, self._buffers
        model.description = b"sample"
        model.operatorCodes = []
        for name in self._codes:
            code = schema.OperatorCodeT()
            code.builtinCode = getattr(schema.BuiltinOperator, name)
            code.deprecatedBuiltinCode = min(code.builtinCode, 127)
            code.version = _VERSIONS.get(name, 1)
            model.operatorCodes.append(code)
        builder = flatbuffers.Builder(4096)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def _count(shape: Dims) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _cnn(w: SampleWriter) -> None:
    same: Fields = {"padding": 0, "strideW": 1, "strideH": 1}
    pool: Fields = {**same, "strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2}
    x = w.input([1, 8, 8, 3])
    conv = [x, w.weight(8, 3, 3, 3, axis=0), w.bias(8)]
    x = w.op("CONV_2D", conv, [1, 8, 8, 8], "Conv2DOptions", fusedActivationFunction=3, **same)
    deep = [x, w.weight(1, 3, 3, 8, axis=3), w.bias(8)]
    options: Fields = {"depthMultiplier": 1, **same}
    x = w.op("DEPTHWISE_CONV_2D", deep, [1, 8, 8, 8], "DepthwiseConv2DOptions", **options)
    x = w.op("MAX_POOL_2D", [x], [1, 4, 4, 8], "Pool2DOptions", **pool)
    x = w.op("AVERAGE_POOL_2D", [x], [1, 2, 2, 8], "Pool2DOptions", **pool)
    x = w.op("RESHAPE", [x, w.ints(1, 32)], [1, 32], "ReshapeOptions", newShape=[1, 32])
    x = w.op("FULLY_CONNECTED", [x, w.weight(6, 32), w.bias(6)], [1, 6], "FullyConnectedOptions")
    w.output(w.op("SOFTMAX", [x], [1, 6], "SoftmaxOptions", beta=1.0))


def _moves(w: SampleWriter) -> None:
    x = w.input([1, 4, 4, 4])
    pad = w.ints(0, 0, 1, 1, 1, 1, 0, 0, shape=[4, 2])
    x = w.op("PAD", [x, pad], [1, 6, 6, 4], "PadOptions")
    x = w.op("TRANSPOSE", [x, w.ints(0, 3, 1, 2)], [1, 4, 6, 6], "TransposeOptions")
    a, b = w.op("SPLIT", [w.ints(1, shape=[]), x], [[1, 2, 6, 6]] * 2, "SplitOptions", numSplits=2)
    x = w.op("CONCATENATION", [b, a], [1, 4, 6, 6], "ConcatenationOptions", axis=1)
    strided = [x, w.ints(0, 0, 0, 0), w.ints(1, 4, 6, 6), w.ints(1, 1, 2, 2)]
    x = w.op("STRIDED_SLICE", strided, [1, 4, 3, 3], "StridedSliceOptions")
    part = [x, w.ints(0, 0, 1, 1), w.ints(1, 4, 2, -1)]
    x = w.op("SLICE", part, [1, 4, 2, 2], "SliceOptions")
    x = w.op("GATHER", [x, w.ints(1, 0, 3, 3)], [1, 4, 2, 2], "GatherOptions", axis=1)
    x = w.op("TILE", [x, w.ints(1, 1, 2, 2)], [1, 4, 4, 4], "TileOptions")
    x = w.op("SPACE_TO_DEPTH", [x], [1, 2, 2, 16], "SpaceToDepthOptions", blockSize=2)
    x = w.op("DEPTH_TO_SPACE", [x], [1, 4, 4, 4], "DepthToSpaceOptions", blockSize=2)
    mirror = w.ints(0, 0, 1, 1, 1, 1, 0, 0, shape=[4, 2])
    x = w.op("MIRROR_PAD", [x, mirror], [1, 6, 6, 4], "MirrorPadOptions", mode=0)
    near = [x, w.ints(8, 8)]
    x = w.op("RESIZE_NEAREST_NEIGHBOR", near, [1, 8, 8, 4], "ResizeNearestNeighborOptions")
    fine = [x, w.ints(5, 7)]
    x = w.op("RESIZE_BILINEAR", fine, [1, 5, 7, 4], "ResizeBilinearOptions", halfPixelCenters=True)
    x = w.op("SQUEEZE", [x], [5, 7, 4], "SqueezeOptions", squeezeDims=[0])
    parts = w.op("UNPACK", [x], [[5, 7]] * 4, "UnpackOptions", num=4, axis=2)
    x = w.op("PACK", [parts[0], parts[2]], [2, 5, 7], "PackOptions", valuesCount=2, axis=0)
    x = w.op("EXPAND_DIMS", [x, w.ints(0, shape=[])], [1, 2, 5, 7], "ExpandDimsOptions")
    x = w.op("REVERSE_V2", [x, w.ints(2)], [1, 2, 5, 7], "ReverseV2Options")
    w.output(w.op("SHAPE", [x], [4], "ShapeOptions", "INT32", outType=2), x)


def _math(w: SampleWriter) -> None:
    shape = [1, 4, 4, 6]
    x, y = w.input(shape), w.input([4, 6])
    x = w.op("ADD", [x, y], shape, "AddOptions")
    x = w.op("MUL", [x, w.weight(6)], shape, "MulOptions")
    x = w.op("SUB", [x, y], shape, "SubOptions", fusedActivationFunction=1)
    x = w.op("MAXIMUM", [x, w.weight(1)], shape, "MaximumMinimumOptions")
    for code in ("LOGISTIC", "TANH", "RELU", "HARD_SWISH", "ABS"):
        x = w.op(code, [x], shape)
    x = w.op("LEAKY_RELU", [x], shape, "LeakyReluOptions", alpha=0.1)
    x = w.op("PRELU", [x, w.weight(1, 1, 6)], shape)
    mean: Fields = {"keepDims": True}
    m = w.op("MEAN", [x, w.ints(1, 2)], [1, 1, 1, 6], "ReducerOptions", **mean)
    x = w.op("SQUARED_DIFFERENCE", [x, m], shape, "SquaredDifferenceOptions")
    s = w.op("SUM", [x, w.ints(1)], [1, 4, 6], "ReducerOptions")
    s = w.op("BATCH_MATMUL", [s, w.weight(1, 6, 5)], [1, 4, 5], "BatchMatMulOptions")
    top = [s, w.ints(3, shape=[])]
    best = w.op("REDUCE_MAX", [s, w.ints(1)], [1, 5], "ReducerOptions")
    place = w.op(
        "ARG_MAX", [s, w.ints(2, shape=[])], [1, 4], "ArgMaxOptions", "INT32", outputType=2
    )
    place = w.op("CAST", [place], [1, 4], "CastOptions", "FLOAT32")
    if w.dtype == "fp32":
        x = w.op("DIV", [x, w.weight(6)], shape, "DivOptions")
        x = w.op("LOCAL_RESPONSE_NORMALIZATION", [x], shape, "LocalResponseNormalizationOptions")
        x = w.op("GELU", [x], shape, "GeluOptions")
        x = w.op("ELU", [x], shape)
        x = w.op("CUMSUM", [x, w.ints(2, shape=[])], shape, "CumsumOptions")
    less = w.op("LESS", [x, y], shape, "LessOptions", "BOOL")
    x = w.op("SELECT_V2", [less, x, y], shape, "SelectV2Options")
    x = w.op("L2_NORMALIZATION", [x], shape, "L2NormOptions")
    x = w.op("LOG_SOFTMAX", [x], shape, "LogSoftmaxOptions")
    values, _ = _top(w, top)
    w.output(x, best, place, values)


def _top(w: SampleWriter, inputs: Sequence[int]) -> tuple[int, int]:
    values, indices = w.op("TOPK_V2", inputs, [[1, 4, 3], [1, 4, 3]], "TopKV2Options")
    w.described(indices).type = w.schema.TensorType.INT32
    w.described(indices).quantization = None
    return values, indices


def _upsampling(w: SampleWriter) -> None:
    x = w.input([1, 4, 4, 3])
    up = [w.ints(1, 8, 8, 2), w.weight(2, 3, 3, 3, axis=0), x]
    same: Fields = {"padding": 0, "strideW": 2, "strideH": 2}
    x = w.op("TRANSPOSE_CONV", up, [1, 8, 8, 2], "TransposeConvOptions", **same)
    blocks = [x, w.ints(2, 2), w.ints(0, 0, 0, 0, shape=[2, 2])]
    x = w.op("SPACE_TO_BATCH_ND", blocks, [4, 4, 4, 2], "SpaceToBatchNDOptions")
    blocks = [x, w.ints(2, 2), w.ints(0, 0, 0, 0, shape=[2, 2])]
    x = w.op("BATCH_TO_SPACE_ND", blocks, [1, 8, 8, 2], "BatchToSpaceNDOptions")
    w.output(x)


def _indices(w: SampleWriter) -> None:
    ids = w.input([3], "INT32")
    table = w.weight(7, 5)
    x = w.op("EMBEDDING_LOOKUP", [ids, table], [3, 5])
    spots = w.ints(0, 1, 2, 4, shape=[2, 2])
    few = w.op("GATHER_ND", [x, spots], [2], "GatherNdOptions")
    wide = w.op("BROADCAST_TO", [few, w.ints(3, 2)], [3, 2], "BroadcastToOptions")
    if w.dtype == "fp32":
        scattered = [spots, few, w.ints(3, 5)]
        x = w.op("SCATTER_ND", scattered, [3, 5], "ScatterNdOptions")
        hot = [ids, w.ints(4, shape=[]), w.weight(), w.weight()]
        w.output(w.op("ONE_HOT", hot, [3, 4], "OneHotOptions", axis=-1))
        w.output(w.op("FILL", [w.ints(2, 2), w.weight()], [2, 2], "FillOptions"))
    w.output(x, wide)


def _recurrent(w: SampleWriter) -> None:
    x = w.input([1, 4, 3])
    weights = [w.weight(5, 3) for _ in range(4)] + [w.weight(5, 5) for _ in range(4)]
    biases = [w.weight(5) for _ in range(4)]
    states = [w.tensor([1, 5]), w.tensor([1, 5])]
    for state in states:
        w.described(state).isVariable = True
    inputs = [x, *weights, -1, -1, -1, *biases, -1, -1, *states, -1, -1, -1, -1]
    options: Fields = {"fusedActivationFunction": 4, "timeMajor": False}
    name = "UnidirectionalSequenceLSTMOptions"
    w.output(w.op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [1, 4, 5], name, **options))


def _branches(w: SampleWriter) -> None:
    x, count = w.input([2, 3]), w.input([], "INT32")
    limit = w.ints(3, shape=[])
    smaller = w.op("LESS", [count, limit], [], "LessOptions", "BOOL")
    chosen: Fields = {"thenSubgraphIndex": 1, "elseSubgraphIndex": 2}
    x = w.op("IF", [smaller, x], [2, 3], "IfOptions", **chosen)
    loop: Fields = {"condSubgraphIndex": 3, "bodySubgraphIndex": 4}
    made = w.op("WHILE", [count, x], [[], [2, 3]], "WhileOptions", **loop)
    w.described(made[0]).type = w.schema.TensorType.INT32
    w.output(*made)
    for code in ("RELU", "NEG"):
        w.subgraph()
        w.output(w.op(code, [w.input([2, 3])], [2, 3]))
    w.subgraph()
    count, _ = w.input([], "INT32"), w.input([2, 3])
    w.output(w.op("LESS", [count, w.ints(5, shape=[])], [], "LessOptions", "BOOL"))
    w.subgraph()
    count, x = w.input([], "INT32"), w.input([2, 3])
    w.output(w.op("ADD", [count, w.ints(1, shape=[])], [], "AddOptions", "INT32"))
    w.output(w.op("ADD", [x, x], [2, 3], "AddOptions"))


_SAMPLES: Mapping[str, tuple[Callable[[SampleWriter], None], Sequence[str]]] = {
    "cnn": (_cnn, ("fp32", "int8")),
    "moves": (_moves, ("fp32", "int8")),
    "math": (_math, ("fp32", "int8")),
    "upsampling": (_upsampling, ("fp32", "int8")),
    "indices": (_indices, ("fp32", "int8")),
    "recurrent": (_recurrent, ("fp32",)),
    "branches": (_branches, ("fp32",)),
}


def samples() -> dict[str, bytes]:
    """Return all sample models by name, in float32 and, where the operators allow it, in int8."""
    found = {}
    for name, (write, dtypes) in _SAMPLES.items():
        for dtype in dtypes:
            writer = SampleWriter(dtype)
            write(writer)
            found[f"{name}-{dtype}"] = writer.finish()
    return found
