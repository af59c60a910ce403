"""Measuring the kernels that a bundle covers badly, and training with them and with the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.campaigns.base import Campaign, MeasurementRequest
from latfarm_controller.campaigns.cover import CoverCampaign, cover_config
from latfarm_controller.campaigns.kinds import TRAINED, make_campaign
from latfarm_controller.campaigns.sampling.badly_covered import KernelChoice, choose
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.training.entering import promote_model
from latfarm_controller.training.gather import bases, gather
from latfarm_controller.training.training import fit_model, read_again, train
from latfarm_controller.training.training_set import collect
from latfarm_predictors.bundle import read_provenance, save_bundle
from latfarm_predictors.confidence.layer_coverage import layer_coverage
from latfarm_predictors.errors import NoConfidenceError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.trust.network_trust import evidence_of, trust, weighted_coverage

pytestmark = pytest.mark.slow
PLATFORM = "sim-board"
RULES = FusionRules(
    pairs={("Conv", "BatchNormalization"): "fused", ("Conv", "Relu"): "fused"},
    multi_inbound=0,
)
CONFIG: dict[str, Any] = {
    "budget": 24,
    "calibration": 6,
    "fusion": {"pairs": [["conv", "relu"]], "sizes": ["small"]},
    "most_macs": 3e8,
    "insight": "single",
}


def network() -> Graph:
    """A network with more channels than any of the zoo, and with an op that was never measured."""
    b = GraphBuilder("wide")
    x = b.relu(b.conv(b.input((1, 16, 14, 14)), 3000, 3))
    x = b.relu(b.conv(x, 3000, 1))
    return b.build([b.softmax(b.flatten(b.global_avg_pool(x)))])


class Home:
    """A controller's folder with a store, and the board that its campaigns are measured on."""

    def __init__(self, folder: Path) -> None:
        self.config = ControllerConfig(home=folder)
        self.config.make_dirs()
        self.store: Store = DuckDBStore(self.config.store_file)
        self.board = SimulatedPlatform(rules=RULES, noise=0.01)

    @property
    def bundles(self) -> Path:
        return self.config.bundles_dir / PLATFORM

    def run(
        self, kind: str, config: dict[str, Any], name: str, fingerprint: str = "f0"
    ) -> dict[str, Any]:
        campaign = make_campaign(kind, PLATFORM, config)
        requests = drive(campaign, self.board.measure)
        return self.keep(campaign, requests, config, name, fingerprint)

    def keep(
        self,
        campaign: Campaign,
        requests: list[MeasurementRequest],
        config: dict[str, Any],
        name: str,
        fingerprint: str,
    ) -> dict[str, Any]:
        outcome = dict(campaign.outcome())
        rows: list[tuple[Measurement, Graph]] = [
            (replace(self.board.answered[r.request_id], fingerprint=fingerprint), r.graph)
            for r in requests
        ]
        self.store.add_measurements(name, rows)
        self.store.put_campaign(
            CampaignRecord(
                name, name, campaign.kind, PLATFORM, config=config, state="done", outcome=outcome
            )
        )
        return outcome

    def train(self, name: str, number: int) -> PlatformPredictor:
        return train(self.store, PLATFORM, name, self.bundles / f"{number:04d}.zip")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    home = Home(tmp_path_factory.mktemp("home"))
    home.run("characterize", CONFIG, "base")
    home.train("base", 1)
    yield home
    home.store.close()


@pytest.fixture(scope="module")
def predictor(home: Home) -> PlatformPredictor:
    from latfarm_predictors.bundle import load_bundle

    return load_bundle(home.bundles / "0001.zip")


@pytest.fixture(scope="module")
def choice(predictor: PlatformPredictor) -> KernelChoice:
    return choose(predictor, [network()], 10)


def test_it_chooses_the_badly_covered_layers(
    predictor: PlatformPredictor, choice: KernelChoice
) -> None:
    bad = trust(predictor, network()).badly_covered
    assert len(bad) == choice.badly == len(choice.kernels) > 1
    assert {kernel.type for kernel in choice.kernels} == {layer.kind for layer in bad}
    assert choice.left == 0
    fewer = choose(predictor, [network()], 1)
    assert fewer.kernels[0].kernel_id == choice.kernels[0].kernel_id
    assert fewer.left == choice.badly - 1


def test_layers_and_families_can_be_asked_for(predictor: PlatformPredictor) -> None:
    told = trust(predictor, network())
    last = next(layer for layer in told.layers if layer.family == "softmax")
    (kernel,) = choose(predictor, [network()], 10, layers=[last.name]).kernels
    assert kernel.type == last.kind
    found = choose(predictor, [network()], 10, family="conv").kernels
    assert {workload(kernel).family for kernel in found} == {"conv"}
    known = layer_coverage(evidence_of(predictor).table, [workload(k) for k in found])
    assert (known < 1.0).all()
    assert choose(predictor, [network()], 10, family="lrn") == KernelChoice(
        (), len(told.badly_covered), 0
    )
    with pytest.raises(UsageError, match="no layer nowhere; some of the layers: "):
        choose(predictor, [network()], 10, layers=["nowhere"])
    with pytest.raises(UsageError, match="no kernel family 'cnov'"):
        choose(predictor, [network()], 10, family="cnov")


