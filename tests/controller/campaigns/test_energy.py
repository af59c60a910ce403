"""Energies: how campaigns ask for them, and what a bundle is trained on."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.energy import (
    energy_sample_of,
    energy_story,
    network_energy,
)
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.errors import UsageError
from latfarm_controller.reports import energy as report
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.training.energy import collect_energy, fit_energy
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.measurement import Measurement, Outcome, Settings
from latfarm_predictors.predict.answer import EnergyAnswer

from benchmarks import energy as benchmark

RULES = FusionRules(pairs={("Conv", "Relu"): "fused"})
RAIL = "rapl:package-0"
STORY = "ENERGY_UNAVAILABLE: this board has no power rail"


def graph_of(size: int) -> Graph:
    b = GraphBuilder(f"relu-{size}")
    return b.build([b.relu(b.input((1, 8, size, size)))])


def told(size: int = 8, energy_mj: float | None = 2.0, **changes: Any) -> Measurement:
    known = energy_mj is not None
    made = Measurement(
        f"r{size}",
        hash_of(graph_of(size)),
        "p",
        "kernel",
        Outcome.OK,
        latency_ms=1.0,
        energy_mj=energy_mj,
        energy_gross_mj=3.0 if known else None,
        energy_spread_mj=0.1 if known else None,
        idle_mw=700.0 if known else None,
        energy_source=RAIL if known else "",
        settings=Settings(energy_ms=1000.0),
        conditions={"energy": "ok" if known else STORY},
    )
    return replace(made, **changes)


def rows(*answers: Measurement) -> list[tuple[Graph, Sequence[Measurement]]]:
    return [(graph_of(8), answers)]


def test_a_kernel_alone_has_the_measured_energy() -> None:
    kernel = Kernel(graph_of(8))
    sample = energy_sample_of(kernel, told(), 0.5, None)
    assert sample is not None
    assert (sample.energy_mj, sample.spread_mj, sample.insight) == (2.0, 0.1, "single")
    assert energy_sample_of(kernel, told(energy_mj=None), 0.5, None) is None


def test_layout_conversions_take_their_share_of_the_energy() -> None:
    sample = energy_sample_of(Kernel(graph_of(8)), told(), 0.5, 0.2)
    assert sample is not None
    assert sample.energy_mj == pytest.approx((2.0 - 0.5) * 0.8)
    assert sample.spread_mj == pytest.approx(0.1 * 0.8)
    assert sample.insight == "profile"
    tiny = energy_sample_of(Kernel(graph_of(8)), told(), 5.0, 0.0)
    assert tiny is not None
    assert tiny.energy_mj > 0, (
        "an energy below that of a call becomes a small one, not a negative one"
    )


def test_the_energy_of_a_network_is_the_median_of_its_passes() -> None:
    sample = network_energy(graph_of(8), [told(), told(energy_mj=2.6), told(energy_mj=None)])
    assert sample is not None
    assert sample.energy_mj == pytest.approx(2.3)
    assert sample.spread_mj == pytest.approx(0.3)
    assert network_energy(graph_of(8), [told(energy_mj=None)]) is None


def test_reasons_for_missing_energies_are_counted() -> None:
    found = energy_story([told(), told(energy_mj=None), told(energy_mj=None)])
    assert found == {"measured": 1, "unavailable": {STORY: 2}}


def test_rails_are_never_mixed() -> None:
    other = told(energy_mj=50.0, energy_source="power_supply:BAT0", idle_mw=9000.0)
    own = (told(), told(energy_mj=2.2), told(energy_mj=2.4))
    found = collect_energy(rows(*own, other), rows(other), 0.1)
    assert found.rail == RAIL
    assert [s.energy_mj for s in found.kernels] == [2.0, 2.2, 2.4]
    assert found.networks == []
    assert found.idle_mw == 700.0
    assert found.left_out == {"another rail": 2}
    assert found.provenance()["energy"]["left_out"] == {"another rail": 2}


def test_a_campaign_without_energies_does_not_mention_them() -> None:
    plain = told(energy_mj=None, settings=Settings(), conditions={})
    found = collect_energy(rows(plain), [], None)
    assert not found.asked
    assert found.provenance() == {}
    assert fit_energy("p", RULES, found, 0.01) is None


def test_too_few_energies_give_a_warning_and_no_model(caplog: pytest.LogCaptureFixture) -> None:
    found = collect_energy(rows(told(), told(energy_mj=None)), [], None)
    assert found.left_out == {"unavailable": 1}
    with caplog.at_level(logging.WARNING):
        assert fit_energy("p", RULES, found, 0.01) is None
    assert "p: the bundle will not predict energies" in caplog.text


class Metered:
    """A simulated platform whose energies the test gives."""

    def __init__(self, energy_of: Any) -> None:
        self.platform = SimulatedPlatform(rules=RULES)
        self.energy_of = energy_of

    def measure(self, request: MeasurementRequest) -> Measurement:
        answer = self.platform.measure(request)
        if not request.settings.energy_ms:
            return answer
        energy_mj = self.energy_of(request)
        if energy_mj is None:
            return replace(answer, conditions={"energy": STORY})
        return replace(
            answer, energy_mj=energy_mj, energy_spread_mj=0.01, idle_mw=1.0, energy_source=RAIL
        )


CONFIG = {"count": 10, "settings": {"energy_ms": 500.0}}


def test_energies_are_asked_of_kernels_and_not_of_sentinels() -> None:
    campaign = make_campaign("kernels", "p", CONFIG)
    requests = drive(campaign, Metered(lambda request: 0.25).measure)
    kernels = [r for r in requests if r.purpose == "kernel"]
    assert {r.settings.energy_ms for r in kernels} == {500.0}
    assert len([r for r in requests if r.purpose == "sentinel" and r.settings.energy_ms]) == 6
    assert any(r.purpose == "sentinel" and not r.settings.energy_ms for r in requests)
    outcome = campaign.outcome()
    assert outcome["call_overhead_mj"] == 0.25
    assert outcome["energy"] == {"measured": len(kernels) + 6, "unavailable": {}}


def test_energies_are_measured_although_that_of_a_call_is_not() -> None:
    def energy_of(request: MeasurementRequest) -> float | None:
        return None if request.label == "energy of empty" else 1.0

    campaign = make_campaign("kernels", "p", CONFIG)
    requests = drive(campaign, Metered(energy_of).measure)
    assert all(r.settings.energy_ms for r in requests if r.purpose == "kernel")
    outcome = campaign.outcome()
    assert outcome["call_overhead_mj"] is None
    assert outcome["energy"]["unavailable"] == {STORY: 3}


def test_a_characterisation_asks_for_energies_in_its_stages() -> None:
    config = {
        "budget": 10,
        "calibration": 2,
        "energy_ms": 500.0,
        "fusion": {"pairs": [["conv", "relu"]], "sizes": ["small"]},
        "most_macs": 3e8,
    }
    for energy_mj in (1.5, None):
        campaign = make_campaign("characterize", "p", config)
        requests = drive(campaign, Metered(lambda request, told=energy_mj: told).measure)
        asked = {p: {r.settings.energy_ms for r in requests if r.purpose == p} for p in ("fusion",)}
        assert asked == {"fusion": {0.0}}
        wanted = 500.0 if energy_mj else 0.0
        for purpose in ("kernel", "network"):
            found = {r.settings.energy_ms for r in requests if r.purpose == purpose}
            assert found == {wanted}
        outcome = campaign.outcome()
        assert outcome["call_overhead_mj"] == energy_mj
        assert ("energy_mj" in outcome["networks"]["networks"][0]) == (energy_mj is not None)


def test_without_energies_none_are_asked_for() -> None:
    with pytest.raises(UsageError, match="energy_ms"):
        make_campaign("characterize", "p", {"energy_ms": -1})
    campaign = make_campaign("kernels", "p", {"count": 10})
    requests = drive(campaign, Metered(lambda request: 1.0).measure)
    assert not any(r.settings.energy_ms for r in requests)
    assert "energy" not in campaign.outcome()
    assert "call_overhead_mj" not in campaign.outcome()


def test_a_report_has_a_part_for_energies() -> None:
    answer = EnergyAnswer("net<1>", "p", 2.2, (1.8, 2.6), 0.9, True, (), rail=RAIL, idle_mw=700.0)
    far = replace(answer, network="far", energy_mj=4.0, interval_mj=(3.9, 4.1))
    other = told(size=9, energy_source="power_supply:BAT0")
    found = report.energy_rows(
        {hash_of(graph_of(8)): answer, hash_of(graph_of(9)): far, "unknown": far}, [told(), other]
    )
    assert [row.network for row in found] == ["net<1>"], "only those of the same rail"
    assert found[0].error == pytest.approx(0.1)
    html = report.section([*found, replace(found[0], answer=far)])
    assert "net&lt;1&gt;" in html
    assert RAIL in html
    assert "1 of 2 inside their 90% interval" in html
    assert report.section([]) == ""


def test_energies_are_facts_with_a_sentence() -> None:
    answer = EnergyAnswer("net", "p", 2.2, (1.8, 2.6), 0.9, True, (), rail=RAIL, idle_mw=700.0)
    rows = report.energy_rows({hash_of(graph_of(8)): answer}, [told()])
    found = report.energy_facts(rows, [told()])
    assert found["summary"] == f"energy by {RAIL}: median error 10.0%, 1 of 1 inside"
    assert found["networks"][0]["predicted_mj"] == 2.2
    assert report.energy_facts([], [])["summary"] == "no energy was measured"


def test_the_benchmark_knows_nothing_of_the_networks_that_judge_it() -> None:
    families = [zoo.find(name)[0] for name, _ in benchmark.HELD_OUT]
    assert all(family.lineage & set(benchmark.LINEAGES) for family in families)
    config = benchmark.configuration(20, 6, [graph_of(8)])
    campaign = make_campaign("characterize", "toy", config)  # raises an error for a wrong key
    assert campaign.kind == "characterize"
    for draw in ("exclude_lineages", "exclude_kernel_lineages"):
        assert config[draw] == list(benchmark.LINEAGES)
    assert config["held_out"] == [graph_of(8).to_json()]
