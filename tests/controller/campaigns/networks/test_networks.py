"""Whole networks: given ones, and calibration networks from many unrelated families."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from latfarm_controller import zoo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.networks.calibration import (
    LEAST_FAMILIES,
    SCALED,
    calibration_networks,
)
from latfarm_controller.campaigns.networks.campaign import (
    NetworkCampaign,
    NetworkOptions,
    pooled_network,
)
from latfarm_controller.errors import UsageError
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_controller.zoo.draws.judged_mix import (
    MIXES,
    Mix,
    calibrating_families,
    judged_families,
)
from latfarm_controller.zoo.draws.variants import variant
from latfarm_controller.zoo.draws.windows import has_idle_windows
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.measurement import Measurement, Outcome

from benchmarks import networks

MACS = (3e7, 2e9)
"""Least and most multiply-adds of networks that judge."""
BARRED = ["vgg", "resnet", "inception", "shufflenet", "squeezenet", "densenet"]


def lines(name: str) -> frozenset[str]:
    stem = max((f for f in zoo.families() if name.startswith(f)), key=len)
    return zoo.families()[stem].lineage


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_calibration_networks_are_many_unrelated_and_spread(seed: int) -> None:
    graphs = calibration_networks(20, exclude_lineages=BARRED, seed=seed, draw=SCALED)
    assert len(graphs) == 20
    assert len({hash_of(graph) for graph in graphs}) == 20
    assert len({lines(graph.name) for graph in graphs}) >= 6
    assert not any(lines(graph.name) & set(BARRED) for graph in graphs)
    macs = sorted(graph_totals(graph).macs for graph in graphs)
    assert macs[0] < 1.2e8
    assert macs[-1] > 3e9
    steps = [math.log(b / a) for a, b in pairwise(macs)]
    assert max(steps) < 1.2
    again = calibration_networks(20, exclude_lineages=BARRED, seed=seed, draw=SCALED)
    assert [hash_of(g) for g in again] == [hash_of(g) for g in graphs]


def test_calibration_networks_are_variants_like_those_that_judge() -> None:
    macs = (3e7, 2e9)
    graphs = calibration_networks(20, exclude_lineages=BARRED, seed=1, macs=macs)
    assert len({hash_of(graph) for graph in graphs}) == 20
    assert len({lines(graph.name) for graph in graphs}) >= LEAST_FAMILIES
    assert not any(lines(graph.name) & set(BARRED) for graph in graphs)
    assert all(macs[0] <= graph_totals(graph).macs <= macs[1] for graph in graphs)
    again = calibration_networks(20, exclude_lineages=BARRED, seed=1, macs=macs)
    assert [hash_of(g) for g in again] == [hash_of(g) for g in graphs]
    published = {hash_of(family.build()) for family in zoo.calibration_families().values()}
    assert not published & {hash_of(graph) for graph in graphs}


def test_calibration_networks_are_of_kinds_that_judge() -> None:
    """No family for tiny images judges a predictor, and no window is too large for its map."""
    graphs = calibration_networks(60, seed=2, macs=(3e7, 2e9))
    drawn = {graph.name.partition("-calibration")[0] for graph in graphs}
    assert not drawn & {"nin-cifar", "nasbench201"}
    assert {"t5-mini", "bert-mini", "mobilevit-s", "convnext-atto", "efficientformer-l1"} <= drawn
    assert not any(has_idle_windows(graph) for graph in graphs)
    scaled = calibration_networks(60, seed=2, draw=SCALED)
    assert any(graph.name.startswith("nin-cifar") for graph in scaled)


def test_calibration_networks_never_are_networks_that_judge() -> None:
    judging = {hash_of(variant(name, s)) for name in ("alexnet", "resnet18") for s in range(1, 12)}
    graphs = calibration_networks(40, seed=0, macs=(3e7, 2e9))
    assert not judging & {hash_of(graph) for graph in graphs}


def calibrating(graphs: Sequence[Graph]) -> list[str]:
    """The family of each calibration network."""
    return [graph.name.partition("-calibration")[0] for graph in graphs]


@pytest.mark.parametrize(("mix", "seed"), list(zip(MIXES, (0, 1, 2), strict=True)))
def test_families_calibrate_in_the_mix_of_those_that_judge(mix: Mix, seed: int) -> None:
    judging = judged_families(mix)
    graphs = calibration_networks(2 * len(judging), seed=seed, macs=MACS, draw=mix)
    assert Counter(calibrating(graphs)) == dict.fromkeys(judging, 2)
    twenty = calibration_networks(20, seed=seed, macs=MACS, draw=mix)
    assert len({hash_of(graph) for graph in twenty}) == 20
    shares = Counter(calibrating(twenty))
    assert max(shares.values()) - min(shares[name] for name in judging) <= 1
    few = min(20, len(graphs))
    assert [hash_of(graph) for graph in graphs[:few]] == [hash_of(graph) for graph in twenty[:few]]


def test_a_judged_mix_has_other_members_than_those_that_judge() -> None:
    judging = networks.judged_networks(2, seed=0)
    graphs = calibration_networks(20, macs=MACS, draw="convolutional")
    assert not {hash_of(graph) for graph in judging} & {hash_of(graph) for graph in graphs}
    barred = [hash_of(graph) for graph in graphs[:3]]
    others = calibration_networks(20, macs=MACS, draw="convolutional", exclude=barred)
    assert len(others) == 20
    assert not set(barred) & {hash_of(graph) for graph in others}
    assert sorted(calibrating(others)) == sorted(calibrating(graphs))
    scaled = calibration_networks(8, draw=SCALED)
    fewer = calibration_networks(8, draw=SCALED, exclude=[hash_of(scaled[0])])
    assert hash_of(scaled[0]) not in {hash_of(graph) for graph in fewer}


@pytest.mark.parametrize("mix", MIXES)
def test_families_of_the_same_folder_stand_in_for_lineages_that_are_left_out(mix: Mix) -> None:
    folders = Counter(zoo.find(name)[0].folder for name in judged_families(mix))
    graphs = calibration_networks(
        folders.total(), exclude_lineages=BARRED, seed=1, macs=MACS, draw=mix
    )
    assert not any(lines(graph.name) & set(BARRED) for graph in graphs)
    assert Counter(zoo.find(name)[0].folder for name in calibrating(graphs)) == folders


def test_a_folder_without_families_has_stand_ins_of_the_same_task() -> None:
    everything = {line for family in zoo.families().values() for line in family.lineage}
    mobile = {f.name: f for f in zoo.calibration_families().values() if f.folder == "mobile"}
    left = everything - {line for each in mobile.values() for line in each.lineage}
    turns = calibrating_families("judged", sorted(left))
    by_name = dict(zip(judged_families(), turns, strict=True))
    assert by_name["mobilenet-v2"] == ("mobilenet-v2",)
    assert set(by_name["vgg11"]) <= set(mobile)
    assert "mobilenet-v2" in by_name["vgg11"]
    assert by_name["bert-mini"] == (), "no network of another task stands in for text"


def test_a_family_without_a_variant_in_the_range_is_given_up() -> None:
    assert calibration_networks(3, macs=(1.0, 2.0)) == []


def test_too_few_families_are_refused() -> None:
    families = zoo.calibration_families().values()
    lineages = sorted({line for family in families for line in family.lineage})
    with pytest.raises(UsageError, match="calibration needs 6 zoo families"):
        calibration_networks(20, exclude_lineages=lineages[:-2])


def test_given_networks_are_measured_in_interleaved_passes() -> None:
    graphs = [zoo.build(name) for name in ("squeezenet", "mobilenet-v1", "resnet18")]
    board = SimulatedPlatform(rules=FusionRules.none(), noise=0.01)
    campaign = NetworkCampaign(
        "sim",
        NetworkOptions.model_validate(
            {
                "graphs": [g.to_json() for g in graphs],
                "passes": 2,
                "settings": {"sessions": 5, "max_ms": 100.0},
            }
        ),
    )
    requests = drive(campaign, board.measure)
    assert [r.settings.sessions for r in requests] == [3, 3, 3, 2, 2, 2]
    assert {r.settings.max_ms for r in requests} == {100.0}
    assert {hash_of(r.graph) for r in requests[:3]} == {hash_of(g) for g in graphs}
    assert len({r.request_id for r in requests}) == 6
    samples = {hash_of(s.graph): s for s in campaign.samples()}
    for graph in graphs:
        exact = board.exact_ms(graph)
        assert samples[hash_of(graph)].latency_ms == pytest.approx(exact, rel=0.05)
    assert [n["name"] for n in campaign.outcome()["networks"]] == [g.name for g in graphs]
    assert campaign.progress().done == 6


def test_passes_of_several_campaigns_are_repetitions_of_each_other() -> None:
    """Otherwise a pass would be the request of another campaign, which is measured once."""
    graph = zoo.build("nin-cifar").to_json()
    board = SimulatedPlatform(rules=FusionRules.none(), noise=0.01)
    asked = []
    for earlier in (0, 1, 2):
        options = NetworkOptions(graphs=[graph], earlier_passes=earlier)
        asked += drive(NetworkCampaign("sim", options), board.measure)
    assert len({request.request_id for request in asked}) == 3
    twice = drive(NetworkCampaign("sim", NetworkOptions(graphs=[graph], passes=2)), board.measure)
    assert len({r.repeat for r in (*asked, *twice)}) == 3


def test_each_pass_counts_the_same_however_many_sessions_it_has() -> None:
    def timed(*sessions_ms: float) -> Measurement:
        return Measurement(
            request_id=f"r{len(sessions_ms)}",
            graph_hash=hash_of(graph),
            platform="p",
            purpose="network",
            outcome=Outcome.OK,
            latency_ms=median(sessions_ms),
            mad_ms=0.1,
            session_ms=sessions_ms,
        )

    graph = zoo.build("nin-cifar")
    sample = pooled_network(graph, [timed(10.0, 10.1, 9.9), timed(12.0, 12.0)])
    assert sample is not None
    assert sample.latency_ms == pytest.approx(11.0)
    assert sample.mad_ms == pytest.approx(1.0)
    single = pooled_network(graph, [timed(10.0, 10.4, 9.9)])
    assert single is not None
    assert single.latency_ms == pytest.approx(10.0)
    assert single.mad_ms == pytest.approx(0.1)
    assert pooled_network(graph, []) is None


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000), unlucky=st.integers(0, 9))
def test_the_order_of_answers_does_not_matter(seed: int, unlucky: int) -> None:
    def failures(request: MeasurementRequest) -> Outcome | None:
        lost = int(request.request_id[:2], 16) % 16 < unlucky
        return Outcome.MODEL_ERROR if lost else None

    graphs = [zoo.build("nin-cifar", width=w).to_json() for w in (0.25, 0.5, 1.0)]
    options = NetworkOptions(graphs=graphs, passes=2)
    board = SimulatedPlatform(rules=FusionRules.none(), failures=failures)
    straight, other = NetworkCampaign("sim", options), NetworkCampaign("sim", options)
    drive(straight, board.measure)
    drive(other, board.measure, shuffle=Random(seed), ask=2)
    assert straight.outcome() == other.outcome()
    found = {n["name"] for n in straight.outcome()["networks"]}
    assert len(found) + len(straight.outcome()["failed"]) == 3
