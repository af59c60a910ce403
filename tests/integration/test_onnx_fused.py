"""Ops of onnxruntime's own domain are read as ops of opset 13 that compute the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from latfarm_controller.builders import build
from latfarm_predictors.errors import UnsupportedOpError
from latfarm_predictors.frontends.onnx import read_onnx, read_onnx_weights
from latfarm_predictors.kernels.composites import composites_of
from numpy.typing import NDArray

Array = NDArray[Any]
DRAW = np.random.default_rng(0)
TOKENS, FEATURES = 6, 8


def rows(*shape: int) -> Array:
    return DRAW.standard_normal(shape).astype(np.float32)


class Case:
    """One node of a domain, its inputs, weights and attributes."""

    def __init__(
        self,
        op: str,
        inputs: Mapping[str, Sequence[int]],
        weights: Mapping[str, Array] | None = None,
        domain: str = "com.microsoft",
        order: Sequence[str] = (),
        composite: str = "",
        **attrs: Any,
    ) -> None:
        self.op, self.inputs, self.weights = op, inputs, weights or {}
        self.domain, self.attrs, self.composite = domain, attrs, composite
        self.order = order or (*inputs, *self.weights)

    def write(self, path: Path) -> None:
        helper = onnx.helper
        node = helper.make_node(self.op, self.order, ["y"], domain=self.domain, **self.attrs)
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [node],
            "one",
            [value(name, 1, shape) for name, shape in self.inputs.items()],
            [value("y", 1, None)],
            [onnx.numpy_helper.from_array(w, name) for name, w in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 8
        path.write_bytes(model.SerializeToString())


X = {"x": (1, TOKENS, FEATURES)}
QKV = {name: (1, TOKENS, FEATURES) for name in ("q", "k", "v")}
NORM = {"gamma": rows(FEATURES), "beta": rows(FEATURES), "bias": rows(FEATURES)}
PACKED = {"w": rows(FEATURES, 3 * FEATURES), "b": rows(3 * FEATURES)}
CASES = [
    Case("Gelu", X, composite="Gelu"),
    Case("BiasGelu", X, {"b": rows(FEATURES)}, composite="Gelu"),
    Case("FastGelu", X, composite="Gelu"),
    Case("FastGelu", X, {"b": rows(FEATURES)}, composite="Gelu"),
    Case("QuickGelu", X, alpha=1.702),
    Case("SkipLayerNormalization", X | {"s": (1, TOKENS, FEATURES)}, NORM, composite="LayerNorm"),
    Case(
        "SkipSimplifiedLayerNormalization",
        X | {"s": (1, TOKENS, FEATURES)},
        {"gamma": rows(FEATURES)},
        composite="RMSNorm",
    ),
    Case(
        "SimplifiedLayerNormalization",
        X,
        {"gamma": rows(FEATURES)},
        domain="",
        composite="RMSNorm",
        axis=-1,
    ),
    Case("FusedMatMul", {"a": (2, 3, 4, 5), "b": (2, 3, 6, 5)}, transB=1, alpha=0.25),
    Case("FusedMatMul", {"a": (3, 5, 4), "b": (3, 5, 6)}, transA=1),
    Case("Attention", X, PACKED, composite="Attention", num_heads=2),
    Case("Attention", X, PACKED, composite="Attention", num_heads=2, unidirectional=1),
    Case("MultiHeadAttention", QKV, composite="Attention", num_heads=2),
    Case("MultiHeadAttention", QKV, {"b": rows(3 * FEATURES)}, composite="Attention", num_heads=4),
    Case(
        "MultiHeadAttention",
        QKV | {"bias": (1, 2, TOKENS, TOKENS)},
        order=("q", "k", "v", "", "", "bias"),
        composite="Attention",
        num_heads=2,
        scale=0.3,
    ),
]


def outputs(model: bytes, feed: Sequence[Array]) -> list[Array]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    found: list[Array] = session.run(None, dict(zip(names, feed, strict=True)))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.op)
def test_the_network_that_is_read_computes_the_same(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    case.write(path)
    feed = [rows(*shape) for shape in case.inputs.values()]
    wanted = outputs(path.read_bytes(), feed)[0]
    graph, weights = read_onnx_weights(path)
    made = outputs(build(graph, "onnx", "fp32", dict(weights)), feed)[0]
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-4)
    found = [each.name for each in composites_of(graph)]
    assert found == ([case.composite] if case.composite else [])


def test_a_mask_of_keys_is_read(tmp_path: Path) -> None:
    helper, value = onnx.helper, onnx.helper.make_tensor_value_info
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v", "", "m"], ["y"], domain="com.microsoft", num_heads=2
    )
    inputs = [value(name, 1, shape) for name, shape in QKV.items()]
    inputs.append(value("m", onnx.TensorProto.INT32, (1, TOKENS)))
    graph = helper.make_graph([node], "masked", inputs, [value("y", 1, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets)
    model.ir_version = 8
    path = tmp_path / "masked.onnx"
    path.write_bytes(model.SerializeToString())
    mask = np.array([[1, 1, 1, 1, 0, 0]], np.int32)
    feed = [*(rows(1, TOKENS, FEATURES) for _ in range(3)), mask]
    wanted = outputs(path.read_bytes(), feed)[0]
    made = outputs(build(read_onnx(path), "onnx", "fp32"), feed)[0]
    np.testing.assert_allclose(made, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("MultiHeadAttention", {"q": (1, 6, 2, 3, 4)}, num_heads=2), "packed"),
        (Case("FusedMatMul", {"a": (2, 3), "b": (3, 4)}, transBatchA=1), "batches"),
    ],
)
def test_other_forms_are_refused(case: Case, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    case.write(path)
    with pytest.raises(UnsupportedOpError, match=reason):
        read_onnx(path)
