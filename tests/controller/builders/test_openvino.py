"""OpenVINO reads our ONNX models, and computes what onnxruntime computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.builders import build
from latfarm_predictors.frontends.onnx import read_onnx
from latfarm_predictors.graph.graph import Graph

Run = Callable[[bytes, Graph], list[Any]]

openvino = pytest.importorskip("openvino")

# One network for each kind of construction in the zoo.
NETWORKS = (
    *("alexnet", "mobilenet-v3-small", "shufflenet-v2", "resnet18", "regnety-200mf", "googlenet"),
    *("densenet121", "efficientnet-b0", "nasbench201", "yolov5n", "yolov8n", "retinanet-r34"),
    *("vit-tiny", "mobilevit-xxs", "bert-tiny"),
    *("deit-tiny", "eva02-tiny", "swin-tiny", "convnext-atto", "efficientformer-l1", "t5-tiny"),
    "t5-v1.1-small",
)


def run_openvino(model: bytes, feeds: Mapping[str, Any]) -> list[Any]:
    """Run a model in OpenVINO on one CPU thread in float32; return all outputs."""
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(model), "CPU", settings)
    made = compiled(dict(feeds))
    return [np.asarray(made[port]) for port in compiled.outputs]


def worst(expected: list[Any], found: list[Any]) -> float:
    """Return the largest error of all outputs.

    The error of an output is divided by the largest absolute value that is expected in it.
    """
    return max(
        float(np.abs(e - f).max() / max(np.abs(e).max(), 1e-9))
        for e, f in zip(expected, found, strict=True)
    )


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_onnxruntime(
    name: str,
    small_network: Callable[[str], Graph],
    feeds: Callable[[Graph], Mapping[str, Any]],
    run_onnx: Run,
) -> None:
    graph = small_network(name)
    model = build(graph, "onnx", "fp32")
    assert worst(run_onnx(model, graph), run_openvino(model, feeds(graph))) < 1e-3


@pytest.mark.parametrize("name", ["shufflenet", "squeezenet"])
def test_real_networks_agree_with_onnxruntime(
    name: str,
    light_models: dict[str, Path],
    feeds: Callable[[Graph], Mapping[str, Any]],
    run_onnx: Run,
) -> None:
    graph = read_onnx(light_models[name])
    model = build(graph, "onnx", "fp32")
    assert worst(run_onnx(model, graph), run_openvino(model, feeds(graph))) < 1e-3
