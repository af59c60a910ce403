"""Networks that are profiled for the times of their kernels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.profiles.context import ContextCampaign
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.training.training_set import collect
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.measurement import Outcome
from latfarm_predictors.samples import prepare

PLATFORM = "sim-board"
RULES = FusionRules(
    pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"},
    multi_inbound=0,
)
CONFIG: dict[str, Any] = {
    "budget": 20,
    "calibration": 6,
    "context": 5,
    "fusion": {"pairs": [["conv", "relu"], ["conv", "bn"]], "sizes": ["small"]},
    "most_macs": 3e8,
    "insight": "profile",
}
MACS = (6e7, 3e8)


def campaign(**changes: Any) -> ContextCampaign:
    return ContextCampaign(PLATFORM, **{"count": 6, "seed": 0, "macs": MACS, **changes})


def profiling(**changes: Any) -> SimulatedPlatform:
    return SimulatedPlatform(rules=RULES, profiles=True, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = DuckDBStore(tmp_path / "latfarm.duckdb")
    yield opened
    opened.close()


def test_each_network_is_profiled_once_and_lies_within_bounds() -> None:
    drawn = campaign()
    requests = drive(drawn, profiling().measure)
    assert len({hash_of(r.graph) for r in requests}) == len(requests) == 6
    assert all(r.profile and r.purpose == "context" for r in requests)
    assert all(MACS[0] <= graph_totals(r.graph).macs <= MACS[1] for r in requests)
    assert drawn.outcome() == {"networks": 6, "failed": {}}
    again = drive(campaign(), profiling().measure)
    assert [r.request_id for r in again] == [r.request_id for r in requests]
    other = drive(campaign(seed=1), profiling().measure)
    assert not {hash_of(r.graph) for r in other} & {hash_of(r.graph) for r in requests}


@pytest.mark.slow
def test_excluded_networks_and_lineages_are_not_measured() -> None:
    first = drive(campaign(), profiling().measure)[0].graph
    assert hash_of(first) not in {
        hash_of(r.graph) for r in drive(campaign(exclude=[hash_of(first)]), profiling().measure)
    }
    family = next(f for f in zoo.families().values() if first.name.startswith(f.name))
    line = sorted(family.lineage)
    for request in drive(campaign(exclude_lineages=line), profiling().measure):
        assert not any(request.graph.name.startswith(name) for name in line)


def test_failures_and_empty_profiles_are_reported() -> None:
    broken: list[str] = []

    def fail(request: MeasurementRequest) -> Outcome | None:
        broken.append(request.graph.name)
        return Outcome.MODEL_ERROR if len(broken) == 1 else None

    drawn = campaign()
    asked = drive(drawn, profiling(failures=fail).measure)
    assert list(drawn.outcome()["failed"]) == broken[:1]
    assert drawn.outcome()["networks"] == 6, "another network replaced it"
    assert len({hash_of(request.graph) for request in asked}) == len(asked) == 7
    silent = campaign()
    assert len(drive(silent, SimulatedPlatform(rules=RULES).measure)) == 6, (
        "another network would show no layer either"
    )
    assert silent.outcome()["networks"] == 0
    assert set(silent.outcome()["failed"].values()) == {"the profile shows no layer"}


@pytest.mark.slow
def test_a_characterisation_learns_from_profiled_but_not_from_held_out_networks(
    store: Store,
) -> None:
    board = profiling()
    plain = make_campaign("characterize", PLATFORM, {**CONFIG, "context": 0})
    assert not any(r.purpose == "context" for r in drive(plain, board.measure))
    assert "context" not in plain.outcome()
    open_ = make_campaign("characterize", PLATFORM, CONFIG)
    seen = [r.graph for r in drive(open_, board.measure) if r.purpose == "context"]
    held_out = seen[0]
    config = {**CONFIG, "held_out": [held_out.to_json()]}
    whole = make_campaign("characterize", PLATFORM, config)
    requests = drive(whole, board.measure)
    assert "context" in whole.progress().stages
    asked = [r.graph for r in requests if r.purpose == "context"]
    assert hash_of(held_out) not in {hash_of(graph) for graph in asked}
    assert whole.outcome()["context"]["networks"] == len(asked) == 5
    json.dumps(whole.outcome(), allow_nan=False)

    store.add_measurements("c1", [(board.answered[r.request_id], r.graph) for r in requests])
    record = CampaignRecord("c1", "c1", "characterize", PLATFORM, config, state="done")
    store.put_campaign(replace(record, outcome=whole.outcome()))
    data = collect(store, PLATFORM, "c1")
    # The profiled networks are not used for calibration; six other networks are.
    assert {hash_of(s.graph) for s in data.networks}.isdisjoint(hash_of(graph) for graph in asked)
    inside = [s for s in data.kernels if s.network in {hash_of(graph) for graph in asked}]
    rules = FusionRules.from_json(whole.outcome()["rules"])
    barred = Excluded.of([held_out], rules)
    assert inside
    assert not any(sample.kernel in barred for sample in data.kernels)
    wanted = {k.kernel_id for graph in asked for k in split(graph, rules) if k not in barred}
    assert {s.kernel.kernel_id for s in inside} == wanted
    training = prepare(data.kernels, data.call_overhead_ms)
    assert int(np.count_nonzero(training.in_network)) >= len(wanted)


def test_the_call_is_no_time_of_kernels_inside_networks(store: Store) -> None:
    """Predictions add the call to the sum of kernels, so that it must not be in it already."""
    board = profiling(noise=0.0, overhead_ms=0.5)
    graphs = [zoo.build("squeezenet", resolution=side) for side in (64, 96)]
    requests = [MeasurementRequest(g, PLATFORM, "context", profile=True) for g in graphs]
    store.add_measurements("c1", [(board.measure(r), r.graph) for r in requests])
    outcome = {
        "rules": RULES.to_json(),
        "call_overhead_ms": 0.5,
        "insight": {"asked": "auto", "chosen": "profile"},
    }
    record = CampaignRecord("c1", "c1", "characterize", PLATFORM, state="done", outcome=outcome)
    store.put_campaign(record)
    data = collect(store, PLATFORM, "c1")
    assert len(data.places) == 2
    for samples in data.places:
        (graph,) = {s.network for s in samples}
        latency_ms = next(board.exact_ms(g) for g in graphs if hash_of(g) == graph)
        total_ms = sum(sample.latency_ms for sample in samples)
        assert total_ms + data.call_overhead_ms == pytest.approx(latency_ms, rel=1e-6)
