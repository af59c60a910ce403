"""How a platform's report judges: means of passes, a perfect predictor, what cannot run, fusion."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.app import reporting
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.reports.facts.accuracy import network_accuracy
from latfarm_controller.reports.facts.fusion import fusion_facts
from latfarm_controller.reports.facts.platform_record import newest_fusion_run, unseen_networks
from latfarm_controller.reports.pages import fusion as html_fusion
from latfarm_controller.reports.platform_report import render
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training.bundle_notes import BundleNotes
from latfarm_predictors.graph.equivalences import network_hash_of

from tests.controller.reports import toy
from tests.controller.reports.parsed_page import Page

ODD = ("alexnet-0", "alexnet-1", "vgg11-0")
"""Names of networks of two families."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store.duckdb") as found:
        yield found


def test_unseen_networks_are_judged_by_the_mean_of_their_passes(lab: toy.Lab) -> None:
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    network = found.unseen[0]
    first = network.measurements[0]
    times = [(first.latency_ms or 0.0) * factor for factor in (0.9, 1.0, 1.0, 1.3)]
    repeated = replace(
        network, measurements=tuple(replace(first, latency_ms=latency) for latency in times)
    )
    unseen = network_accuracy(replace(found, unseen=[repeated]), [])["unseen"]
    (row,) = unseen["networks"]
    assert row["measured_ms"] == pytest.approx(sum(times) / 4)
    assert row["standard_error_ms"] == pytest.approx(0.0866 * times[1], rel=0.01)
    # The halves of the four passes differ by 19, 19 and 9.5 %, and a perfect predictor is off by
    # half of that: always within 10 %, and in one of three cases within 5 %.
    perfect = unseen["perfect"]
    assert perfect["within5"] == pytest.approx(1 / 3)
    assert (perfect["within10"], perfect["passes"]) == (1.0, 4)


