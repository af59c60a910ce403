"""Shared fixtures of the builders' tests: small graphs, and runs in onnxruntime and LiteRT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from latfarm_controller import zoo
from latfarm_controller.builders.noise import inputs
from latfarm_controller.builders.tflite.build import tflite_report
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def inputs_of(graph: Graph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return test data for each input of a graph.

    Floating-point inputs get uniform noise between -2.5 and 2.5, a range that the inputs of int8
    models can represent. Integer inputs get the valid ids that `inputs` draws.
    """
    draw = np.random.default_rng(seed)
    found = {}
    for tensor, data in inputs(graph, seed + 1).items():
        real = data.dtype.kind == "f"
        found[tensor] = draw.uniform(-2.5, 2.5, data.shape).astype(data.dtype) if real else data
    return found


def _run_onnx(model: bytes, graph: Graph) -> list[Floats]:
    """Run a model in onnxruntime on one thread; return all outputs for `inputs_of(graph)`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(None, inputs_of(graph))]


class Lite:
    """A TFLite model in LiteRT's interpreter; its data have the axis order of the Graph."""

    def __init__(self, model: bytes, *, reference: bool = False) -> None:
        kind = OpResolverType.BUILTIN_REF if reference else OpResolverType.AUTO
        self.interpreter: Any = Interpreter(
            model_content=model, num_threads=1, experimental_op_resolver_type=kind
        )
        self.interpreter.allocate_tensors()
        self.inputs = self.interpreter.get_input_details()
        self.outputs = self.interpreter.get_output_details()

    def operators(self) -> list[str]:
        """Return the names of the operators in the file, without delegates."""
        return [
            op["op_name"]
            for op in self.interpreter._get_ops_details()
            if op["op_name"] != "DELEGATE"
        ]

    def run(self, graph: Graph) -> list[Floats]:
        """Run the model on `inputs_of(graph)` and return its outputs, dequantised to float32."""
        layouts = tflite_report(graph, "fp32").layouts
        for detail, (tensor, data) in zip(self.inputs, inputs_of(graph).items(), strict=True):
            self.interpreter.set_tensor(
                detail["index"], _stored(data.transpose(layouts[tensor]), detail)
            )
        self.interpreter.invoke()
        found = []
        for detail, tensor in zip(self.outputs, graph.outputs, strict=True):
            data = _real(self.interpreter.get_tensor(detail["index"]), detail)
            found.append(data.transpose(np.argsort(layouts[tensor])))
            assert found[-1].shape == graph.type_of(tensor).shape
        return found


def _stored(data: NDArray[Any], detail: Mapping[str, Any]) -> NDArray[Any]:
    assert data.shape == tuple(int(size) for size in detail["shape"])
    if detail["dtype"] is np.int8:
        scale, zero = detail["quantization"]
        whole: NDArray[np.int8] = np.clip(np.rint(data / scale) + zero, -128, 127).astype(np.int8)
        return whole
    return data.astype(detail["dtype"])  # TFLite models store token ids as int32


def _real(data: NDArray[Any], detail: Mapping[str, Any]) -> Floats:
    if detail["dtype"] is np.int8:
        scale, zero = detail["quantization"]
        data = (data.astype(np.float32) - zero) * np.float32(scale)
    return data.astype(np.float32)


# All sizes are different, so that a test fails when two axes are swapped.
def _image(b: GraphBuilder) -> str:
    return b.input((1, 8, 13, 11))


def _two(b: GraphBuilder) -> tuple[str, str]:
    return b.input((1, 8, 13, 11)), b.input((1, 8, 13, 11))


def _conv_bn(b: GraphBuilder) -> str:
    return b.relu(b.batch_norm(b.conv(_image(b), 12, 3, 2, "same", bias=True)))


def _conv_bn_shared(b: GraphBuilder) -> str:
    x = b.conv(_image(b), 12, 3)
    return b.add(b.batch_norm(x), x)


def _shuffle(b: GraphBuilder) -> str:
    x = b.reshape(_image(b), (1, 2, 4, 13, 11))
    return b.reshape(b.transpose(x, (0, 2, 1, 3, 4)), (1, 8, 13, 11))


def _split(b: GraphBuilder) -> str:
    parts = b.split(_image(b), (3, 4, 1))
    return b.concat([parts[2], parts[0], b.relu(parts[1])])


def _split_even(b: GraphBuilder) -> str:
    left, right = b.split(_image(b), (4, 4))
    return b.sub(right, left)