def test_new_measurements_are_added_to_those_of_the_base(
    home: Home, predictor: PlatformPredictor, choice: KernelChoice
) -> None:
    record = home.store.get_campaign("base")
    assert record is not None
    config = cover_config("base", record.outcome, choice.kernels)
    assert config["insight"] == "single"
    outcome = home.run("cover", config, "more")
    assert outcome["kernels"] == len(choice.kernels)
    assert outcome["base"] == "base"
    assert outcome["insight"]["chosen"] == "single"
    assert "cover" in TRAINED
    assert bases(home.store, "more") == ["more", "base"]

    alone = collect(home.store, PLATFORM, "base")
    both = gather(home.store, PLATFORM, "more")
    assert len(both.kernels) == len(alone.kernels) + 2 * len(choice.kernels)  # in two passes
    assert [hash_of(n.graph) for n in both.networks] == [hash_of(n.graph) for n in alone.networks]
    assert both.call_overhead_ms == alone.call_overhead_ms
    assert both.campaign_id == "more"

    better = home.train("more", 2)
    before, after = evidence_of(predictor), evidence_of(better)
    assert len(after) == len(before) + len(choice.kernels)
    assert weighted_coverage(better, network()) > weighted_coverage(predictor, network())
    assert trust(better, network()).badly_covered == ()
    exact = home.board.exact_ms(network())

    def miss(each: PlatformPredictor) -> float:
        return abs(float(np.log(each.predict(network()).latency_ms / exact)))

    # Its kernels are measured now; the influence of other kernels may change it a little.
    assert miss(better) < max(0.05, miss(predictor) + 0.02)
    assert read_provenance(home.bundles / "0002.zip")["campaign"] == "more"

    # The same once more, with the second campaign as the base.
    again = choose(better, [network()], 10, family="conv")
    assert again.kernels == ()
    home.run("cover", cover_config("more", outcome, choice.kernels[:1]), "most")
    assert bases(home.store, "most") == ["most", "more", "base"]
    assert len(gather(home.store, PLATFORM, "most").kernels) == len(both.kernels) + 2


def test_another_fingerprint_is_another_platform(home: Home, choice: KernelChoice) -> None:
    record = home.store.get_campaign("base")
    assert record is not None
    config = cover_config("base", record.outcome, choice.kernels[:2])
    home.run("cover", config, "slower-clock", fingerprint="f1")
    found = gather(home.store, PLATFORM, "slower-clock")
    alone = collect(home.store, PLATFORM, "base")
    assert len(found.kernels) == len(alone.kernels)
    assert found.left_out["fingerprint"] == 4


def test_kernels_are_measured_between_pads_if_those_of_the_base_were(choice: KernelChoice) -> None:
    outcome = {"rules": RULES.to_json(), "call_overhead_ms": 0.01, "insight": {"chosen": "padded"}}
    convs = [kernel for kernel in choice.kernels if kernel.type.startswith("Conv")]
    config = cover_config("base", outcome, convs)
    campaign = make_campaign("cover", PLATFORM, config)
    assert isinstance(campaign, CoverCampaign)
    board = SimulatedPlatform(rules=RULES, noise=0.002)
    requests = drive(campaign, board.measure)
    assert {request.purpose for request in requests} >= {"kernel", "padding"}
    found = campaign.outcome()
    assert found["insight"]["chosen"] == "padded"
    assert set(found["padding"]["times"]) >= {kernel.kernel_id for kernel in convs}


def test_the_insight_of_older_campaigns_follows_from_their_profiles() -> None:
    rules = RULES.to_json()
    assert cover_config("b", {"rules": rules, "fusion": {"profile": "yes"}}, [])["insight"] == (
        "profile"
    )
    assert cover_config("b", {"rules": rules}, [])["insight"] == "single"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kernels": []}, "kernels"),
        ({"kernels": [{"nodes": 1}]}, "kernels.0"),
        ({"rules": {"pairs": 3}}, "rules"),
        ({"base": ""}, "base"),
        ({"insight": "guess"}, "insight"),
    ],
)
def test_a_wrong_configuration_is_named(
    change: dict[str, Any], told: str, choice: KernelChoice
) -> None:
    config = cover_config("b", {"rules": RULES.to_json()}, choice.kernels[:1])
    with pytest.raises(UsageError, match=told):
        make_campaign("cover", PLATFORM, {**config, **change})


def test_missing_and_circular_bases_are_refused(home: Home) -> None:
    with pytest.raises(UsageError, match="no campaign 'nowhere'"):
        bases(home.store, "nowhere")
    for name, base in (("left", "right"), ("right", "left")):
        config = {"base": base}
        home.store.put_campaign(CampaignRecord(name, name, "cover", PLATFORM, config=config))
    with pytest.raises(UsageError, match="adds to itself"):
        bases(home.store, "left")


def test_a_bundle_without_measurements_can_be_trained_again(home: Home) -> None:
    from latfarm_predictors.bundle import load_bundle

    path = home.bundles / "0007.zip"
    predictor = load_bundle(home.bundles / "0001.zip")
    predictor.confidence = None
    save_bundle(predictor, path, read_provenance(home.bundles / "0001.zip"))
    with pytest.raises(NoConfidenceError, match=f"latfarm bundle retrain -p {PLATFORM}"):
        choose(load_bundle(path), [network()], 10)
    inputs = read_again(home.store, home.config.bundles_dir, PLATFORM)
    entered = fit_model(home.config.bundles_dir, inputs, promote=True)
    new = entered.path
    assert entered.promoted
    assert new == home.bundles / "0008.zip"
    assert trust(load_bundle(new), network()).layers
    assert load_bundle(new).predict(network()).latency_ms == (
        predictor.predict(network()).latency_ms
    )
    save_bundle(predictor, home.bundles / "0009.zip", {"campaign": "elsewhere"})
    promote_model(home.config.bundles_dir, PLATFORM, "0009")
    with pytest.raises(UsageError, match="was made elsewhere: its campaign elsewhere"):
        read_again(home.store, home.config.bundles_dir, PLATFORM)
