"""The activations that are estimated without a run are near those of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from latfarm_controller.builders import profiles
from latfarm_controller.builders.activations.ranges import profiles_of
from latfarm_controller.builders.noise import Weights, inputs
from latfarm_controller.builders.onnx.build import build_onnx
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph


def activations(graph: Graph) -> dict[str, Any]:
    """Run a graph with the weights that its `Weights` give; return all float32 activations."""
    noise = Weights(graph)
    own = {t: noise.array(t) for t, weight in graph.weights.items() if weight.values is None}
    names = [t for n in graph.nodes for t in n.outputs if graph.type_of(t).dtype == "float32"]
    model = build_onnx(replace(graph, outputs=tuple(names)), weights=own)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return dict(zip(names, session.run(None, inputs(graph)), strict=True))


def moments(profile: profiles.ValueProfile) -> tuple[float, float]:
    """Return the mean and the standard deviation of all values of a tensor."""
    mean = profile.mean
    return float(mean.mean()), float((profile.variance.mean() + mean.var()) ** 0.5)


@pytest.mark.parametrize(
    "name", ["mobilenet-v2", "resnet18", "repvgg-a0", "efficientnet-b0", "googlenet", "vit-tiny"]
)
def test_deviations_are_near_those_of_a_run(
    name: str, small_network: Callable[[str], Graph]
) -> None:
    graph = small_network(name)
    found = profiles_of(graph, Weights(graph).array)
    ratios = [
        moments(found[tensor])[1] / float(data.std())
        for tensor, data in activations(graph).items()
        if data.size > 1000 and data.std() > 1e-3
    ]
    assert len(ratios) > 20
    assert 0.85 < float(np.median(ratios)) < 1.2
    assert np.percentile(ratios, 5) > 0.6
    assert np.percentile(ratios, 95) < 1.7


def test_every_op_has_a_profile_of_its_rank(small_graph: Graph) -> None:
    found = profiles_of(small_graph, Weights(small_graph).array)
    for tensor, data in activations(small_graph).items():
        profile = found[tensor]
        assert len(profile.shape) == data.ndim
        assert all(p in (1, n) for p, n in zip(profile.shape, data.shape, strict=True))
        assert np.isfinite(profile.points).all()
        low, high = profiles.span(profile)
        assert low <= 0 <= high
        assert np.abs(data).max() < 3 * max(-low, high) + 1e-3
        if data.size > 100:
            mean, deviation = moments(profile)
            assert mean == pytest.approx(float(data.mean()), abs=0.4 * float(np.abs(data).max()))
            assert 0.3 * data.std() - 0.05 < deviation < 3 * data.std() + 0.05


def test_a_function_of_the_same_tensor_is_exact() -> None:
    """A swish is never below -0.28, while a product of two independent tensors can be."""
    b = GraphBuilder("swish")
    x = b.input((1, 4, 8, 8))
    graph = b.build([b.mul(x, b.sigmoid(x)), b.mul(x, b.sigmoid(b.input((1, 4, 8, 8))))])
    same, strange = (profiles_of(graph, Weights(graph).array)[t] for t in graph.outputs)
    assert float(same.points.min()) == pytest.approx(-0.278, abs=0.01)
    assert float(strange.points.min()) < -1


def test_reshapes_keep_channels_apart() -> None:
    channels = np.arange(6.0).reshape(1, 6, 1, 1)
    profile = profiles.normal(channels, np.zeros((1, 6, 1, 1)))
    split = profiles.regrouped(profile, (1, 6, 5, 7), (1, 2, 3, 5, 7))
    assert split.shape == (1, 2, 3, 1, 1)
    assert np.allclose(split.mean.reshape(-1), np.arange(6))
    flat = profiles.regrouped(profile, (1, 6, 5, 7), (1, 210))
    assert np.allclose(flat.mean.reshape(-1), np.repeat(np.arange(6), 35))


def test_the_largest_of_several_is_larger() -> None:
    one = profiles.normal(np.zeros((1, 1)), np.ones((1, 1)))
    found = profiles.largest(one, 9)
    drawn = np.random.default_rng(0).standard_normal((100_000, 9)).max(1)
    assert float(found.mean[0, 0]) == pytest.approx(float(drawn.mean()), abs=0.03)
    assert float(found.variance[0, 0]) == pytest.approx(float(drawn.var()), abs=0.05)


def test_a_span_weighs_clipping_against_coarseness() -> None:
    normal = profiles.normal(np.zeros((1, 1)), np.ones((1, 1)))
    low, high = profiles.span(normal)
    assert low == pytest.approx(-high, rel=0.05)
    assert 3.5 < high < 4.5
    rare = profiles.normal(np.zeros((1, 1000)), np.r_[np.ones(999), 400.0][None])
    assert profiles.span(rare)[1] < 80
    bounded = normal.map(lambda x: np.clip(x, 0, 1))
    assert profiles.span(bounded) == (0.0, 1.0)
