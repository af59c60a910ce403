"""Networks of nn-Meter's dataset become Graphs, or are refused with the operator."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_predictors.errors import ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends.nnmeter import MOST_OPERATORS, graph_from_nnmeter
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.hash import hash_of


def operator(kind: str, inputs: list[str], made: list[int], **attrs: Any) -> dict[str, Any]:
    attr = {"name": "", "type": kind, "output_shape": [made] if made else [], "attr": attrs}
    return {"inbounds": inputs, "attr": attr, "outbounds": []}


def conv(
    inputs: list[str], shape: list[int], weights: list[int], stride: int = 1, **attrs: Any
) -> dict[str, Any]:
    kind = "DepthwiseConv2dNative" if attrs.pop("depthwise", False) else "Conv2D"
    told = {"padding": "SAME", "strides": [stride, stride], "dilations": [1, 1], **attrs}
    return operator(kind, inputs, shape, weight_shape=weights, **told)


def network() -> dict[str, Any]:
    """A small network in the form of the dataset; its operators are not in order."""
    return {
        "out": operator("Softmax", ["bias"], [1, 10]),
        "in": operator("Placeholder", [], [-1, 9, 9, 3], shape=[-1, 9, 9, 3]),
        "c/weight": operator("Const", [], [3, 3, 3, 8]),
        "c": conv(["in", "c/weight"], [-1, 5, 5, 8], [3, 3, 3, 8], 2),
        "bn": operator("FusedBatchNormV3", ["c", "gamma", "beta"], [-1, 5, 5, 8]),
        "relu": operator("Relu6", ["bn"], [-1, 5, 5, 8]),
        "d": conv(["relu"], [-1, 5, 5, 8], [3, 3, 8, 1], depthwise=True),
        "add": operator("AddV2", ["d", "relu"], [-1, 5, 5, 8]),
        "cat": operator("ConcatV2", ["add", "relu"], [-1, 5, 5, 16], axis=3),
        "pool": operator(
            "MaxPool", ["cat"], [-1, 2, 2, 16], ksize=[3, 3], strides=[2, 2], padding="VALID"
        ),
        "mean": operator("Mean", ["pool"], [-1, 16], reduction_indices=[1, 2]),
        "fc": operator("MatMul", ["mean"], [-1, 10]),
        "bias": operator("BiasAdd", ["fc", "b"], [-1, 10]),
    }


def test_a_network_is_that_of_the_builder() -> None:
    b = GraphBuilder("net")
    x = b.batch_norm(b.conv(b.input((1, 3, 9, 9)), 8, 3, 2, (1, 1, 1, 1)))
    x = b.relu6(x)
    y = b.concat([b.add(b.depthwise(x, 3, 1, (1, 1, 1, 1)), x), x], 1)
    z = b.flatten(b.global_avg_pool(b.max_pool(y, 3, 2)))
    z = b.add(b.matmul(z, b.weight((16, 10))), b.weight((10,)))
    assert hash_of(graph_from_nnmeter("net", network())) == hash_of(b.build([b.softmax(z, 1)]))


def changed(name: str, value: Any) -> dict[str, Any]:
    return {**network(), name: value}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (None, "no operators"),
        ({}, "no operators"),
        ({"a": {"inbounds": []}}, "unreadable"),
        ({"a": 3}, "unreadable"),
        (changed("relu", operator("Split", ["bn"], [])), "relu: a Graph cannot express Split"),
        (changed("in", operator("Relu", ["out"], [])), "cycle"),
        (changed("relu", operator("Relu", ["relu"], [])), "cycle"),
        (changed("c", conv(["in"], [-1, 5, 5, 8], [3, 3, 4, 8], 2)), "do not fit 3 channels"),
        (changed("c", conv(["in"], [-1, 4, 4, 8], [3, 3, 3, 8], 2)), "is computed"),
        (changed("c", conv(["in"], [], [3, 3, 3, 8], 2, padding="EDGE")), "neither SAME nor VALID"),
        (changed("c", conv(["in"], [], [3, 3, 3, 8], 0)), "strides"),
        (changed("c", operator("Conv2D", ["in"], [])), "weight_shape"),
        (changed("in", operator("Placeholder", [], [1, 1 << 40, 9, 3])), "too large"),
        (changed("add", operator("AddV2", ["d"], [])), "constant"),
        (changed("mean", operator("Mean", ["pool"], [], reduction_indices=[3])), "mean over"),
    ],
)
def test_what_cannot_be_read_is_named(told: Any, reason: str) -> None:
    with pytest.raises(ModelFileError, match=reason) as caught:
        graph_from_nnmeter("net", told)
    assert "net" in str(caught.value)
    assert isinstance(caught.value, UnsupportedOpError) == ("express" in reason)


def test_a_giant_network_is_refused() -> None:
    one = operator("Relu", [], [])
    with pytest.raises(ModelFileError, match="are the most"):
        graph_from_nnmeter("net", {str(i): one for i in range(MOST_OPERATORS + 1)})


def test_a_long_chain_needs_no_recursion() -> None:
    told = {"0": operator("Placeholder", [], [1, 1, 1, 1])}
    told |= {str(i): operator("Relu", [str(i - 1)], [1, 1, 1, 1]) for i in range(1, 3000)}
    assert len(graph_from_nnmeter("net", told).nodes) == 2999