def _excite(b: GraphBuilder) -> str:
    x = _image(b)
    return b.mul(x, b.hard_sigmoid(b.conv(b.global_avg_pool(x), 8, 1, bias=True)))


def _excite_by_fc(b: GraphBuilder) -> str:
    x = _image(b)
    gate = b.sigmoid(b.fc(b.reduce_mean(x, (2, 3), keepdims=False), 8))
    return b.mul(x, b.reshape(gate, (1, 8, 1, 1)))


def _scale(b: GraphBuilder) -> str:
    x = b.mul(_image(b), b.weight((8, 1, 1)))
    return b.add(x, b.weight((8, 1, 1)))


def _attention(b: GraphBuilder) -> str:
    x = b.input((1, 6, 16))
    q, k, v = (
        b.transpose(b.reshape(b.matmul(x, b.weight((16, 16))), (1, 6, 2, 8)), (0, 2, 1, 3))
        for _ in range(3)
    )
    weights = b.softmax(b.matmul(q, b.transpose(k, (0, 1, 3, 2))))
    mixed = b.reshape(b.transpose(b.matmul(weights, v), (0, 2, 1, 3)), (1, 6, 16))
    return b.layer_norm(b.add(x, mixed))


def _mlp(b: GraphBuilder) -> str:
    x = b.fc(b.flatten(b.relu(_image(b))), 24)
    return b.softmax(b.fc(b.tanh(x), 10, bias=False))


def _prelu(b: GraphBuilder) -> str:
    return b.op("PRelu", [_image(b), b.weight((8, 1, 1))])


def _gemm_plain(b: GraphBuilder) -> str:
    x, w = b.input((3, 8)), b.weight((8, 5))
    return b.op("Gemm", [x, w, b.weight((3, 1))], {"alpha": 0.5, "beta": 2.0})


def _nhwc_to_nchw(b: GraphBuilder) -> str:
    x = b.transpose(b.input((1, 13, 11, 8)), (0, 3, 1, 2))
    return b.conv(x, 4, 3)


def _ints(b: GraphBuilder, *values: int) -> str:
    return b.weight((len(values),), "int64", values)


def _plain(b: GraphBuilder, op: str) -> str:
    return b.op(op, [_image(b)])


def _square(b: GraphBuilder) -> str:
    x = _image(b)
    return b.mul(x, x)


def _average(pads: Any, include: int, ceil: int) -> Callable[[GraphBuilder], str]:
    def build(b: GraphBuilder) -> str:
        attrs = {
            "kernel_shape": (3, 3),
            "strides": (2, 2),
            "pads": pads,
            "count_include_pad": include,
            "ceil_mode": ceil,
        }
        return b.op("AveragePool", [_image(b)], attrs)

    return build


def _max(**attrs: Any) -> Callable[[GraphBuilder], str]:
    return lambda b: b.op("MaxPool", [_image(b)], attrs)


