"""Networks in ncnn's text format become Graphs, or are refused with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_predictors.errors import DynamicShapeError, ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends.ncnn.network import NcnnNetwork, read_ncnn
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals

HEAD = "Input data 0 1 data 0=32 1=32 2=3"


def read(tmp_path: Path, *layers: str, told: int | None = None) -> NcnnNetwork:
    path = tmp_path / "net.param"
    count = len(layers) if told is None else told
    path.write_text("\n".join(["7767517", f"{count} {count}", *layers, ""]))
    return read_ncnn(path)


def test_a_network_is_that_of_the_builder(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        HEAD,
        "Convolution c 1 1 data c -23330=4,3,16,16,8 0=8 1=3 3=2 4=1 5=1 6=216 9=1",
        "Split s 1 2 c c1 c2",
        "ConvolutionDepthWise d 1 1 c1 d 0=8 1=3 4=1 5=1 6=72 7=8",
        "BinaryOp a 2 1 d c2 a 0=0",
        "Pooling p 1 1 a p 0=1 4=1",
        "InnerProduct f 1 1 p f 0=10 1=1 2=80",
        "Softmax o 1 1 f o",
    )
    b = GraphBuilder("net")
    x = b.relu(b.conv(b.input((1, 3, 32, 32)), 8, 3, 2, (1, 1, 1, 1), bias=True))
    y = b.add(b.depthwise(x, 3, 1, (1, 1, 1, 1), bias=True), x)
    z = b.fc(b.flatten(b.global_avg_pool(y)), 10, bias=True)
    assert hash_of(found.graph) == hash_of(b.build([b.softmax(z, 1)]))
    assert not found.int8


def test_pads_and_rounding(tmp_path: Path) -> None:
    """A pool rounds sizes up by default; -233 keeps sizes, and the odd pad comes behind."""
    graph = read(
        tmp_path,
        HEAD,
        "Pooling up 1 1 data up 1=3 2=2",
        "Pooling down 1 1 up down 0=1 1=3 2=2 5=1",
        "Convolution same 1 1 down same 0=4 1=3 3=2 4=-233 6=108",
        "Convolution lower 1 1 same lower 0=4 1=2 4=-234 6=64",
    ).graph
    shapes = [graph.type_of(node.outputs[0]).shape for node in graph.nodes]
    assert shapes == [(1, 3, 16, 16), (1, 3, 7, 7), (1, 4, 4, 4), (1, 4, 4, 4)]
    assert graph.nodes[0].attrs["pads"] == (0, 0, 1, 1)
    assert graph.nodes[2].attrs["pads"] == (1, 1, 1, 1)
    assert graph.nodes[3].attrs["pads"] == (1, 1, 0, 0)


def test_moves_of_data(tmp_path: Path) -> None:
    graph = read(
        tmp_path,
        "Input data 0 1 data 0=8 1=6 2=4",
        "ShuffleChannel s 1 1 data s 0=2",
        "Slice c 1 2 s left right -23300=2,-233,-233 1=0",
        "Permute t 1 1 left t 0=3",
        "Reshape r 1 1 t r 0=-1 1=2",
        "Padding p 1 1 right p 0=1 1=1 2=2 3=2 4=0 5=0.0",
        "Interp i 1 1 p i 0=1 1=2.0 2=2.0",
        "Crop k 1 1 i k -23309=1,1 -23310=1,-233 -23311=1,0",
        "Swish w 1 1 k w",
        "HardSwish h 1 1 w h 0=0.16666667 1=0.5",
    ).graph
    assert [graph.type_of(name).shape for name in graph.outputs] == [(1, 2, 48), (1, 1, 16, 24)]


def test_a_gate_of_channels_and_a_constant(tmp_path: Path) -> None:
    graph = read(
        tmp_path,
        HEAD,
        "Convolution c 1 1 data c 0=8 1=1 6=24",
        "Split s 1 2 c c1 c2",
        "Pooling p 1 1 c1 p 0=1 4=1",
        "InnerProduct f 1 1 p f 0=8 1=1 2=64 9=4",
        "BinaryOp m 2 1 c2 f m 0=2",
        "MemoryData k 0 1 k 0=8",
        "BinaryOp a 2 1 m k a 0=0",
    ).graph
    assert [graph.type_of(name).shape for name in graph.outputs] == [(1, 8, 32, 32)]


@pytest.mark.parametrize(
    ("parameters", "axes", "shape"),
    [
        ("0=3", (1, 2, 3), (1, 1)),  # ncnn reduces everything where nothing else is told
        ("0=3 4=1", (1, 2, 3), (1, 1, 1, 1)),
        ("0=3 1=1 -23303=1,0 4=1 5=1", (1, 2, 3), (1, 1, 1, 1)),
        ("0=3 -23303=2,1,2 5=1", (1, 2, 3), (1, 1)),
        ("0=3 1=0 -23303=2,1,2 5=1", (2, 3), (1, 3)),
        ("0=3 1=0 -23303=2,-1,2 4=1 5=1", (3,), (1, 3, 32, 1)),
        ("0=3 1=0 -23303=3,0,1,2 5=1", (1, 2, 3), (1, 1)),
    ],
)
def test_a_reduction_of_named_axes_or_of_everything(
    tmp_path: Path, parameters: str, axes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    graph = read(tmp_path, HEAD, f"Reduction r 1 1 data r {parameters}").graph
    assert graph.nodes[0].attrs["axes"] == axes
    assert graph.type_of(graph.outputs[0]).shape == shape


def test_int8_weights_are_told_and_read_as_floats(tmp_path: Path) -> None:
    layer = "Convolution c 1 1 data c 0=8 1=3 6=216"
    quantised = read(tmp_path, HEAD, f"{layer} 8=2")
    assert quantised.int8
    assert hash_of(quantised.graph) == hash_of(read(tmp_path, HEAD, layer).graph)
    assert graph_totals(quantised.graph).macs == 8 * 30 * 30 * 27


def test_lines_beyond_the_announced_ones_are_not_read(tmp_path: Path) -> None:
    graph = read(tmp_path, HEAD, "ReLU r 1 1 data r", "Noop n 1 1 r n", told=2).graph
    assert [node.op for node in graph.nodes] == ["Relu"]


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([HEAD, "Yolov3DetectionOutput y 1 1 data y"], "line 4: .*cannot express"),
        (["Input data 0 1 data"], "does not tell the sizes"),
        ([HEAD, "Convolution c 1 1 data c 0=8 1=3 6=215"], "215 weights do not fit; 216"),
        ([HEAD, "ReLU r 1 1 later r", "ReLU l 1 1 r later"], "used before it is made"),
        ([HEAD, "ReLU r 1 1 data data"], "made twice"),
        ([HEAD, "ReLU r 1 1"], "fewer inputs and outputs"),
        ([HEAD, "ReLU r 1 1 data r 0=x"], "no parameter"),
        ([HEAD, "Slice s 1 2 data a b -23300=2,1,1"], "leave 1 over"),
        ([HEAD, "Eltwise e 1 1 data e 0=7"], "not known"),
        ([HEAD, "Pooling p 1 1 data p 7=1"], "cannot be expressed"),
        ([HEAD, "ReLU r 0 1 r"], "it has no input"),
        ([HEAD, "Reduction r 1 1 data r 1=0"], r"layer 'r' \(Reduction\): only a mean"),
        ([HEAD, "Reduction r 1 1 data r 0=3 1=0"], "names no axes"),
        ([HEAD, "Reduction r 1 1 data r 0=3 1=0 -23303=1,1"], "old way; convert"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, layers: list[str], reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason) as caught:
        read(tmp_path, *layers)
    assert str(tmp_path) in str(caught.value)
    if "cannot express" in reason:
        assert isinstance(caught.value, UnsupportedOpError)
    if "sizes" in reason:
        assert isinstance(caught.value, DynamicShapeError)


@pytest.mark.parametrize("text", ["", "7767517\n", "7767517\n3 3\nInput d 0 1 d\n", "\0\xff"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "net.param"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ModelFileError, match="net\\.param"):
        read_ncnn(path)
    with pytest.raises(ModelFileError, match="cannot be read"):
        read_ncnn(tmp_path / "none")
    with path.open("wb") as file:
        file.truncate(17 << 20)
    with pytest.raises(ModelFileError, match="are the most"):
        read_ncnn(path)