def test_no_network_calibrates_the_interval_that_it_judges(
    lab: toy.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine networks alike and one far off: with its own score, the last one is always inside."""
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    assert found.predictor is not None
    scores = np.array([1.0] * 9 + [5.0])
    monkeypatch.setattr(found.predictor.correction, "scores", scores)
    monkeypatch.setattr(found.predictor.correction, "residuals", 0.01 * scores)
    told = network_accuracy(found, [])["calibration"]
    assert told["inside"] == pytest.approx(0.9)
    held = {row["network"]: row["interval_ms"] for row in told["networks"]}
    odd = next(row for row in told["networks"] if row["network"] == toy.networks()[9].name)
    assert not held[odd["network"]][0] <= odd["corrected_ms"] <= held[odd["network"]][1]


def test_networks_with_the_same_names_are_not_those_that_calibrated(lab: toy.Lab) -> None:
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    others = [
        replace(each, graph=toy.network(each.graph.name, (9, 50 + place), 13))
        for place, each in enumerate(found.calibration)
    ]
    assert network_accuracy(replace(found, calibration=others), [])["calibration"] is None


def test_what_taught_the_bundle_is_never_called_unseen(lab: toy.Lab) -> None:
    """Whatever campaign the report is about."""
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM, "later")
    taught = {network_hash_of(graph) for graph in toy.networks()}
    assert found.unseen == [] or not taught & {network_hash_of(n.graph) for n in found.unseen}


def test_profiled_networks_are_not_unseen(store: DuckDBStore, tmp_path: Path) -> None:
    """Their kernels were learned from, whoever asks for the whole network later."""
    graphs = [toy.network(name, (8, 9 + n), 12) for n, name in enumerate(ODD)]
    store.put_campaign(toy.campaign())
    store.add_measurements(toy.CAMPAIGN, [(toy.measured(graphs[0], "context", 2.0, 1), graphs[0])])
    store.add_measurements(
        "asked",
        [(toy.measured(graph, "query", 2.0, 5 + n), graph) for n, graph in enumerate(graphs)],
    )
    found = reporting.record(store, tmp_path / "bundles", toy.PLATFORM)
    assert sorted(network.graph.name for network in found.unseen) == ["alexnet-1", "vgg11-0"]


def test_networks_that_the_platform_cannot_run_are_named(
    store: DuckDBStore, tmp_path: Path
) -> None:
    graphs = {name: toy.network(name, (8, 9 + n), 12) for n, name in enumerate(ODD)}
    answers = [
        (toy.failed(graph, "network", n, "MODEL_FAILED", f"no tile for {name}"), graph)
        for n, (name, graph) in enumerate(graphs.items())
        if name.startswith("alexnet")
    ]
    vgg = graphs["vgg11-0"]
    answers += [
        (toy.measured(vgg, "network", 2.0, 9), vgg),
        (replace(toy.failed(vgg, "network", 10, "AGENT_LOST", "gone")), vgg),
    ]
    store.put_campaign(toy.campaign(state="running"))
    store.add_measurements(toy.CAMPAIGN, answers)
    facts = reporting.report(store, tmp_path / "bundles", toy.PLATFORM)
    assert facts["networks"]["refused"] == [
        {
            "family": "alexnet",
            "networks": ["alexnet-0", "alexnet-1"],
            "tried": 2,
            "reason": facts["networks"]["refused"][0]["reason"],
        }
    ]
    text = "".join(Page(render(facts)).text)
    assert "2 of 2" in text
    assert "no tile for alexnet-" in text


def test_facts_of_an_older_controller_still_make_a_page(lab: toy.Lab) -> None:
    facts = reporting.report(lab.store, lab.bundles, toy.PLATFORM)
    older: dict[str, Any] = json.loads(json.dumps(facts))
    del older["networks"]["refused"]
    for part in (older["networks"]["unseen"], older["networks"]["calibration"], older["kernels"]):
        del part["leads"], part["perfect"]
        for scores in part["methods"].values():
            del scores["within5_interval"], scores["within10_interval"]
    for row in older["networks"]["unseen"]["networks"]:
        del row["standard_error_ms"]
    assert "latfarm" in "".join(Page(render(older)).text)


def test_fusion_of_the_characterisation_stands_beside_a_dedicated_run(lab: toy.Lab) -> None:
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    plain = fusion_facts(found)
    assert plain is not None
    assert plain["dedicated_black_box"] is None
    alone = {"black_box": toy.FUSION["black_box"] | {"precision": 0.875, "recall": 0.625}}
    run = replace(toy.campaign(outcome=alone), campaign_id="fusion-1", kind="fusion")
    told = fusion_facts(replace(found, fusion_run=run))
    assert told is not None
    assert told["black_box"]["precision"] == 0.5
    assert told["dedicated_black_box"]["precision"] == 0.875
    text = "".join(Page(html_fusion.fusion(told)).text)
    assert "as the characterisation found it" in text
    assert "0.625" in text


def test_the_papers_rule_is_scored_beside_ours(lab: toy.Lab) -> None:
    """Under the key that a campaign's outcome has for it."""
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    assert found.campaign is not None
    printed = FusionCampaign("p", FusionOptions(pairs=[])).outcome()
    scores = toy.FUSION["black_box"] | {"precision": 0.3125}
    assert "paper" in printed
    told = {**found.outcome, "fusion": {**toy.FUSION, "paper": scores}}
    facts = fusion_facts(replace(found, campaign=replace(found.campaign, outcome=told)))
    assert facts is not None
    assert facts["paper_black_box"]["precision"] == 0.3125
    text = "".join(Page(html_fusion.fusion(facts)).text)
    assert "inequation 1" in text
    plain = fusion_facts(found)
    assert plain is not None
    assert plain["paper_black_box"] is None


def test_the_newest_finished_run_of_fusion_is_the_dedicated_one(store: DuckDBStore) -> None:
    runs = {"old": ("done", 1.0), "new": ("done", 2.0), "open": ("running", 3.0)}
    for name, (state, started_at_s) in runs.items():
        run = toy.campaign(campaign_id=name, kind="fusion", state=state, started_at_s=started_at_s)
        store.put_campaign(run)
    found = newest_fusion_run(store, toy.PLATFORM)
    assert found is not None
    assert found.campaign_id == "new"
    assert newest_fusion_run(store, "other") is None


def test_unstable_answers_to_questions_judge_nobody(store: DuckDBStore) -> None:
    widths = {"asked": 8, "shaky": 9, "planned": 10}
    graphs = {name: toy.network(name, (width,), 12) for name, width in widths.items()}
    told = [
        (toy.measured(graphs["asked"], "query", 2.0, 1), graphs["asked"]),
        (replace(toy.measured(graphs["shaky"], "query", 2.0, 2), unstable=True), graphs["shaky"]),
        (
            replace(toy.measured(graphs["planned"], "network", 2.0, 3), unstable=True),
            graphs["planned"],
        ),
    ]
    store.add_measurements("c", told)
    found = unseen_networks(store, toy.PLATFORM, [])
    assert sorted(network.graph.name for network in found) == ["asked", "planned"]


def test_unstable_answers_judge_where_they_are_usual_on_the_host(store: DuckDBStore) -> None:
    graphs = {name: toy.network(name, (w,), 12) for w, name in enumerate(("usual", "wild"), 8)}
    told = [
        (replace(toy.measured(graph, "query", 2.0, 1), unstable=True, mad_ms=mad_ms), graph)
        for graph, mad_ms in zip(graphs.values(), (0.1, 1.5), strict=True)
    ]
    store.add_measurements("c", told)
    noise = HostNoise(noise=0.03, repeats=20, usual=((math.log(2.0), math.log(0.05), 0.3),))
    found = unseen_networks(store, toy.PLATFORM, [], "", BundleNotes(host_noise=noise))
    assert [network.graph.name for network in found] == ["usual"]
    hopeless = BundleNotes(host_noise=replace(noise, noise=0.2))
    assert unseen_networks(store, toy.PLATFORM, [], "", hopeless) == []