SMALL: Mapping[str, Callable[[GraphBuilder], str]] = {
    "conv-same": lambda b: b.conv(_image(b), 12, 3, 2, "same"),
    "conv-valid": lambda b: b.conv(_image(b), 12, (3, 5), (2, 1), "valid", bias=True),
    "conv-centred": lambda b: b.conv(_image(b), 12, 3, 2, 1),
    "conv-uneven": lambda b: b.conv(_image(b), 12, 3, 1, (2, 0, 1, 3)),
    "conv-dilated": lambda b: b.conv(_image(b), 12, 3, 1, "same", dilation=2),
    "conv-asymmetric": lambda b: b.conv(_image(b), 12, (1, 7), 1, (0, 3, 0, 3)),
    "conv-grouped": lambda b: b.conv(_image(b), 12, 3, 1, 1, groups=4),
    "depthwise": lambda b: b.depthwise(_image(b), 5, 2, 2, bias=True),
    "depthwise-multiplied": lambda b: b.conv(_image(b), 24, 3, groups=8),
    "conv-one-channel": lambda b: b.conv(b.input((1, 1, 13, 11)), 6, 3),
    "conv-bn": _conv_bn,
    "conv-bn-shared": _conv_bn_shared,
    "deconv-same": lambda b: b.conv_transpose(_image(b), 6, 4, 2),
    "deconv-valid": lambda b: b.conv_transpose(_image(b), 6, 3, 2, "valid", bias=True),
    "deconv-cut": lambda b: b.conv_transpose(_image(b), 6, 5, 2, 2),
    "batch-norm": lambda b: b.batch_norm(_image(b)),
    "batch-norm-rows": lambda b: b.batch_norm(b.input((3, 8))),
    "scale": _scale,
    "lrn": lambda b: b.lrn(_image(b), 5),
    "max-pool": lambda b: b.max_pool(_image(b), 3, 2),
    "max-pool-centred": lambda b: b.max_pool(_image(b), 3, 2, 1),
    "max-pool-3": lambda b: b.max_pool(_image(b), 2, 3),
    "max-pool-ceil": _max(kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1, pads=(0, 1, 0, 0)),
    "avg-pool": lambda b: b.avg_pool(_image(b), (3, 2), 2),
    "avg-pool-same": lambda b: b.avg_pool(_image(b), 3, 1, "same"),
    "avg-pool-centred": lambda b: b.avg_pool(_image(b), 3, 2, (1, 0, 0, 1)),
    "avg-pool-include": _average((1, 1, 1, 1), 1, 0),
    "avg-pool-ceil": _average((1, 0, 0, 0), 0, 1),
    "avg-pool-include-ceil": _average((0, 1, 0, 1), 1, 1),
    "global-pool": lambda b: b.global_avg_pool(_image(b)),
    "global-max": lambda b: b.op("GlobalMaxPool", [_image(b)]),
    "mean-channels": lambda b: b.reduce_mean(_image(b), (1,), keepdims=False),
    "mean-rows": lambda b: b.reduce_mean(_image(b), (2,)),
    "relu": lambda b: b.relu(_image(b)),
    "relu6": lambda b: b.relu6(_image(b)),
    "clip": lambda b: b.clip(_image(b), -0.5, 0.75),
    "leaky": lambda b: b.leaky_relu(_image(b), 0.1),
    "prelu": _prelu,
    "elu": lambda b: b.op("Elu", [_image(b)]),
    "sigmoid": lambda b: b.sigmoid(_image(b)),
    "tanh": lambda b: b.tanh(_image(b)),
    "hard-sigmoid": lambda b: b.hard_sigmoid(_image(b)),
    "hard-sigmoid-0.2": lambda b: b.op("HardSigmoid", [_image(b)]),
    "hard-swish": lambda b: b.hard_swish(_image(b)),
    "gelu": lambda b: b.gelu(_image(b)),
    "softmax-channels": lambda b: b.softmax(_image(b), 1),
    "softmax-rows": lambda b: b.softmax(b.input((3, 20))),
    "softmax-height": lambda b: b.softmax(_image(b), 2),
    "add": lambda b: b.add(*_two(b)),
    "mul": lambda b: b.mul(*_two(b)),
    "sub": lambda b: b.sub(*_two(b)),
    "sum": lambda b: b.op("Sum", [*_two(b), b.input((1, 8, 1, 11))]),
    "max": lambda b: b.op("Max", list(_two(b))),
    "add-row": lambda b: b.add(_image(b), b.input((13, 11))),
    "square": _square,
    "concat": lambda b: b.concat(_two(b)),
    "concat-width": lambda b: b.concat(_two(b), 3),
    "split": _split,
    "split-even": _split_even,
    "slice": lambda b: b.slice(_image(b), (1, 2), (7, 11), (1, 2)),
    "slice-steps": lambda b: b.slice(_image(b), (1,), (12,), (2,), (3,)),
    "pad": lambda b: b.pad(_image(b), (1, 2, 0, 3)),
    "pad-value": lambda b: b.pad(_image(b), (1, 2, 0, 3), 0.5),
    "pad-reflect": lambda b: b.pad(_image(b), (1, 2, 1, 2), mode="reflect"),
    "resize-nearest": lambda b: b.resize(_image(b), 2),
    "resize-linear": lambda b: b.resize(_image(b), 2, "linear"),
    "flatten": lambda b: b.flatten(_image(b)),
    "flatten-pixel": lambda b: b.flatten(b.input((1, 8, 1, 1))),
    "shuffle": _shuffle,
    "transpose": lambda b: b.transpose(_image(b), (0, 1, 3, 2)),
    "nhwc-to-nchw": _nhwc_to_nchw,
    "excite": _excite,
    "squeeze": lambda b: b.op("Squeeze", [b.global_avg_pool(_image(b)), _ints(b, 2, 3)]),
    "unsqueeze": lambda b: b.op("Unsqueeze", [b.input((1, 8)), _ints(b, 2, 3)]),
    "identity": lambda b: b.op("Identity", [_image(b)]),
    "identity-inside": lambda b: b.relu(b.op("Identity", [_image(b)])),
    "space-to-depth": lambda b: b.op("SpaceToDepth", [b.input((1, 8, 12, 10))], {"blocksize": 2}),
    "resize-half-pixel": lambda b: b.op(
        "Resize",
        [_image(b), "", b.weight((4,), values=(1.0, 1.0, 2.0, 2.0))],
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    "reduce-sum": lambda b: b.op("ReduceSum", [_image(b), _ints(b, 1, 3)], {"keepdims": 0}),
    "reduce-max": lambda b: b.op("ReduceMax", [_image(b)], {"axes": (3,), "keepdims": 1}),
    "reduce-min": lambda b: b.op("ReduceMin", [_image(b)], {"axes": (1, 2), "keepdims": 0}),
    "div": lambda b: b.div(_image(b), b.weight((8, 1, 1))),
    "min": lambda b: b.op("Min", list(_two(b))),
    "pow": lambda b: b.op("Pow", [_image(b), b.weight((), values=(2.0,))]),
    "log-softmax": lambda b: b.op("LogSoftmax", [b.input((3, 20))], {"axis": 1}),
    "log": lambda b: b.op("Log", [b.add(b.sigmoid(_image(b)), b.weight((), values=(1.0,)))]),
    "sqrt": lambda b: b.op("Sqrt", [b.sigmoid(_image(b))]),
    **{
        op.lower(): partial(_plain, op=op)
        for op in ("Exp", "Abs", "Neg", "Floor", "Ceil", "Round", "Sin", "Cos")
    },
    "excite-by-fc": _excite_by_fc,
    "depth-to-space": lambda b: b.op("DepthToSpace", [_image(b)], {"blocksize": 2}),
    "mlp": _mlp,
    "gemm": _gemm_plain,
    "matmul": lambda b: b.matmul(b.input((2, 5, 8)), b.weight((8, 6))),
    "matmul-data": lambda b: b.matmul(b.input((2, 5, 8)), b.input((2, 8, 6))),
    "attention": _attention,
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "small_graph" in metafunc.fixturenames:
        metafunc.parametrize("small_graph", list(SMALL), indirect=True)


@pytest.fixture
def small_graph(request: pytest.FixtureRequest) -> Graph:
    """Return one of the small graphs; a test that uses this fixture runs once for each."""
    b = GraphBuilder(request.param)
    return b.build([SMALL[request.param](b)])


@pytest.fixture
def run_onnx() -> Callable[[bytes, Graph], list[Floats]]:
    return _run_onnx


@pytest.fixture
def feeds() -> Callable[[Graph], dict[str, NDArray[Any]]]:
    """Return the function that makes the input data of `run_onnx` and `lite` for a graph."""
    return inputs_of


@pytest.fixture
def lite() -> type[Lite]:
    return Lite


def _small_network(name: str) -> Graph:
    family, seed = zoo.find(name)
    if family.task == "language":
        return family.build(resolution=16)
    smallest = {"inception-v3": 107, "inception-v4": 107}.get(name, 96)
    resolution = min(family.resolution, 128 if family.task == "detection" else smallest)
    graph = family.build(width=0.5, resolution=resolution, seed=seed)
    return _logits(graph)


def _logits(graph: Graph) -> Graph:
    """Return the graph without a softmax at its end.

    Many probabilities after a softmax are too close to each other to differ in 8 bits.
    """
    ends = {t: graph.producers[t] for t in graph.outputs if graph.producers[t].op == "Softmax"}
    return replace(
        graph,
        outputs=tuple(ends[t].inputs[0] if t in ends else t for t in graph.outputs),
        nodes=tuple(node for node in graph.nodes if node not in ends.values()),
    )


@pytest.fixture
def small_network() -> Callable[[str], Graph]:
    """Return a function that builds a small variant of a zoo network.

    The variant has half the width, a low resolution and no softmax at its end. Only language
    models keep their width and their end; they are built with `resolution=16`.
    """
    return _small_network


@pytest.fixture
def light_models() -> dict[str, Path]:
    """Return the paths of the real networks that the onnx package contains, by name."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {path.stem.removeprefix("light_"): path for path in sorted(folder.glob("*.onnx"))}
