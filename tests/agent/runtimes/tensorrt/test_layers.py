"""Which nodes the layers of an engine cover, tested on inspector texts of several versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from latfarm_agent.runtimes.onnx.wire import WireNode
from latfarm_agent.runtimes.tensorrt.layers import (
    EngineLayer,
    covered,
    layer_times,
    placed_names,
    read_inspector,
)

CHAIN = [
    WireNode("conv0", "Conv", ("x", "w0"), ("c0",)),
    WireNode("bn0", "BatchNormalization", ("c0", "s", "b", "m", "v"), ("b0",)),
    WireNode("relu0", "Relu", ("b0",), ("r0",)),
    WireNode("conv1", "Conv", ("r0", "w1"), ("c1",)),
    WireNode("add1", "Add", ("c1", "r0"), ("a1",)),
    WireNode("", "Sigmoid", ("a1",), ("y",)),
]


def entry(name: str, reads: list[str], makes: str, **more: str) -> dict[str, Any]:
    """One layer as a detailed inspector prints it."""
    inputs = [{"Name": tensor, "Location": "Device"} for tensor in reads]
    return {"Name": name, "Inputs": inputs, "Outputs": [{"Name": makes}], **more}


def names(layers: list[dict[str, Any]], nodes: list[WireNode] = CHAIN) -> list[list[str]]:
    """Return the names (or outputs) of the nodes that each layer covers."""
    found = covered(read_inspector(json.dumps({"Layers": layers})), nodes, {"x"})
    return [[nodes[i].name or nodes[i].outputs[0] for i in inside] for inside in found]


def test_metadata_is_the_surest() -> None:
    layers = [
        entry(
            "conv_kernel_17",
            ["x"],
            "__mye3",
            LayerType="gemm",
            Metadata="[ONNX Layer: conv0]\x1f[ONNX Layer: bn0]\x1e[ONNX Layer: relu0]",
        ),
        entry("k2", ["__mye3"], "__mye4", Metadata="[ONNX Layer: conv1][ONNX Layer: add1]"),
        entry("k3", ["__mye4"], "__mye5", Metadata="[ONNX Layer: node_of_y]"),
    ]
    assert names(layers) == [["conv0", "bn0", "relu0"], ["conv1", "add1"], ["y"]]


def test_names_where_there_is_no_metadata() -> None:
    layers = [
        entry("conv0 + bn0 + relu0", ["x"], "t0"),
        entry("conv1 || add1", ["t0"], "t1"),
        entry("PWN(PWN(node_of_y), unknown)", ["t1"], "t2"),
    ]
    assert names(layers) == [["conv0", "bn0", "relu0"], ["conv1", "add1"], ["y"]]


def test_tensors_tell_what_the_name_leaves_out() -> None:
    """Tensors show a batch-norm that was folded into weights, and the nodes inside a region."""
    layers = [
        entry("conv0 + relu0", ["x"], "r0"),
        entry("{ForeignNode[conv1...node_of_y]}", ["r0"], "y", LayerType="Myelin"),
    ]
    assert names(layers) == [["conv0", "bn0", "relu0"], ["conv1", "add1", "y"]]


def test_copies_cover_nothing_and_lead_on() -> None:
    copied = "Reformatted Input Tensor 0 to conv0"
    layers = [
        entry(f"Reformatting CopyNode for Input Tensor 0 to {copied}", ["x"], copied),
        entry("kernel", [copied], "Reformatted Output Tensor 0 to kernel", LayerType="Conv"),
        entry(
            "Reformatting CopyNode for Output Tensor 0 to kernel",
            ["Reformatted Output Tensor 0 to kernel"],
            "r0",
            LayerType="Reformat",
        ),
        entry("rest", ["r0"], "y"),
    ]
    assert names(layers) == [[], ["conv0", "bn0", "relu0"], [], ["conv1", "add1", "y"]]


def test_a_quantisation_may_be_done_as_a_copy() -> None:
    nodes = [
        WireNode("q", "QuantizeLinear", ("x", "s"), ("xq",)),
        WireNode("wdq", "DequantizeLinear", ("w", "s"), ("wd",)),
        WireNode("dq", "DequantizeLinear", ("xq", "s"), ("xd",)),
        WireNode("conv", "Conv", ("xd", "wd"), ("c",)),
        WireNode("q2", "QuantizeLinear", ("c", "s"), ("cq",)),
        WireNode("dq2", "DequantizeLinear", ("cq", "s"), ("y",)),
    ]
    layers = [
        entry("q", ["x"], "xq", LayerType="Reformat"),
        entry("w + wdq + conv", ["xq"], "cq", LayerType="CaskConvolution"),
        entry("kernel", ["cq"], "y", LayerType="Reformat"),
    ]
    # Nodes that depend on no input are computed when the engine is built.
    assert names(layers, nodes) == [["q"], ["dq", "conv", "q2"], ["dq2"]]


def test_nodes_are_covered_once() -> None:
    told = "[ONNX Layer: conv0]"
    layers = [
        entry("myl_0", ["x"], "__mye0", Metadata=told),
        entry("myl_1", ["__mye0"], "__mye1", Metadata=told),
        entry("conv0", ["x"], "c0"),
    ]
    assert names(layers) == [["conv0"], [], []]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("no JSON", []),
        ("[]", []),
        ('{"Layers": ["conv0 + relu0\\n"]}', [EngineLayer("conv0 + relu0\n")]),
        ('{"Layers": [{"Name": "a", "Inputs": ["x"]}]}', [EngineLayer("a", inputs=("x",))]),
    ],
)
def test_read_inspector(text: str, found: list[EngineLayer]) -> None:
    assert read_inspector(text) == found


def test_times_of_layers() -> None:
    layers = read_inspector(
        json.dumps(
            {
                "Layers": [
                    entry("conv0 + bn0 + relu0", ["x"], "r0", LayerType="CaskConvolution"),
                    entry("shape", [], "s", LayerType="Constant"),
                    entry("k", ["r0"], "y", LayerType="kgen", Metadata="[ONNX Layer: conv1]"),
                    entry("k", ["r0"], "z", LayerType="kgen", Metadata=""),
                ]
            }
        )
    )
    run = [("conv0 + bn0 + relu0", 1.0), ("k", 2.0), ("k", 3.0), ("k", 4.0), ("unheard of", 0.5)]
    rows = layer_times([run, [(n, t + 2) for n, t in run]], layers, CHAIN, {"x"})
    assert [(row.name, row.op, row.latency_ms) for row in rows] == [
        ("conv0+bn0+relu0", "Conv+BatchNormalization+Relu", 2.0),
        ("conv1+add1+y", "Conv+Add+Sigmoid", 3.0),
        ("k", "kgen", 4.0),
        ("k #2", "Layer", 5.0),
        ("unheard of", "Layer", 1.5),
    ]
    assert {row.device for row in rows} == {"GPU"}


def test_rows_of_a_dla() -> None:
    region = "{ForeignNode[conv0...add1]}"
    run = [("x to nvm", 0.1), (region, 0.2), ("a1 from nvm", 5.0), ("a1 copy finish", 0.1)]
    rows = layer_times([[*run, ("PWN(node_of_y)", 1.0)]], [], CHAIN, {"x"}, on_dla=[region])
    assert [(row.name, row.op, row.device) for row in rows] == [
        ("x to nvm", "DlaCopy", "DLA"),
        (region, "Region", "DLA"),
        ("a1 from nvm", "DlaCopy", "DLA"),
        ("a1 copy finish", "DlaCopy", "DLA"),
        ("PWN(node_of_y)", "Layer", "GPU"),
    ]
    assert layer_times([], [], CHAIN, {"x"}) == []


def test_names_of_what_was_placed() -> None:
    copy = "Reformatting CopyNode for Input Tensor 0 to conv1"
    assert placed_names(["conv0 + relu0", copy, "PWN(node_of_y)", "conv0"], CHAIN) == [
        "conv0",
        "relu0",
        "y",
    ]
