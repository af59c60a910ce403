"""The benchmark of padding judges by the mean of two passes that are spread over its run."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules

from benchmarks import padding
from benchmarks.unseen import judging_passes


def network(channels: int) -> Graph:
    b = GraphBuilder(f"net{channels}")
    return b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), channels, 3))])


ONE, TWO = network(4), network(5)


class Recorded:
    """Notes which campaigns are started, and answers each of them at once."""

    def __init__(self) -> None:
        self.started: list[tuple[str, dict[str, Any]]] = []

    def start(self, kind: str, _platform: str, config: dict[str, Any], _name: str) -> Any:
        self.started.append((kind, config))
        return SimpleNamespace(campaign_id=str(len(self.started) - 1))

    def outcome(self, campaign_id: str) -> dict[str, Any]:
        kind, config = self.started[int(campaign_id)]
        if kind == "networks":
            number = config.get("earlier_passes", 0)
            took = {hash_of(ONE): (1.0, 3.0)[number]}
            if number == 0:  # the second pass of the other network fails
                took[hash_of(TWO)] = 5.0
            rows = [{"hash": key, "latency_ms": ms} for key, ms in took.items()]
            return {"networks": rows, "failed": {}}
        survey = {"call_overhead_ms": 0.0, "rejected": {}, "padding_only_models": 0, "board_ms": {}}
        return {"rules": FusionRules.none().to_json(), "black_box": None, **survey}


def test_networks_are_judged_by_the_mean_of_passes_before_and_after_the_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Recorded()

    def follow(_client: Any, campaign_id: str) -> Any:
        return SimpleNamespace(outcome=client.outcome(campaign_id), measurements=1)

    answer = SimpleNamespace(latency_ms=2.2)
    single = SimpleNamespace(predict=lambda _graph: answer, transfer_ms_per_mb=0.0)
    sampler = SimpleNamespace(next_batch=lambda _samples: [])
    monkeypatch.setattr(padding, "follow", follow)
    monkeypatch.setattr(judging_passes, "follow", follow)
    monkeypatch.setattr(padding, "networks", lambda *_: [ONE, TWO])
    monkeypatch.setattr(padding, "PriorSampler", lambda _task: sampler)
    monkeypatch.setattr(padding, "predictors", lambda *_: {"single": single})
    options = Namespace(seed=0, kernels=2, per_family=0, most_repeats=1)
    found = padding.measure(cast(ControllerClient, client), "p", options, 1.0)
    assert [kind for kind, _ in client.started] == ["fusion", "networks", "padding", "networks"]
    assert len({config["seed"] for kind, config in client.started if kind == "networks"}) == 2
    assert set(found["networks"]) == {padding.label_of(ONE)}
    row = found["networks"][padding.label_of(ONE)]
    assert row["measured_ms"] == 2.0
    assert row["standard_error_ms"] == 1.0
    assert row["single_percent"] == 10.0
    assert found["not_measured"] == [padding.label_of(TWO)]
