"""The layers, blobs and names in ncnn's files, and what cannot be built for ncnn."""

from __future__ import annotations

import zipfile
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.builders import build
from latfarm_controller.builders.ncnn.build import build_ncnn, translate
from latfarm_controller.builders.ncnn.file import PARAM_NAME
from latfarm_controller.errors import BuildError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from tests.controller.builders.ncnn_runner import (
    Make,
    agrees,
    blobs_of,
    image,
    ints,
    lines_of,
    reference,
    resized,
    run,
    small,
    worst,
)


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
    assert efficient["Sigmoid"] == 0  # each sigmoid is fused into the layer before it


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
    assert first.params[9] == 6  # in ncnn, activation type 6 is hard swish
    found = Counter(layer.kind for layer in net.layers)
    assert not found.keys() & {"BatchNorm", "ReLU", "HardSwish", "Clip"}


def test_a_result_with_two_readers_is_not_fused() -> None:
    def two_readers(b: GraphBuilder) -> str:
        return b.add(b.relu(x := b.conv(image(b), 4, 3)), b.sigmoid(x))

    found = kinds(small("two", two_readers))
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
