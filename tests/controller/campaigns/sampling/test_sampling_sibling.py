"""Campaigns that start from a sibling's bundle, and what guides the choice of layers."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.kernels.kernels import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.sampling.belief import Belief
from latfarm_controller.campaigns.sampling.latfarm import GUIDES, Guide, _doubt, pick_doubtful
from latfarm_controller.campaigns.sampling.samplers import (
    Draws,
    Excluded,
    SamplingScope,
    chosen_families,
    network_layers,
)
from latfarm_controller.campaigns.sampling.sampling import SamplerName, make_sampler
from latfarm_controller.campaigns.sampling.sibling import named, opened
from latfarm_controller.campaigns.testing import SimulatedPlatform, drive
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.training import train
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.samples import KernelSample

pytestmark = pytest.mark.slow

RULES = FusionRules(
    pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"},
)
FAMILIES = ["mobilenet-v1", "squeezenet"]
SUMS = "SHA256SUMS"
ELDER = "elder-onnxruntime1.31-fp32-1t"
YOUNGER = "younger-onnxruntime1.31-fp32-4t"


def board(**changes: Any) -> SimulatedPlatform:
    return SimulatedPlatform(**{"rules": RULES, "noise": 0.01, **changes})


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    scope = SamplingScope(frozenset({"conv"}))
    return Draws(chosen_families(FAMILIES), RULES, Excluded(), 0, scope).draw(30)


@pytest.fixture(scope="module")
def elder(kernels: list[Kernel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("elder") / "elder.zip"
    samples = [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in kernels]
    predictor = fit_predictor(PlatformSamples(ELDER, RULES, samples, []))
    save_bundle(predictor, path, {"campaign": "elder"})
    return path


def survey(elder: Path, **config: Any) -> KernelCampaign:
    options = {
        "sampler": "latfarm",
        "started_from": named(elder, YOUNGER).model_dump(),
        "count": 26,
        "initial": 14,
        "batch": 6,
        "families": FAMILIES,
    }
    return KernelCampaign(YOUNGER, KernelOptions.model_validate({**options, **config}), RULES)


def test_which_bundle_is_told_and_pinned(elder: Path) -> None:
    found = named(elder, YOUNGER)
    assert found.platform == ELDER
    assert found.to_json() == {"bundle": found.bundle, "platform": ELDER}
    assert opened(elder, YOUNGER, found.bundle).platform == ELDER
    other = elder.with_name("other.zip")
    save_bundle(load_bundle(elder), other, {"campaign": "another"})
    with pytest.raises(UsageError, match=r"is elder-\S+ now, and the campaign started from elder"):
        opened(other, YOUNGER, found.bundle)


def test_a_bundle_that_cannot_help_is_refused(elder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.zip: no such bundle"):
        named(tmp_path / "nowhere.zip", YOUNGER)
    (tmp_path / "broken.zip").write_bytes(elder.read_bytes()[:-200])
    with pytest.raises(UsageError, match="cannot start from it"):
        named(tmp_path / "broken.zip", YOUNGER)
    for platform, told in (
        ("x-onnxruntime1.31-int8-1t", "computes in int8, .* in fp32"),
        ("x-tensorrt10.3-fp32", "is an accelerator, .* a CPU"),
    ):
        with pytest.raises(UsageError, match=told):
            named(elder, platform)
    assert named(elder, "sim-board").platform == ELDER  # a name that tells neither


def test_a_bundle_of_another_version_is_refused(elder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(elder) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != SUMS}
    files["bundle.json"] = json.dumps(json.loads(files["bundle.json"]) | {"version": 99}).encode()
    sums = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    changed = tmp_path / "newer.zip"
    with zipfile.ZipFile(changed, "w") as archive:
        for name, text in {**files, SUMS: "".join(sums).encode()}.items():
            archive.writestr(name, text)
    with pytest.raises(UsageError, match="version 99"):
        named(changed, YOUNGER)


def test_configurations_are_checked_before_anything_is_measured(elder: Path) -> None:
    chosen = named(elder, YOUNGER).model_dump()
    for kind in ("kernels", "characterize"):
        with pytest.raises(UsageError, match="no such bundle"):
            make_campaign(
                kind,
                YOUNGER,
                {"sampler": "latfarm", "started_from": {**chosen, "path": "/nowhere.zip"}},
            )
        with pytest.raises(UsageError, match="'random' starts from no bundle"):
            make_campaign(kind, YOUNGER, {"sampler": "random", "started_from": chosen})
    with pytest.raises(UsageError, match=r"started_from.bundle"):
        make_campaign("characterize", YOUNGER, {"started_from": {"path": str(elder)}})
    with pytest.raises(UsageError, match="key 'guide'"):
        make_campaign("characterize", YOUNGER, {"guide": "vibes"})
    make_campaign("characterize", YOUNGER, {"started_from": chosen})


def test_a_kill_in_mid_round_changes_nothing(elder: Path) -> None:
    young = board(macs_per_ms=1.2e7, tile=16)
    whole, resumed = survey(elder), survey(elder)
    first = drive(survey(elder), young.measure, stop_after=37)
    second = drive(resumed, young.measure, known=dict(young.answered))
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    drive(whole, young.measure, shuffle=Random(4), ask=7)
    assert whole.outcome() == resumed.outcome()
    assert [s.kernel.kernel_id for s in whole.samples()] == [
        s.kernel.kernel_id for s in resumed.samples()
    ]
    assert whole.outcome()["started_from"] == named(elder, YOUNGER).to_json()
    assert "started_from" not in survey(elder, started_from=None).outcome()


def test_a_target_is_met_earlier_than_the_budget(elder: Path) -> None:
    campaign = survey(elder, count=120, target=0.3, held_out=0.3, batch=30, initial=60)
    drive(campaign, board(noise=0.002).measure)
    outcome = campaign.outcome()
    assert outcome["stopped"] == "target"
    assert outcome["accuracy"] >= 0.3
    assert outcome["kernels"] < 120


def test_the_bundle_tells_what_it_started_from(
    elder: Path, tmp_path: Path, kernels: list[Kernel]
) -> None:
    young = board(macs_per_ms=1.2e7)
    campaign = survey(elder, count=20)
    requests = drive(campaign, young.measure)
    config = {"started_from": named(elder, YOUNGER).model_dump()}
    store = DuckDBStore(tmp_path / "store.duckdb")
    try:
        store.add_measurements("c", [(young.answered[r.request_id], r.graph) for r in requests])
        outcome = {"call_overhead_ms": 0.0, **campaign.outcome()}
        record = CampaignRecord("c", "c", "kernels", YOUNGER, state="done", outcome=outcome)
        store.put_campaign(replace(record, config=config))
        train(store, YOUNGER, "c", tmp_path / "young.zip")
    finally:
        store.close()
    told = read_provenance(tmp_path / "young.zip")["started_from"]
    assert told["bundle"] == named(elder, YOUNGER).bundle
    assert told["platform"] == ELDER
    assert set(told["groups"]) <= {"conv", "dwconv", "pool", "fc", "memory"}


def test_distance_and_doubt_pick_differently(kernels: list[Kernel]) -> None:
    layers = network_layers({name: zoo.families()[name] for name in FAMILIES}, RULES)
    samples = [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in kernels]
    known = {kernel.kernel_id for kernel in kernels}
    left = [layer for layer in layers if layer.kernel.kernel_id not in known]
    guides: tuple[Guide, ...] = ("variance", "coverage", "both")
    picks = {
        guide: [k.kernel_id for k in pick_doubtful(left, samples, 8, guide=guide)]
        for guide in guides
    }
    assert all(len(set(ids)) == 8 for ids in picks.values())
    assert set(GUIDES) == {*guides, "spread"}
    belief = Belief(samples)
    works = [layer.workload for layer in left]
    _, deviation = belief.of(works)
    doubts = {guide: _doubt(belief, works, deviation, guide) for guide in guides}
    np.testing.assert_array_equal(doubts["variance"], deviation)
    np.testing.assert_array_equal(doubts["coverage"], belief.distance(works))
    assert np.corrcoef(doubts["variance"], doubts["coverage"])[0, 1] < 0.99
    assert (doubts["both"] >= deviation / deviation.mean() - 1e-9).all()
    own = belief.distance([workload(sample.kernel) for sample in samples])
    far = workload(kernels[0])._replace(in_h=4000, in_w=4000, in_channels=5000)
    assert belief.distance([far])[0] > own.max() > 0


@pytest.mark.parametrize("name", ["prior", "latfarm", "random", "annette", "nn-meter"])
def test_every_sampler_keeps_within_its_scope(name: SamplerName) -> None:
    scope = SamplingScope(frozenset({"conv"}), 5e7)
    families = None if name in ("random", "annette") else FAMILIES
    sampler = make_sampler(
        name, 24, RULES, Excluded(), families=families, initial=16, batch=8, scope=scope
    )
    samples: list[KernelSample] = []
    while batch := sampler.next_batch(samples):
        samples += [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in batch]
    works = [workload(sample.kernel) for sample in samples]
    assert len(works) == 24
    assert {work.family for work in works} == {"conv"}
    assert max(work.macs for work in works) <= 5e7
