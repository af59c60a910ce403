"""Campaigns that start from the bundle of a sibling platform, and how layers are picked."""

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
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.campaigns.sampling.base import (
    SamplingScope,
    SamplingTask,
)
from latfarm_controller.campaigns.sampling.belief import Belief
from latfarm_controller.campaigns.sampling.by_name import SamplerName, make_sampler
from latfarm_controller.campaigns.sampling.latfarm import GUIDES, Guide, pick_uncertain, uncertainty
from latfarm_controller.campaigns.sampling.prior import PriorSampler
from latfarm_controller.campaigns.sampling.sibling import named, opened
from latfarm_controller.campaigns.sampling.zoo_kernels import network_layers
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
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
KNOWN = "known-onnxruntime1.31-fp32-1t"
NEW = "new-onnxruntime1.31-fp32-4t"


def board(**changes: Any) -> SimulatedPlatform:
    return SimulatedPlatform(**{"rules": RULES, "noise": 0.01, **changes})


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    scope = SamplingScope(frozenset({"conv"}))
    return PriorSampler(SamplingTask(30, RULES, families=FAMILIES, scope=scope)).next_batch([])


@pytest.fixture(scope="module")
def sibling(kernels: list[Kernel], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("known") / "known.zip"
    samples = [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in kernels]
    predictor = fit_predictor(PlatformSamples(KNOWN, RULES, samples, []))
    save_bundle(predictor, path, {"campaign": "known"})
    return path


def survey(sibling: Path, **config: Any) -> KernelCampaign:
    options = {
        "sampler": "latfarm",
        "started_from": named(sibling, NEW).model_dump(),
        "count": 26,
        "initial": 14,
        "batch": 6,
        "families": FAMILIES,
    }
    return KernelCampaign(NEW, KernelOptions.model_validate({**options, **config}), RULES)


def test_the_bundle_is_named_and_no_other_bundle_is_accepted(sibling: Path) -> None:
    found = named(sibling, NEW)
    assert found.platform == KNOWN
    assert found.to_json() == {"bundle": found.bundle, "platform": KNOWN}
    assert opened(sibling, NEW, found.bundle).platform == KNOWN
    other = sibling.with_name("other.zip")
    save_bundle(load_bundle(sibling), other, {"campaign": "another"})
    with pytest.raises(UsageError, match=r"is known-\S+ now, but the campaign started from known"):
        opened(other, NEW, found.bundle)


def test_a_bundle_that_cannot_help_is_refused(sibling: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.zip: no such bundle"):
        named(tmp_path / "nowhere.zip", NEW)
    (tmp_path / "broken.zip").write_bytes(sibling.read_bytes()[:-200])
    with pytest.raises(UsageError, match="cannot start from this bundle"):
        named(tmp_path / "broken.zip", NEW)
    for platform, told in (
        ("x-onnxruntime1.31-int8-1t", "computes in int8, .* in fp32"),
        ("x-tensorrt10.3-fp32", "is an accelerator, .* a CPU"),
    ):
        with pytest.raises(UsageError, match=told):
            named(sibling, platform)
    assert named(sibling, "sim-board").platform == KNOWN  # a name without element type and threads


def test_a_bundle_of_another_version_is_refused(sibling: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(sibling) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name != SUMS}
    files["bundle.json"] = json.dumps(json.loads(files["bundle.json"]) | {"version": 99}).encode()
    sums = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    changed = tmp_path / "newer.zip"
    with zipfile.ZipFile(changed, "w") as archive:
        for name, text in {**files, SUMS: "".join(sums).encode()}.items():
            archive.writestr(name, text)
    with pytest.raises(UsageError, match="version 99"):
        named(changed, NEW)


def test_configurations_are_checked_before_anything_is_measured(sibling: Path) -> None:
    chosen = named(sibling, NEW).model_dump()
    for kind in ("kernels", "characterize"):
        with pytest.raises(UsageError, match="no such bundle"):
            make_campaign(
                kind,
                NEW,
                {"sampler": "latfarm", "started_from": {**chosen, "path": "/nowhere.zip"}},
            )
        with pytest.raises(UsageError, match="'random' cannot start from a bundle"):
            make_campaign(kind, NEW, {"sampler": "random", "started_from": chosen})
    with pytest.raises(UsageError, match=r"started_from.bundle"):
        make_campaign("characterize", NEW, {"started_from": {"path": str(sibling)}})
    with pytest.raises(UsageError, match="key 'guide'"):
        make_campaign("characterize", NEW, {"guide": "vibes"})
    make_campaign("characterize", NEW, {"started_from": chosen})


def test_a_crash_within_a_round_changes_nothing(sibling: Path) -> None:
    new_board = board(macs_per_ms=1.2e7, tile=16)
    whole, resumed = survey(sibling), survey(sibling)
    first = drive(survey(sibling), new_board.measure, stop_after=37)
    second = drive(resumed, new_board.measure, known=dict(new_board.answered))
    assert not {r.request_id for r in first} & {r.request_id for r in second}
    drive(whole, new_board.measure, shuffle=Random(4), ask=7)
    assert whole.outcome() == resumed.outcome()
    assert [s.kernel.kernel_id for s in whole.samples()] == [
        s.kernel.kernel_id for s in resumed.samples()
    ]
    assert whole.outcome()["started_from"] == named(sibling, NEW).to_json()
    assert "started_from" not in survey(sibling, started_from=None).outcome()


def test_a_target_is_met_earlier_than_the_budget(sibling: Path) -> None:
    campaign = survey(sibling, count=120, target=0.3, held_out=0.3, batch=30, initial=60)
    drive(campaign, board(noise=0.002).measure)
    outcome = campaign.outcome()
    assert outcome["stopped"] == "target"
    assert outcome["accuracy"] >= 0.3
    assert outcome["kernels"] < 120


def test_the_new_bundle_names_the_bundle_that_it_started_from(
    sibling: Path, tmp_path: Path, kernels: list[Kernel]
) -> None:
    new_board = board(macs_per_ms=1.2e7)
    campaign = survey(sibling, count=20)
    requests = drive(campaign, new_board.measure)
    config = {"started_from": named(sibling, NEW).model_dump()}
    store = DuckDBStore(tmp_path / "store.duckdb")
    try:
        store.add_measurements("c", [(new_board.answered[r.request_id], r.graph) for r in requests])
        outcome = {"call_overhead_ms": 0.0, **campaign.outcome()}
        record = CampaignRecord("c", "c", "kernels", NEW, state="done", outcome=outcome)
        store.put_campaign(replace(record, config=config))
        train(store, NEW, "c", tmp_path / "new.zip")
    finally:
        store.close()
    told = read_provenance(tmp_path / "new.zip")["started_from"]
    assert told["bundle"] == named(sibling, NEW).bundle
    assert told["platform"] == KNOWN
    assert set(told["groups"]) <= {"conv", "dwconv", "pool", "fc", "memory"}


def test_distance_and_variance_pick_differently(kernels: list[Kernel]) -> None:
    layers = network_layers({name: zoo.families()[name] for name in FAMILIES}, RULES)
    samples = [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in kernels]
    known = {kernel.kernel_id for kernel in kernels}
    left = [layer for layer in layers if layer.kernel.kernel_id not in known]
    guides: tuple[Guide, ...] = ("variance", "coverage", "both")
    picks = {
        guide: [k.kernel_id for k in pick_uncertain(left, samples, 8, guide=guide)]
        for guide in guides
    }
    assert all(len(set(ids)) == 8 for ids in picks.values())
    assert set(GUIDES) == {*guides, "spread"}
    belief = Belief(samples)
    works = [layer.workload for layer in left]
    _, deviation = belief.of(works)
    unsure = {guide: uncertainty(belief, works, deviation, guide) for guide in guides}
    np.testing.assert_array_equal(unsure["variance"], deviation)
    np.testing.assert_array_equal(unsure["coverage"], belief.distance(works))
    assert np.corrcoef(unsure["variance"], unsure["coverage"])[0, 1] < 0.99
    assert (unsure["both"] >= deviation / deviation.mean() - 1e-9).all()
    own = belief.distance([workload(sample.kernel) for sample in samples])
    far = workload(kernels[0])._replace(in_h=4000, in_w=4000, in_channels=5000)
    assert belief.distance([far])[0] > own.max() > 0


@pytest.mark.parametrize("name", ["prior", "latfarm", "random", "annette", "nn-meter"])
def test_every_sampler_keeps_within_its_scope(name: SamplerName) -> None:
    scope = SamplingScope(frozenset({"conv"}), 5e7)
    families = None if name in ("random", "annette") else FAMILIES
    task = SamplingTask(24, RULES, families=families, initial=16, batch=8, scope=scope)
    sampler = make_sampler(name, task)
    samples: list[KernelSample] = []
    while batch := sampler.next_batch(samples):
        samples += [KernelSample(kernel, board().exact_ms(kernel.graph)) for kernel in batch]
    works = [workload(sample.kernel) for sample in samples]
    assert len(works) == 24
    assert {work.family for work in works} == {"conv"}
    assert max(work.macs for work in works) <= 5e7
