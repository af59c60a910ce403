"""ncnn models compute what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.builders.ncnn.build import build_ncnn
from latfarm_controller.errors import BuildError
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph import expansions
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules

from tests.controller.builders.ncnn_runner import (
    REFUSED,
    Make,
    agrees,
    gate,
    image,
    ints,
    number,
    resized,
    small,
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


# Graphs in addition to the small graphs that all builders' tests share.
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
    # of absolute values: a mean near zero shows in which order the processor adds
    "mean-of-all": lambda b: b.op(
        "ReduceMean", [b.op("Abs", [image(b)])], {"keepdims": 0, "axes": (0, 1, 2, 3)}
    ),
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
