"""Reading ONNX files without the onnx package, and which nodes optimised kernels cover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_agent.runtimes.onnx.covers import Cover, covers
from latfarm_agent.runtimes.onnx.wire import WireNode, read_nodes, read_opset


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


@pytest.mark.parametrize(
    ("sigmoid", "activation"), [("HardSigmoid", "HardSwish"), ("Sigmoid", "Silu")]
)
def test_an_activation_in_two_ops_belongs_to_the_kernel_that_took_it_in(
    sigmoid: str, activation: str
) -> None:
    original = [
        node("conv0", "Conv", "x,w0", "c0"),
        node("gate0", sigmoid, "c0", "g0"),
        node("mul0", "Mul", "c0,g0", "m0"),
        node("conv1", "Conv", "m0,w1", "c1"),
        node("relu1", "Relu", "c1", "y"),
    ]
    optimised = [
        node("ReorderInput", "ReorderInput", "x", "t0"),
        node("c0_nchwc", "Conv", "t0,v0", "t1", activation),
        node("c1_nchwc", "Conv", "t1,v1", "t2", "Relu"),
        node("ReorderOutput", "ReorderOutput", "t2", "y"),
    ]
    assert covers(original, optimised, {"x"}) == [
        Cover("ReorderInput", "ReorderInput"),
        Cover("conv0+gate0+mul0", f"Conv+{sigmoid}+Mul"),
        Cover("conv1+relu1", "Conv+Relu"),
        Cover("ReorderOutput", "ReorderOutput"),
    ]


def test_what_channels_last_kernels_cover() -> None:
    """The optimised graph is one that onnxruntime 1.31 runs on aarch64."""
    optimised = [
        node("Transpose", "Transpose", "x", "Transpose_out0"),
        node("conv0_token_1", "NhwcFusedConv", "Transpose_out0,fold_w0,b", "conv0", "Relu"),
        node("conv1_token_4", "NhwcFusedConv", "conv0,w1", "conv1"),
        node("add1", "Add", "conv1,conv0", "add1"),
        node("Transpose_token_6", "Transpose", "add1", "a1"),
        node("relu1", "Relu", "a1", "r1"),
        node("", "Sigmoid", "r1", "y"),
    ]
    assert [(cover.name, cover.op) for cover in covers(ORIGINAL, optimised, {"x"})] == [
        ("Transpose", "Reorder"),
        ("conv0+bn0+relu0", "Conv+BatchNormalization+Relu"),
        ("conv1", "Conv"),
        ("add1", "Add"),
        ("Transpose_token_6", "Reorder"),
        ("relu1", "Relu"),
        ("y", "Sigmoid"),
    ]


def test_what_is_folded_into_channels_last_kernels() -> None:
    original = [
        node("conv0", "Conv", "x,w0", "c0"),
        node("bn0", "BatchNormalization", "c0,s", "b0"),
        node("", "Conv", "b0,w1", "c1"),  # without a name, and without a node to fuse behind it
        node("conv2", "Conv", "c1,w2", "c2"),
        node("sum2", "Add", "c2,b0", "a2"),  # adds two branches, so no weight can include it
    ]
    optimised = [
        node("Transpose", "Transpose", "x", "t"),
        node("conv0_token_1", "NhwcFusedConv", "t,ConvBnFusion_W_w0,b", "conv0"),
        node("_token_9", "NhwcFusedConv", "conv0,w1", "_token_8"),
        node("conv2_token_2", "NhwcFusedConv", "_token_8,w2", "conv2"),
        node("Transpose_token_1", "Transpose", "conv2", "c2"),
        node("Transpose_token_2", "Transpose", "conv0", "b0"),
        node("sum2", "Add", "c2,b0", "a2"),
    ]
    kept = [cover.name for cover in covers(original, optimised, {"x"}) if cover.op != "Reorder"]
    assert kept == ["conv0+bn0", "c1", "conv2", "sum2"]


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


def qdq(tensor: str, real: str = "") -> list[WireNode]:
    """Return the two conversions of a tensor: `tensor`_q holds integers, `tensor` their values."""
    parts = f"{tensor}_s,{tensor}_z"
    return [
        node(
            f"{tensor}_q/Q", "QuantizeLinear", f"{real or tensor + '_real'},{parts}", f"{tensor}_q"
        ),
        node(f"{tensor}/DQ", "DequantizeLinear", f"{tensor}_q,{parts}", tensor),
    ]


INTEGERS = [
    *qdq("x", "input"),
    node("w/DQ", "DequantizeLinear", "w_q,w_s,w_z", "w"),
    node("conv0", "Conv", "x,w", "c0_inner"),
    node("relu0", "Relu", "c0_inner", "r0_real"),
    *qdq("r0"),
    node("conv1", "Conv", "r0,w", "c1_real"),
    *qdq("c1"),
    node("conv2", "Conv", "r0,w", "c2_real"),
    *qdq("c2"),
    node("add", "Add", "c1,c2", "a_inner"),
    node("relu1", "Relu", "a_inner", "a_real"),
    *qdq("a"),
    node("sigmoid", "HardSigmoid", "a", "y"),
]


def test_what_integer_kernels_cover_in_channels_last_layout() -> None:
    optimised = [
        node("x_q/Q", "QuantizeLinear", "input,x_s,x_z", "x_q"),
        node("Transpose", "Transpose", "x_q", "Transpose_out0"),
        node(
            "conv0_token_1", "QLinearConv", "Transpose_out0,x_s,x_z,w_q,w_s,w_z,r0_s,r0_z", "conv0"
        ),
        node("conv2_token_9", "QLinearConv", "conv0,r0_s,r0_z,w_q,w_s,w_z,c2_s,c2_z", "conv2"),
        node("conv1_token_5", "QLinearConv", "conv0,r0_s,r0_z,w_q,w_s,w_z,c1_s,c1_z", "conv1"),
        node("add", "QLinearAdd", "conv1,c1_s,c1_z,conv2,c2_s,c2_z,a_s,a_z", "add_token_12"),
        node("Transpose_token_7", "Transpose", "add_token_12", "a_q"),
        node("a/DQ", "DequantizeLinear", "a_q,a_s,a_z", "a"),
        node("sigmoid", "HardSigmoid", "a", "y"),
    ]
    assert covers(INTEGERS, optimised, {"input"}) == [
        Cover("x_q/Q", "QuantizeLinear"),
        Cover("Transpose", "Reorder"),
        Cover("conv0+relu0", "QLinearConv+Relu"),
        Cover("conv2", "QLinearConv"),
        Cover("conv1", "QLinearConv"),
        Cover("add+relu1", "QLinearAdd+Relu"),
        Cover("Transpose_token_7", "Reorder"),
        Cover("a/DQ", "DequantizeLinear"),
        Cover("sigmoid", "HardSigmoid"),
    ]


def test_float_kernels_between_conversions_stay_float_kernels() -> None:
    """A DequantizeLinear that the optimiser copied runs twice; no kernel includes it."""
    original = [
        *qdq("x", "input"),
        node("sigmoid", "HardSigmoid", "x", "s"),
        node("mul", "Mul", "x,s", "m_real"),
        *qdq("m"),
    ]
    optimised = [
        node("x_q/Q", "QuantizeLinear", "input,x_s,x_z", "x_q"),
        node("x/DQ/duplicated", "DequantizeLinear", "x_q,x_s,x_z", "x/DQ/duplicated"),
        node("x/DQ", "DequantizeLinear", "x_q,x_s,x_z", "x/DQ"),
        node("sigmoid", "HardSigmoid", "x/DQ", "sigmoid_token_2"),
        node("mul", "Mul", "x/DQ/duplicated,sigmoid_token_2", "mul_token_3"),
        node("m_q/Q", "QuantizeLinear", "mul_token_3,m_s,m_z", "m_q/Q"),
        node("m/DQ", "DequantizeLinear", "m_q/Q,m_s,m_z", "m"),
    ]
    assert [(c.name, c.op) for c in covers(original, optimised, {"input"})] == [
        ("x_q/Q", "QuantizeLinear"),
        ("x/DQ/duplicated", "DequantizeLinear"),
        ("x/DQ", "DequantizeLinear"),
        ("sigmoid", "HardSigmoid"),
        ("mul", "Mul"),
        ("m_q/Q", "QuantizeLinear"),
        ("m/DQ", "DequantizeLinear"),
    ]


def test_all_results_of_an_integer_split_are_its_own() -> None:
    original = [
        *qdq("x", "input"),
        node("split", "Split", "x,sizes", "a_real,b_real"),
        *qdq("a"),
        *qdq("b"),
        node("conv", "Conv", "b,w", "y"),
    ]
    optimised = [
        node("x_q/Q", "QuantizeLinear", "input,x_s,x_z", "x_q"),
        node("split", "Split", "x_q,sizes", "a_q,b_q"),
        node("b/DQ", "DequantizeLinear", "b_q,b_s,b_z", "b"),
        node("conv", "Conv", "b,w", "y"),
    ]
    assert [c.name for c in covers(original, optimised, {"input"})] == [
        "x_q/Q",
        "split",
        "b/DQ",
        "conv",
    ]


def test_a_fusion_inside_a_blocked_section_is_named_after_its_last_node() -> None:
    original = [
        node("conv0", "Conv", "x,w0", "c0"),
        node("sig", "Sigmoid", "c0", "s0"),
        node("mul", "Mul", "c0,s0", "m0"),
        node("conv1", "Conv", "m0,w1", "y"),
    ]
    optimised = [
        node("c0_nchwc", "Conv", "x,w0", "t0"),
        node("mul/QuickGeluFusion/", "QuickGelu", "t0", "t1"),
        node("y_nchwc", "Conv", "t1,w1", "t2"),
        node("ReorderOutput", "ReorderOutput", "t2", "y"),
    ]
    assert [c.name for c in covers(original, optimised, {"x"})] == [
        "conv0",
        "sig+mul",
        "conv1",
        "ReorderOutput",
    ]


def test_the_opset_of_a_file(tmp_path: Path, onnx_file: Callable[..., Path]) -> None:
    assert read_opset(onnx_file(tmp_path / "m.onnx")) == 13
    assert read_opset(onnx_file(tmp_path / "m.onnx", "future")) == 9999
