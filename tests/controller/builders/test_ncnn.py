"""ncnn networks: they compute what the ONNX model of the same graph computes."""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.builders.ncnn.build import build_ncnn, translate
from latfarm_controller.builders.ncnn.file import BIN_NAME, PARAM_NAME
from latfarm_controller.builders.noise import inputs
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules
from numpy.typing import NDArray

Arrays = list[NDArray[Any]]
Make = Callable[[GraphBuilder], str]

_HALF_FLOATS = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)

# What of the shared small graphs ncnn cannot express.
REFUSED = {
    "batch-norm-rows": r"\(BatchNormalization\): a batch of 3",
    "resize-linear": r"\(Resize\): linear interpolation by asymmetric",
}


def small(name: str, make: Make) -> Graph:
    b = GraphBuilder(name)
    return b.build([make(b)])


def reference(graph: Graph, weights: Mapping[str, NDArray[Any]] | None = None) -> Arrays:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    model = build_onnx(graph, "fp32", weights)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return [np.asarray(made) for made in session.run(None, inputs(graph, 1))]


def lines_of(model: bytes) -> list[list[str]]:
    """The layers of `.param`, a list of words each."""
    text = zipfile.ZipFile(BytesIO(model)).read(PARAM_NAME).decode()
    return [line.split() for line in text.splitlines()[2:]]


def blobs_of(line: list[str]) -> tuple[list[str], list[str]]:
    bottoms, tops = int(line[2]), int(line[3])
    return line[4 : 4 + bottoms], line[4 + bottoms : 4 + bottoms + tops]


def token_ids(model: bytes) -> set[str]:
    """Blobs that reach a table."""
    found: set[str] = set()
    for line in reversed(lines_of(model)):
        bottoms, tops = blobs_of(line)
        if line[0] == "Embed" or (line[0] in ("Split", "Reshape", "Flatten") and found & set(tops)):
            found |= set(bottoms)
    return found


def run(model: bytes, graph: Graph, folder: Path) -> Arrays:
    """All outputs for `inputs(graph, 1)` in ncnn on one thread, without half floats."""
    import ncnn

    zipfile.ZipFile(BytesIO(model)).extractall(folder)
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_vulkan_compute = False
    for option in _HALF_FLOATS:
        setattr(net.opt, option, False)
    assert net.load_param(str(folder / PARAM_NAME)) == 0
    assert net.load_model(str(folder / BIN_NAME)) == 0
    extractor = net.create_extractor()
    ids = token_ids(model)
    heads = [line for line in lines_of(model) if line[0] == "Input"]
    kept = []
    for head, data in zip(heads, inputs(graph, 1).values(), strict=True):
        sizes = dict(param.split("=") for param in head[5:])
        dims = [int(sizes[key]) for key in ("2", "11", "1", "0") if key in sizes]
        kind = np.int32 if head[1] in ids else np.float32
        # The array must live until it is cloned; only the clone has ncnn's alignment.
        array = np.ascontiguousarray(data.reshape(dims), kind)
        kept.append(ncnn.Mat(array).clone())
        assert extractor.input(head[1], kept[-1]) == 0
    found = []
    for index, tensor in enumerate(graph.outputs):
        code, made = extractor.extract(f"out{index}")
        assert code == 0
        found.append(np.array(made).reshape(graph.type_of(tensor).shape))
    return found


