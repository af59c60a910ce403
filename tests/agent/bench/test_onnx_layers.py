"""Reading ONNX files field by field, and what optimised kernels cover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_agent.runtimes.onnx_layers import Cover, covers
from latfarm_agent.runtimes.onnx_wire import WireNode, read_nodes


def node(name: str, op: str, read: str, made: str, activation: str = "") -> WireNode:
    return WireNode(name, op, tuple(read.split(",")), tuple(made.split(",")), activation)


ORIGINAL = [
    node("conv0", "Conv", "x,w0", "c0"),
    node("bn0", "BatchNormalization", "c0,s", "b0"),
    node("relu0", "Relu", "b0", "r0"),
    node("conv1", "Conv", "r0,w1", "c1"),
    node("add1", "Add", "c1,r0", "a1"),
    node("relu1", "Relu", "a1", "r1"),
    node("", "Sigmoid", "r1", "y"),
]


def test_the_nodes_of_a_file(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    found = read_nodes(onnx_file(tmp_path / "m.onnx"))
    assert [n.op for n in found] == [
        "Conv",
        "BatchNormalization",
        "Relu",
        "Conv",
        "Add",
        "Sigmoid",
    ]
    assert found[0] == WireNode("conv0", "Conv", ("x", "w0"), ("c0",))
    assert found[4].inputs == ("c1", "r0")


def test_a_truncated_file_is_none(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    whole = onnx_file(tmp_path / "m.onnx").read_bytes()
    half = tmp_path / "half.onnx"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="truncated"):
        read_nodes(half)
    half.write_bytes(b"\xff" * 30)
    with pytest.raises(ValueError, match="not an ONNX file"):
        read_nodes(half)


def test_what_kernels_cover() -> None:
    optimised = [
        node("fused conv0", "FusedConv", "x,w0,b", "r0", "Relu"),
        node("conv1", "Conv", "r0,w1", "c1"),
        node("add1", "Add", "c1,r0", "a1"),
        node("fused", "Strange", "a1", "y"),
    ]
    assert covers(ORIGINAL, optimised, {"x"}) == [
        Cover("conv0+bn0+relu0", "Conv+BatchNormalization+Relu"),
        Cover("conv1", "Conv"),
        Cover("add1", "Add"),
        Cover("relu1+y", "Relu+Sigmoid"),
    ]


def test_what_blocked_kernels_cover() -> None:
    optimised = [
        node("ReorderInput", "ReorderInput", "x", "t0"),
        node("r0_nchwc", "Conv", "t0,w0,b", "t1", "Relu"),
        node("c1_nchwc_token_3", "Conv", "t1,w1,,t1", "t2", "Relu"),
        node("", "Sigmoid", "t2", "t3"),
        node("ReorderOutput", "ReorderOutput", "t3", "y"),
    ]
    assert covers(ORIGINAL, optimised, {"x"}) == [
        Cover("ReorderInput", "ReorderInput"),
        Cover("conv0+bn0+relu0", "Conv+BatchNormalization+Relu"),
        Cover("conv1+add1+relu1", "Conv+Add+Relu"),
        Cover("y", "Sigmoid"),
        Cover("ReorderOutput", "ReorderOutput"),
    ]


def test_what_was_computed_beforehand_is_not_covered() -> None:
    original = [
        node("shape", "Constant", "", "s"),
        node("scale", "Mul", "w,s", "ws"),
        node("one", "Conv", "x,ws", "a"),
        node("two", "Conv", "a,ws", "y"),
    ]
    optimised = [node("one", "Conv", "x,folded", "a"), node("two", "Conv", "a,folded", "y")]
    assert covers(original, optimised, {"x"}) == [Cover("one", "Conv"), Cover("two", "Conv")]


def test_an_unnamed_node_inside_a_blocked_section_is_found_by_what_it_reads() -> None:
    original = [
        node("", "Conv", "x,w0", "a"),
        node("", "Conv", "x,w1", "b"),
        node("", "Concat", "a,b", "c"),
        node("", "Conv", "c,w2", "y"),
    ]
    optimised = [
        node("ReorderInput", "ReorderInput", "x", "t0"),
        node("a_nchwc", "Conv", "t0,v0", "t1"),
        node("b_nchwc", "Conv", "t0,v1", "t2"),
        node("", "Concat", "t1,t2", "t3"),
        node("y_nchwc", "Conv", "t3,v2", "t4"),
        node("ReorderOutput", "ReorderOutput", "t4", "y"),
    ]
    found = covers(original, optimised, {"x"})
    assert [cover.name for cover in found] == ["ReorderInput", "a", "b", "c", "y", "ReorderOutput"]
    assert found[3].op == "Concat"


def test_of_two_equal_branches_one_is_run_and_covered() -> None:
    original = [
        node("one", "Conv", "x,w", "a"),
        node("relu1", "Relu", "a", "b"),
        node("two", "Conv", "x,w", "c"),
        node("relu2", "Relu", "c", "d"),
        node("concat", "Concat", "b,d", "y"),
    ]
    optimised = [node("two", "FusedConv", "x,w", "d"), node("concat", "Concat", "d,d", "y")]
    assert covers(original, optimised, {"x"}) == [
        Cover("two+relu2", "Conv+Relu"),
        Cover("concat", "Concat"),
    ]


def test_a_batch_norm_of_its_own_is_found_behind_its_convolution() -> None:
    original = [
        node("p", "MaxPool", "x", "p0"),
        node("bn", "BatchNormalization", "p0,s", "b0"),
        node("r", "Relu", "b0", "y"),
    ]
    optimised = [
        node("p0_nchwc", "MaxPool", "x", "t0"),
        node("b0_bn_nchwc", "Conv", "t0,w", "t1", "Relu"),
        node("ReorderOutput", "ReorderOutput", "t1", "y"),
    ]
    assert covers(original, optimised, {"x"})[1] == Cover("bn+r", "BatchNormalization+Relu")


def test_a_tensor_that_only_ends_like_one_keeps_its_name() -> None:
    original = [node("c", "Conv", "x,w", "conv1_bn"), node("d", "Conv", "conv1_bn,w", "y")]
    optimised = [
        node("conv1_bn_nchwc", "Conv", "x,w", "t0"),
        node("y_nchwc", "Conv", "t0,w", "t1"),
        node("ReorderOutput", "ReorderOutput", "t1", "y"),
    ]
    assert [c.name for c in covers(original, optimised, {"x"})][:2] == ["c", "d"]
