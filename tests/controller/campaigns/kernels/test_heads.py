"""Heads of networks: what is cut out, what is drawn, and when they are measured at all."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.characterize import CharacterizeOptions
from latfarm_controller.campaigns.kernels import heads as module
from latfarm_controller.campaigns.kernels.heads import MOST_KERNELS, STEPS, HeadsCampaign, head_of
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.profiles.profiled_draw import PURPOSE
from latfarm_controller.campaigns.testing import SimulatedPlatform, drive
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Measurement

RULES = FusionRules(pairs={("Conv", "Relu"): "fused", ("Conv", "BatchNormalization"): "fused"})


def network(convolutions: int, size: int = 64) -> Graph:
    b = GraphBuilder("network")
    x = b.input((1, 3, size, size))
    for index in range(convolutions):
        x = b.relu(b.conv(x, 8 + index, 3, 2 if index == 0 else 1))
    return b.build([x])


def test_a_head_is_the_first_kernels_and_a_pad() -> None:
    graph = network(8)
    found = head_of(graph, RULES)
    assert found is not None
    kernels = split(found, RULES)
    assert [kernel.type for kernel in kernels] == ["Conv+Relu"] * (STEPS + 2)
    assert [hash_of(k.graph) for k in kernels[:-1]] == [
        hash_of(k.graph) for k in split(graph, RULES)[: STEPS + 1]
    ]
    assert found.type_of(found.inputs[0]).shape == (1, 3, 64, 64)
    assert [found.type_of(tensor).shape[1] for tensor in found.outputs] == [1]


def test_a_head_keeps_its_branches() -> None:
    b = GraphBuilder("branches")
    x = b.relu(b.conv(b.input((1, 3, 64, 64)), 16, 7, 2))
    joined = b.concat([b.relu(b.conv(x, 8, 1)), b.relu(b.conv(x, 12, 3))])
    found = head_of(b.build([b.relu(b.conv(joined, 8, 1))]), RULES)
    assert found is not None
    assert "Concat" in {node.op for node in found.nodes}


def test_what_has_no_head() -> None:
    b = GraphBuilder("features")
    assert head_of(b.build([b.fc(b.input((1, 64)), 8)]), RULES) is None
    assert head_of(network(8, size=16), RULES) is None, "too small for an image"
    b = GraphBuilder("wide")
    x = b.input((1, 3, 64, 64))
    assert head_of(b.build([b.conv(x, 4, 3) for _ in range(MOST_KERNELS + 1)]), RULES) is None


def test_a_head_that_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert head_of(network(4), RULES) is not None
    monkeypatch.setattr(module, "MOST_MACS", 1000)
    assert head_of(network(4), RULES) is None


def test_heads_are_different_and_the_seed_decides() -> None:
    def drawn(seed: int) -> list[Graph]:
        return list(islice(HeadsCampaign("p", 12, RULES, seed=seed).draw(), 12))

    heads = drawn(1)
    assert len({hash_of(head) for head in heads}) == 12
    assert [hash_of(head) for head in heads] == [hash_of(head) for head in drawn(1)]
    assert {hash_of(head) for head in heads}.isdisjoint(hash_of(head) for head in drawn(2))
    windows = {
        node.attrs["kernel_shape"] for head in heads for node in head.nodes[:1] if node.op == "Conv"
    }
    assert len(windows) >= 3


CONFIG: dict[str, Any] = {
    "rules": RULES.to_json(),
    "budget": 30,
    "calibration": 6,
    "context": 0,
    "heads": 5,
    "most_macs": 3e8,
    "kernel_passes": 1,
    "network_passes": 1,
}


@pytest.mark.parametrize("alone", [1.0, 3.0])
def test_heads_are_measured_where_kernels_alone_are_another_thing(alone: float) -> None:
    """On a board on which a kernel's own model takes `alone` times as long as it should."""
    board = SimulatedPlatform(rules=RULES, profiles=True)

    def measure(request: MeasurementRequest) -> Measurement:
        found = board.measure(request)
        if len(found.layers) != 1 or found.latency_ms is None:
            return found
        (layer,) = found.layers
        slower = replace(layer, latency_ms=alone * layer.latency_ms)
        more_ms = slower.latency_ms - layer.latency_ms
        return replace(found, latency_ms=found.latency_ms + more_ms, layers=(slower,))

    campaign = make_campaign("characterize", "p", CONFIG)
    asked = [r for r in drive(campaign, measure) if r.purpose == PURPOSE]
    outcome = campaign.outcome()
    assert outcome["within_pads"]["used"] is (alone > 1.0)
    if alone == 1.0:
        assert not asked
        assert "heads" not in outcome
    else:
        assert all(request.profile for request in asked)
        assert outcome["heads"] == {"networks": 5, "failed": {}}
        assert len(asked) == 5
        assert "heads" in campaign.progress().stages


@pytest.mark.parametrize(
    ("config", "networks", "heads"),
    [
        ({"budget": 500}, 60, 400),
        ({"budget": 70}, 10, 70),
        ({"budget": 500, "heads": 3}, 60, 3),
        ({"budget": 500, "context": 0}, 0, 400),
    ],
)
def test_a_head_is_profiled_for_each_kernel_unless_told_otherwise(
    config: dict[str, Any], networks: int, heads: int
) -> None:
    options = CharacterizeOptions.model_validate(config)
    assert (options.profiled_networks, options.profiled_heads) == (networks, heads)