def worst(expected: Arrays, found: Arrays) -> float:
    """Largest deviation of an output, relative to its largest element."""
    return max(
        float(np.abs(e.astype(np.float64) - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


def agrees(graph: Graph, folder: Path, limit: float = 1e-5) -> bytes:
    model = build_ncnn(graph)
    assert worst(reference(graph), run(model, graph, folder)) < limit
    return model


def image(b: GraphBuilder) -> str:
    return b.input((1, 8, 13, 11))


def gate(b: GraphBuilder, x: str) -> str:
    return b.mul(x, b.tanh(b.op("Softplus", [x])))


def number(b: GraphBuilder, value: float) -> str:
    return b.weight((), values=(value,))


def ints(b: GraphBuilder, *values: int) -> str:
    return b.weight((len(values),), "int64", values)


def resized(scale: float, **attrs: str) -> Make:
    return lambda b: b.op(
        "Resize", [image(b), "", b.weight((4,), values=(1, 1, scale, scale))], attrs
    )


def focus(b: GraphBuilder) -> str:
    x = b.input((1, 3, 12, 10))
    return b.concat([b.slice(x, (i, j), (12, 10), (2, 3), (2, 2)) for i in (0, 1) for j in (0, 1)])


def group_norm(b: GraphBuilder) -> str:
    rows = b.reshape(image(b), (1, 4, 286))
    return b.reshape(
        b.op("InstanceNormalization", [rows, b.weight((4,)), b.weight((4,))]), (1, 8, 13, 11)
    )


def blocks(b: GraphBuilder) -> str:
    x = b.reshape(b.input((1, 24, 13, 11)), (1, 2, 3, 4, 13, 11))
    return b.reshape(b.transpose(x, (0, 3, 1, 2, 4, 5)), (1, 24, 13, 11))


def row_bias(b: GraphBuilder) -> str:
    return b.relu(b.add(b.matmul(b.input((1, 9, 8)), b.weight((8, 6))), b.weight((6,))))


def scaled(b: GraphBuilder) -> str:
    return b.add(b.mul(image(b), b.weight((1, 8, 1, 1))), b.weight((8, 1, 1)))


def scale_alone(b: GraphBuilder) -> str:
    x = b.mul(image(b), b.weight((1, 8, 1, 1)))
    return b.add(x, b.sigmoid(x))


# Beyond the graphs that the builders' tests share.
MORE: Mapping[str, Make] = {
    "mish": lambda b: gate(b, image(b)),
    "swish": lambda b: b.mul(x := image(b), b.sigmoid(x)),
    "conv-mish": lambda b: gate(b, b.conv(image(b), 6, 3)),
    "conv-hard-swish": lambda b: b.hard_swish(b.batch_norm(b.conv(image(b), 6, 3))),
    "conv-swish": lambda b: b.mul(x := b.batch_norm(b.conv(image(b), 6, 3)), b.sigmoid(x)),
    "conv-leaky": lambda b: b.leaky_relu(b.conv(image(b), 6, 3, bias=True), 0.2),
    "conv-sigmoid": lambda b: b.sigmoid(b.conv(image(b), 6, 3, bias=True)),
    "conv-two-readers": lambda b: b.add(b.relu(x := b.conv(image(b), 4, 3)), b.sigmoid(x)),
    "conv-1d": lambda b: b.relu(b.conv(b.input((1, 8, 30)), 6, 5, 2, bias=True)),
    "conv-3d": lambda b: b.relu(b.conv(b.input((1, 4, 6, 7, 8)), 6, 3)),
    "deconv-bn-clip": lambda b: b.clip(b.batch_norm(b.conv_transpose(image(b), 6, 3, 2)), -1, 1),
    "deconv-grouped": lambda b: b.op(
        "ConvTranspose",
        [image(b), b.weight((8, 3, 3, 3))],
        {"group": 2, "strides": (2, 2), "output_padding": (1, 1)},
    ),
    "max-pool-1d": lambda b: b.max_pool(b.input((1, 8, 30)), 3, 2),
    "avg-pool-3d": lambda b: b.avg_pool(b.input((1, 4, 6, 7, 8)), 2, 2),
    "global-pool-1d": lambda b: b.global_avg_pool(b.input((1, 8, 30))),
    "matmul-vector": lambda b: b.matmul(b.input((2, 5, 8)), b.input((8,))),
    "matmul-broadcast": lambda b: b.matmul(b.input((2, 3, 5, 8)), b.input((3, 8, 4))),
    "matmul-5d": lambda b: b.matmul(b.input((1, 2, 3, 4, 5, 8)), b.input((1, 2, 3, 4, 8, 6))),
    "matmul-left": lambda b: b.matmul(b.weight((5, 8)), b.input((1, 2, 8, 6))),
    "matmul-swapped": lambda b: b.matmul(
        b.input((1, 3, 5, 8)), b.transpose(b.input((1, 3, 7, 8)), (0, 1, 3, 2))
    ),
    "fc-rows": row_bias,
    "fc-bn": lambda b: b.relu(b.batch_norm(b.fc(b.input((1, 8)), 6))),
    "gemm-turned": lambda b: b.op(
        "Gemm",
        [b.input((8, 3)), b.input((8, 5)), b.input((5,))],
        {"transA": 1, "alpha": 0.5, "beta": 3.0},
    ),
    "scale": scaled,
    "scale-alone": scale_alone,
    "sub-from": lambda b: b.sub(number(b, 1.0), image(b)),
    "div-by": lambda b: b.div(number(b, 1.0), b.add(b.sigmoid(image(b)), number(b, 1.0))),
    "cube": lambda b: b.op("Pow", [image(b), number(b, 3.0)]),
    "root": lambda b: b.op("Pow", [b.sigmoid(image(b)), number(b, 0.5)]),
    "pow": lambda b: b.op("Pow", [b.sigmoid(image(b)), number(b, 1.7)]),
    "vector-of-width": lambda b: b.add(b.input((1, 11, 11)), b.input((11,))),
    "outer-sum": lambda b: b.add(b.input((1, 8, 1, 1)), b.input((1, 1, 13, 11))),
    "max-of-three": lambda b: b.op("Max", [image(b), image(b), b.input((13, 1))]),
    "mean-of-three": lambda b: b.op("Mean", [image(b), image(b), image(b)]),
    "mean-broadcast": lambda b: b.op("Mean", [image(b), b.input((11,))]),
    "gelu-tanh": lambda b: expansions.gelu_tanh(b, image(b)),
    "layer-norm-4d": lambda b: b.layer_norm(b.input((2, 3, 5, 16))),
    "layer-norm-image": lambda b: expansions.layer_norm(
        b, image(b), 1, b.weight((8, 13, 11)), b.weight((8, 13, 11))
    ),
    "layer-norm-no-bias": lambda b: expansions.layer_norm(b, image(b), 2, b.weight((13, 11)), None),
    "group-norm": group_norm,
    "transpose-6d": blocks,
    "concat-batch": lambda b: b.concat([b.input((1, 8)), b.input((1, 8))], 0),
    "focus": focus,
    "pad-channels": lambda b: b.pad(image(b), (0, 1, 0, 2, 0, 3, 1, 0), 0.3),
    "pad-edge": lambda b: b.pad(image(b), (1, 2, 1, 2), mode="edge"),
    "resize-half": resized(0.5, mode="nearest", coordinate_transformation_mode="half_pixel"),
    "resize-corners": resized(2.0, mode="linear", coordinate_transformation_mode="align_corners"),
    "resize-cubic": resized(2.0, mode="cubic", coordinate_transformation_mode="half_pixel"),
    "resize-uneven": resized(1.7, mode="linear", coordinate_transformation_mode="half_pixel"),
    "resize-pixel": lambda b: b.op(
        "Resize",
        [b.input((1, 8, 1, 1)), "", b.weight((4,), values=(1.0, 1.0, 5.0, 4.0))],
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    ),
    "depth-to-space-crd": lambda b: b.op(
        "DepthToSpace", [image(b)], {"blocksize": 2, "mode": "CRD"}
    ),
    "mean-of-all": lambda b: b.op("ReduceMean", [image(b)], {"keepdims": 0, "axes": (0, 1, 2, 3)}),
    "norm-over-batch": lambda b: b.op("ReduceL1", [image(b)], {"axes": (0,)}),
    "gather-range": lambda b: b.op("Gather", [image(b), ints(b, 1, 2, 3)], {"axis": 2}),
    "gather-one": lambda b: b.op("Gather", [image(b), b.weight((), "int64", (1,))], {"axis": 1}),
    "embed": lambda b: b.op("Gather", [b.weight((50, 16)), b.input((1, 7), "int64")]),
    "expand": lambda b: b.op("Expand", [b.input((1, 8, 1, 11)), ints(b, 1, 8, 13, 11)]),
    "tile": lambda b: b.op("Tile", [image(b), ints(b, 1, 2, 1, 3)]),
    "cumsum": lambda b: b.op("CumSum", [image(b), b.weight((), "int64", (2,))]),
    "lp-normalise": lambda b: b.op("LpNormalization", [image(b)], {"axis": 1}),
    "prelu-shared": lambda b: b.op("PRelu", [image(b), b.weight((1,))]),
    "clip-below": lambda b: b.op("Clip", [image(b), number(b, -0.5)]),
    **{
        op.lower(): lambda b, op=op: b.op(op, [image(b)])  # type: ignore[misc]
        for op in ("Celu", "Selu", "Softplus", "Softsign", "ThresholdedRelu", "Erf", "Atan")
    },
    **{
        op.lower(): lambda b, op=op: b.op(op, [b.sigmoid(image(b))], {"axes": (1, 3)})  # type: ignore[misc]
        for op in ("ReduceProd", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
    },
}


def test_every_op_agrees_with_onnxruntime(small_graph: Graph, tmp_path: Path) -> None:
    if small_graph.name in REFUSED:
        with pytest.raises(BuildError, match=REFUSED[small_graph.name]):
            build_ncnn(small_graph)
    else:
        agrees(small_graph, tmp_path)


@pytest.mark.parametrize("name", MORE)
def test_more_ops_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    agrees(small(name, MORE[name]), tmp_path)


_SAMPLED = [name for name, family in zoo.families().items() if family.sampled]


@pytest.mark.parametrize("name", [*_SAMPLED, "synthetic@3", "synthetic@9"])
def test_networks_agree_with_onnxruntime(name: str, tmp_path: Path) -> None:
    family = zoo.find(name)[0]
    reduced = 32 if family.resolution <= 64 or family.task == "language" else 96
    if family.task == "detection":
        reduced = 64
    agrees(zoo.build(name, width=0.25, resolution=reduced), tmp_path, 1e-3)


def test_real_networks_agree_with_onnxruntime(
    light_models: dict[str, Path], tmp_path: Path
) -> None:
    for name in ("inception_v2", "shufflenet"):
        agrees(read_onnx(light_models[name]), tmp_path, 1e-3)


def test_kernels_agree_with_onnxruntime(tmp_path: Path) -> None:
    for kernel in KernelPrior(seed=5, max_bytes=3_000_000).draw(40, FusionRules.none()):
        agrees(kernel.graph, tmp_path, 1e-4)


_SHAPES = st.lists(st.sampled_from((1, 1, 2, 3, 4)), min_size=1, max_size=4)


@given(_SHAPES, st.data())
@settings(max_examples=40, deadline=None)
def test_operands_broadcast_as_in_numpy(shape: list[int], data: st.DataObject) -> None:
    first = tuple(size if data.draw(st.booleans()) else 1 for size in shape)
    second = tuple(size if data.draw(st.booleans()) else 1 for size in shape)
    second = second[data.draw(st.integers(0, len(shape) - 1)) :]
    op = data.draw(st.sampled_from(("Add", "Sub", "Mul", "Max")))
    b = GraphBuilder("broadcast")
    operands = [b.input(first), b.input(second) if data.draw(st.booleans()) else b.weight(second)]
    if data.draw(st.booleans()):
        operands.reverse()
    graph = b.build([b.op(op, operands)])
    with TemporaryDirectory() as folder:
        agrees(graph, Path(folder))


@given(st.permutations(range(5)), st.permutations((1, 2, 3, 4, 5)), st.integers(0, 2))
@settings(max_examples=40, deadline=None)
def test_axes_permute_as_in_numpy(perm: list[int], shape: list[int], drop: int) -> None:
    kept = shape[drop:]
    order = [axis - drop for axis in perm if axis >= drop]
    b = GraphBuilder("turn")
    x = b.relu(b.reshape(b.input((1, prod(kept))), kept))
    graph = b.build([b.reshape(b.transpose(x, order), (1, prod(kept)))])
    with TemporaryDirectory() as folder:
        agrees(graph, Path(folder))


def kinds(graph: Graph) -> Counter[str]:
    return Counter(layer.kind for layer in translate(graph).layers)


def test_what_the_graph_spells_out_is_one_layer() -> None:
    bert = kinds(zoo.build("bert-tiny", resolution=16))
    assert bert["LayerNorm"] == 5
    assert bert["GELU"] == 2
    assert bert["Embed"] == 2
    assert not bert.keys() & {"Erf", "UnaryOp", "Reduction"}
    assert kinds(zoo.build("shufflenet-v2"))["ShuffleChannel"] == 16
    efficient = kinds(zoo.build("efficientnet-b0"))
    assert efficient["Swish"] == 49
    assert efficient["Sigmoid"] == 0  # gates are inside the layers before them


def test_convolutions_take_what_follows_and_say_so() -> None:
    net = translate(zoo.build("mobilenet-v3-small"))
    first = net.layers[1]
    assert first.kind == "Convolution"
    assert [part.split("_")[0] for part in first.name.split("+")] == [
        "conv",
        "batchnormalization",
        "hardsigmoid",
        "mul",
    ]
    assert first.params[9] == 6  # hard swish
    found = Counter(layer.kind for layer in net.layers)
    assert not found.keys() & {"BatchNorm", "ReLU", "HardSwish", "Clip"}


def test_a_result_with_two_readers_is_not_fused() -> None:
    found = kinds(small("two", MORE["conv-two-readers"]))
    assert found["Convolution"] == found["ReLU"] == found["Sigmoid"] == 1


def test_views_cost_no_layer_until_a_shape_matters() -> None:
    def views(b: GraphBuilder) -> str:
        return b.reshape(b.reshape(b.input((1, 6, 4, 5)), (1, 24, 5)), (1, 2, 60))

    found = [layer.kind for layer in translate(small("relu", lambda b: b.relu(views(b)))).layers]
    assert found == ["Input", "ReLU"]
    found = [layer.kind for layer in translate(small("out", views)).layers]
    assert found == ["Input", "Reshape"]


def test_every_blob_is_made_once_before_it_is_read_once() -> None:
    for name in ("resnet18", "yolov5n", "bert-tiny"):
        model = build_ncnn(zoo.build(name, width=0.25, resolution=64))
        text = zipfile.ZipFile(BytesIO(model)).read(PARAM_NAME).decode().splitlines()
        made: set[str] = set()
        readable: set[str] = set()
        for line in lines_of(model):
            bottoms, tops = blobs_of(line)
            for bottom in bottoms:
                readable.remove(bottom)
            assert not made & set(tops)
            made |= set(tops)
            readable |= set(tops)
        assert text[:2] == ["7767517", f"{len(text) - 2} {len(made)}"]
        assert "out0" in readable


def test_ends_have_names_of_their_own(tmp_path: Path) -> None:
    b = GraphBuilder("ends")
    x, y = b.input((1, 4, 6, 5)), b.input((1, 4, 6, 5))
    total = b.add(x, y)
    kept = b.op("Identity", [x])
    graph = b.build([total, b.relu(b.sub(y, x)), b.fc(b.flatten(total), 3), kept, b.mul(total, x)])
    model = agrees(graph, tmp_path)
    tops = {top for line in lines_of(model) for top in blobs_of(line)[1]}
    assert {"in0", "in1", "out0", "out1", "out2", "out3", "out4"} <= tops


def test_the_same_graph_gives_the_same_bytes() -> None:
    graph = zoo.build("squeezenet", resolution=96)
    model = build(graph, "ncnn", "fp32")
    assert build(Graph.from_json(graph.to_json()), "ncnn", "fp32") == model
    entries = zipfile.ZipFile(BytesIO(model)).infolist()
    assert [entry.filename for entry in entries] == ["model.param", "model.bin"]
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert {entry.compress_type for entry in entries} == {zipfile.ZIP_STORED}


def test_given_weights_are_used(tmp_path: Path) -> None:
    graph = small("own", lambda b: b.relu(b.batch_norm(b.conv(image(b), 12, 3, bias=True))))
    own = {"weight_0": np.full((12, 8, 3, 3), 0.01, np.float32)}
    found = run(build_ncnn(graph, "fp32", own), graph, tmp_path)
    assert worst(reference(graph, own), found) < 1e-5
    assert worst(reference(graph), found) > 1e-2


@pytest.mark.parametrize(
    ("message", "make"),
    [
        (r"'conv_0' \(Conv\): a batch of 2", lambda b: b.conv(b.input((2, 3, 8, 8)), 4, 3)),
        (r"'argmax_0' \(ArgMax\): ncnn has no layer", lambda b: b.op("ArgMax", [image(b)])),
        (r"\(Slice\): a step of -1", lambda b: b.slice(image(b), (-1,), (-99,), (3,), (-1,))),
        (r"\(LRN\): LRN over 4 channels", lambda b: b.lrn(image(b), 4)),
        (
            r"\(Gather\): indices that are no range",
            lambda b: b.op("Gather", [image(b), ints(b, 1, 5, 2)], {"axis": 1}),
        ),
        (
            r"\(Conv\): operand 1 is computed at run time",
            lambda b: b.op("Conv", [image(b), b.input((4, 8, 3, 3))]),
        ),
        (r"\(Relu\): operand 'input' is float16", lambda b: b.relu(b.input((1, 4), "float16"))),
        (
            r"\(Cast\): a cast from float32 to int64",
            lambda b: b.op("Cast", [image(b)], {"to": 7}),
        ),
        (
            r"\(MaxPool\): a dilated pool",
            lambda b: b.op("MaxPool", [image(b)], {"kernel_shape": (3, 3), "dilations": (2, 2)}),
        ),
        (
            r"\(Resize\): nearest pixels by asymmetric",
            resized(1.7, mode="nearest", coordinate_transformation_mode="asymmetric"),
        ),
    ],
)
def test_what_ncnn_cannot_say_is_refused_by_name(message: str, make: Make) -> None:
    with pytest.raises(BuildError, match=message):
        build_ncnn(small("odd", make))


def test_token_ids_that_are_numbers_too_are_refused() -> None:
    b = GraphBuilder("both")
    ids = b.input((1, 7), "int64")
    rows = b.op("Gather", [b.weight((50, 7)), ids])
    graph = b.build([b.mul(rows, b.op("Cast", [ids], {"to": 1}))])
    with pytest.raises(BuildError, match=r"\(Cast\): token ids that are numbers too"):
        build_ncnn(graph)


def test_only_float32_is_built() -> None:
    with pytest.raises(BuildError, match="ncnn is built as fp32 or fp16, not 'int8'"):
        build_ncnn(small("relu", lambda b: b.relu(image(b))), "int8")
