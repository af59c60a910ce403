"""Characterisation end to end on a simulated platform, and what is trained from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import Campaign, MeasurementRequest
from latfarm_controller.campaigns.kinds import KINDS, make_campaign
from latfarm_controller.campaigns.sampling.base import Excluded
from latfarm_controller.campaigns.sampling.by_name import kernel_families
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.training.training import train
from latfarm_controller.training.training_set import collect
from latfarm_controller.zoo.family import Family
from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome

PLATFORM = "sim-board"
RULES = FusionRules(
    pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"},
    multi_inbound=0,
)
CONFIG: dict[str, Any] = {
    "budget": 30,
    "calibration": 6,
    "exclude_lineages": ["squeezenet"],
    "held_out": [],
    "fusion": {"pairs": [["conv", "relu"], ["conv", "bn"], ["relu", "conv"]], "sizes": ["small"]},
    "most_macs": 3e8,
    "insight": "single",  # pads have tests of their own, in test_insight_choice.py
}


def board(**changes: Any) -> SimulatedPlatform:
    return SimulatedPlatform(rules=RULES, noise=0.01, **changes)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = DuckDBStore(tmp_path / "latfarm.duckdb")
    yield opened
    opened.close()


def run(campaign: Campaign, platform: SimulatedPlatform) -> list[MeasurementRequest]:
    return drive(campaign, platform.measure)


def keep(
    store: Store,
    campaign: Campaign,
    requests: list[MeasurementRequest],
    platform: SimulatedPlatform,
    campaign_id: str,
) -> None:
    rows = [(platform.answered[r.request_id], r.graph) for r in requests]
    store.add_measurements(campaign_id, rows)
    store.put_campaign(
        CampaignRecord(
            campaign_id,
            campaign_id,
            campaign.kind,
            PLATFORM,
            state="done",
            outcome=campaign.outcome(),
        )
    )


@pytest.mark.slow
def test_given_rules_are_not_detected_and_cut_the_kernels() -> None:
    given = RULES.replace_pairs({("Conv", "Relu"): "separate"})
    config = {**CONFIG, "rules": given.to_json(), "board_minutes": 60.0, "sampler": "latfarm"}
    campaign = make_campaign("characterize", PLATFORM, config)
    requests = run(campaign, board())
    outcome = campaign.outcome()
    assert outcome["rules"] == {**given.to_json(), "platform": PLATFORM}
    assert outcome["fusion"]["pairs"] == []
    assert outcome["call_overhead_ms"] > 0
    assert outcome["kernels_measured"] == 30
    types = set(outcome["kernels"]["types"])
    assert "Conv+BatchNormalization" in types
    assert not any(name.endswith("+Relu") for name in types)
    detected = make_campaign("characterize", PLATFORM, CONFIG)
    assert len(requests) < len(run(detected, board()))


def test_invalid_rules_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(UsageError, match="rules"):
        make_campaign("characterize", PLATFORM, {**CONFIG, "rules": {"pairs": {}}})


def test_all_stages_run_without_held_out_kernels() -> None:
    held_out = zoo.build("squeezenet", resolution=128)
    platform = board()
    campaign = make_campaign("characterize", PLATFORM, {**CONFIG, "held_out": [held_out.to_json()]})
    stages: list[str] = []

    def measure(request: MeasurementRequest) -> Measurement:
        progress = campaign.progress()
        assert progress.done <= progress.total
        assert progress.stages == ("overhead", "fusion", "kernels", "networks")
        if not stages or stages[-1] != progress.stage:
            stages.append(progress.stage)
        return platform.measure(request)

    requests = drive(campaign, measure)
    assert stages == ["overhead", "fusion", "kernels", "networks"]
    outcome = campaign.outcome()
    json.dumps(outcome, allow_nan=False)
    rules = FusionRules.from_json(outcome["rules"])
    assert rules.fuses("Conv", "Relu")
    assert rules.fuses("Conv", "BatchNormalization")
    assert not rules.fuses("Relu", "Conv")
    assert outcome["call_overhead_ms"] == pytest.approx(0.01, rel=0.1)
    assert outcome["kernels_measured"] == 30
    assert outcome["networks_measured"] == 6
    excluded = Excluded.of([held_out], rules)
    measured = {hash_of(r.graph) for r in requests if r.purpose == "kernel"}
    assert not measured & excluded.ids
    assert not any("squeezenet" in r.graph.name for r in requests if r.purpose == "network")


@pytest.mark.parametrize("sampler", ["latfarm", "nn-meter"])
def test_lineages_are_left_out_of_all_draws(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lineages = {"resnet", "mobilenet", "inception"}
    built: set[str] = set()
    plain = Family.build

    def build(self: Family, **arguments: Any) -> Graph:
        built.add(self.name)
        return plain(self, **arguments)

    monkeypatch.setattr(Family, "build", build)
    config = CONFIG | {
        "rules": RULES.to_json(),
        "sampler": sampler,
        "exclude_lineages": sorted(lineages),
        "exclude_kernel_lineages": sorted(lineages),
    }
    campaign = make_campaign("characterize", PLATFORM, config)
    run(campaign, board())
    assert campaign.outcome()["kernels_measured"] == 30
    related = {name for name in built if zoo.families()[name].lineage & lineages}
    assert built
    assert not related


def test_without_such_lineages_stored_campaigns_draw_what_they_drew() -> None:
    assert kernel_families("latfarm", []) == []
    assert kernel_families("random", ["resnet"]) == []
    assert "resnet18" not in kernel_families("prior", ["resnet"])
    assert "mobilenet-v2" in kernel_families("prior", ["resnet"])
    with pytest.raises(UsageError, match="no family is left"):
        kernel_families("prior", {line for f in zoo.families().values() for line in f.lineage})


@pytest.mark.slow
def test_a_crash_in_any_stage_repeats_nothing() -> None:
    platform = board()
    whole = make_campaign("characterize", PLATFORM, CONFIG)
    asked = [r.request_id for r in run(whole, platform)]
    for stop in (20, len(asked) - 9):
        crashed = board()
        first = drive(
            make_campaign("characterize", PLATFORM, CONFIG), crashed.measure, stop_after=stop
        )
        resumed = make_campaign("characterize", PLATFORM, CONFIG)
        second = drive(resumed, crashed.measure, known=dict(crashed.answered))
        assert [r.request_id for r in (*first, *second)] == asked
        assert resumed.outcome() == whole.outcome()


@pytest.mark.slow
def test_the_order_of_answers_does_not_matter() -> None:
    platform = board(boards=("a", "b", "c"))
    straight = make_campaign("characterize", PLATFORM, CONFIG)
    run(straight, platform)
    other = make_campaign("characterize", PLATFORM, CONFIG)
    drive(other, platform.measure, shuffle=Random(5), ask=7)
    assert other.outcome() == straight.outcome()


@pytest.mark.slow
def test_training_makes_a_bundle_that_predicts(store: Store, tmp_path: Path) -> None:
    platform = board()
    campaign = make_campaign("characterize", PLATFORM, {**CONFIG, "budget": 60, "calibration": 9})
    keep(store, campaign, run(campaign, platform), platform, "c1")
    # The networks that judge the predictor are from another campaign and must not teach it.
    judge = make_campaign(
        "networks", PLATFORM, {"graphs": [zoo.build("squeezenet", resolution=128).to_json()]}
    )
    keep(store, judge, run(judge, platform), platform, "judge")
    steps: list[str] = []
    path = tmp_path / "bundles" / PLATFORM / "0001.zip"
    predictor = train(store, PLATFORM, "c1", path, on_progress=lambda s, *_: steps.append(s))
    assert steps
    said = read_provenance(path)
    assert said["campaign"] == "c1"
    assert said["kernels"] == 60
    assert said["kernel_measurements"] >= 120
    assert len(said["networks"]) == 9
    assert not any("squeezenet" in name for name in said["networks"])
    assert said["boards"] == ["board-0"]
    assert said["fingerprint"] == "f0"
    assert said["versions"]["latfarm-predictors"] != "not installed"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", said["trained_at"])
    graph = zoo.build("mobilenet-v1", width=0.5, resolution=160)
    answer = predictor.predict(graph)
    assert answer.latency_ms == pytest.approx(platform.exact_ms(graph), rel=0.25)
    assert answer.bundle
    assert answer.calibrated


def test_training_leaves_out_measurements_that_cannot_be_trusted(store: Store) -> None:
    platform = board()
    campaign = make_campaign("kernels", PLATFORM, {"count": 12, "rules": RULES.to_json()})
    requests = run(campaign, platform)
    kernels = [r for r in requests if r.purpose == "kernel"]

    def change(request: MeasurementRequest, **changes: Any) -> None:
        old = platform.answered[request.request_id].to_json()
        platform.answered[request.request_id] = Measurement.from_json({**old, **changes})

    change(kernels[0], outcome=str(Outcome.MODEL_ERROR), latency_ms=None)
    change(kernels[1], fingerprint="other")
    change(kernels[2], unstable=True, mad_ms=1.0)
    change(kernels[3], protocol_version=99)
    keep(store, campaign, requests, platform, "k1")
    record = store.get_campaign("k1")
    assert record is not None
    void = kernels[4].request_id
    store.put_campaign(
        CampaignRecord("k1", "k1", "kernels", PLATFORM, outcome={**record.outcome, "void": [void]})
    )
    data = collect(store, PLATFORM, "k1")
    assert data.left_out == {
        "failed": 1,
        "fingerprint": 1,
        "protocol": 1,
        "unstable": 1,
        "void": 1,
    }
    assert len(data.kernels) == 24 - 5
    assert len({s.kernel.kernel_id for s in data.kernels}) == 12
    assert data.fingerprint == "f0"
    assert data.rules.fuses("Conv", "Relu")
    assert data.call_overhead_ms == pytest.approx(0.01, rel=0.1)
    assert not data.networks


def test_training_from_nothing_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no campaign 'c9'"):
        train(store, PLATFORM, "c9", tmp_path / "b.zip")
    store.put_campaign(CampaignRecord("c1", "c1", "networks", PLATFORM, outcome={}))
    with pytest.raises(UsageError, match="no fusion rules yet"):
        train(store, PLATFORM, "c1", tmp_path / "b.zip")
    with pytest.raises(UsageError, match="measured sim-board, not other"):
        train(store, "other", "c1", tmp_path / "b.zip")
    rules = {"rules": RULES.to_json()}
    store.put_campaign(CampaignRecord("c1", "c1", "kernels", PLATFORM, outcome=rules))
    with pytest.raises(UsageError, match="too little"):
        train(store, PLATFORM, "c1", tmp_path / "b.zip")
    assert not (tmp_path / "b.zip").exists()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_unknown_key_is_named_with_the_known_keys(kind: str) -> None:
    with pytest.raises(UsageError, match=rf"campaign {kind}: unknown key 'buget'; known keys: "):
        make_campaign(kind, PLATFORM, {"buget": 3})


@pytest.mark.parametrize(
    ("kind", "config", "says"),
    [
        ("kernels", {"count": 0}, "key 'count'"),
        ("kernels", {"count": "many"}, "key 'count'"),
        (
            "kernels",
            {"settings": {"session_count": 3}},
            "unknown key 'settings.session_count'.*sessions",
        ),
        ("kernels", {"settings": {"sessions": 0}}, "key 'settings.sessions'.*at least 1"),
        ("kernels", {"rules": {"pairs": 3}}, "key 'rules'"),
        ("kernels", {"exclude_graphs": [{}]}, "key 'exclude_graphs.0'"),
        ("kernels", {"sampler": "latfarm", "count": 5}, "initial 100 exceeds count 5"),
        ("kernels", {"prior_share": 0.5}, "sampler 'prior' has no prior_share; 'nn-meter' has one"),
        ("networks", {}, "either graphs or calibration"),
        ("networks", {"graphs": [{"name": 1}]}, "key 'graphs.0'"),
        ("fusion", {"pairs": "some"}, "key 'pairs': "),
        ("fusion", {"alpha": 2}, "key 'alpha'"),
        ("characterize", {"fusion": {"round": 2}}, "unknown key 'fusion.round'.*max_rounds"),
        ("characterize", {"held_out": [{}]}, "key 'held_out.0'"),
        ("characterize", {"least_macs": 9e9}, "least_macs must be less"),
        ("sing", {}, "unknown kind of campaign 'sing'; known: fusion, kernels"),
    ],
)
def test_bad_configurations_name_the_key(kind: str, config: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        make_campaign(kind, PLATFORM, config)
    assert "\n" not in str(caught.value)
