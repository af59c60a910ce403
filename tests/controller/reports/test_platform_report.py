"""A platform's report: its facts, and a page that is correct for any data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from latfarm_controller.app import reporting
from latfarm_controller.errors import UsageError
from latfarm_controller.reports.facts.accuracy import network_accuracy
from latfarm_controller.reports.facts.fusion import fusion_facts
from latfarm_controller.reports.facts.platform_record import PlatformRecord
from latfarm_controller.reports.facts.staircases import learned_ms, rows_of, staircases
from latfarm_controller.reports.pages import words
from latfarm_controller.reports.pages.plot_stairs import stairs
from latfarm_controller.reports.platform_report import platform_facts, render
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

from tests.controller.reports import toy
from tests.controller.reports.parsed_page import Page

HOSTILE = "<script>alert(\"x\")</script>' onload='&amp;</title></svg>"


@pytest.fixture(scope="module")
def facts(lab: toy.Lab) -> dict[str, Any]:
    found = reporting.report(lab.store, lab.bundles, toy.PLATFORM)
    return dict(json.loads(json.dumps(found)))


@pytest.fixture(scope="module")
def html(facts: dict[str, Any]) -> str:
    return render(facts)


def svgs(html: str) -> list[ElementTree.Element]:
    parts = html.split("<svg ")[1:]
    return [ElementTree.fromstring("<svg " + part.split("</svg>")[0] + "</svg>") for part in parts]


def test_the_page_stands_alone(html: str) -> None:
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "form"}
    for _, attrs in page.tags:
        assert "src" not in attrs
        assert not any(name.startswith("on") for name in attrs)
        assert str(attrs.get("href", "#")).startswith("#")
    assert "@import" not in html
    assert "url(http" not in html
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"}
    assert links <= set(ids)
    assert {"networks", "staircases", "kernels", "fusion", "trust", "failures"} <= links


def test_plots_are_xml_and_tell_what_they_show(html: str) -> None:
    plots = [plot for plot in svgs(html) if plot.get("role") == "img"]
    assert len(plots) >= 4
    named = [plot for plot in plots if plot.get("aria-labelledby")]
    assert len(named) >= 3
    for plot in named:
        title, desc = (plot.find(tag) for tag in ("title", "desc"))
        assert title is not None
        assert desc is not None
        assert f"{title.get('id')} {desc.get('id')}" == plot.get("aria-labelledby")
        assert len((desc.text or "").split()) > 5


def test_dark_and_light_are_both_there(html: str) -> None:
    assert "color-scheme:light dark" in html
    assert "prefers-color-scheme:dark" in html
    style = html.split("<style>")[1].split("</style>")[0]
    assert "#" not in html.replace(style, "").replace("&#", "").replace('href="#', "").replace(
        "url(#", ""
    ), "a colour that no mode changes"


def test_staircases_show_every_point_of_their_data(facts: dict[str, Any], html: str) -> None:
    entries = facts["staircases"]
    assert {entry["axis"] for entry in entries} == {"out_channels", "in_channels", "spatial"}
    first = entries[0]
    assert first["type"] == "Conv+Relu"
    assert first["held"] == "map 14 x 14, 16 in, kernel 3x3"
    assert first["exact"] == 11
    assert first["near"] == 2
    for entry in entries:
        exact = [point for point in entry["points"] if point["exact"]]
        assert len(exact) == entry["exact"]
        assert len(entry["points"]) == entry["exact"] + entry["near"]
        assert all(point["shown_ms"] == point["latency_ms"] for point in exact)
        curve = entry["curve"]
        for low, middle, high in zip(
            curve["low_ms"], curve["latency_ms"], curve["high_ms"], strict=True
        ):
            assert low <= middle <= high
    page = Page(html)
    samples = 1  # one in the legend
    assert page.count("circle", "on") == sum(e["exact"] for e in entries) + samples
    assert page.count("circle", "near") == sum(e["near"] for e in entries) + samples
    assert page.count("polyline", "curve") == len(entries)
    assert page.count("polyline", "forest") == len(entries)


def test_points_lie_where_the_board_measured_them(facts: dict[str, Any]) -> None:
    first = facts["staircases"][0]
    for point in first["points"]:
        if point["exact"]:
            own = toy.truth_ms(toy.conv(16, point["place"], 14))
            assert point["latency_ms"] == pytest.approx(own, rel=0.02)


def test_points_are_shown_as_the_predictor_learned_them(
    lab: toy.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training makes latencies of kernels alone those of kernels inside networks."""
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    predictor = found.predictor
    assert predictor is not None
    evidence = predictor.confidence
    assert evidence is not None
    rows = rows_of(found.kernels, found.call_overhead_ms)
    measured = [row.latency_ms for row in rows]
    assert learned_ms(predictor, rows) == measured
    entry = staircases(found)[0]
    before = [point["shown_ms"] for point in entry["points"]]
    slower = replace(evidence, latency_ms=1.25 * evidence.latency_ms)
    monkeypatch.setattr(predictor, "confidence", slower)
    shown = [1.25 * latency_ms for latency_ms in measured]
    assert learned_ms(predictor, rows) == pytest.approx(shown, rel=0.01)
    entry = staircases(found)[0]
    after = [point["shown_ms"] for point in entry["points"]]
    assert after == pytest.approx([1.25 * shown_ms for shown_ms in before], rel=0.01)
    (circle, *_) = [point for point in entry["points"] if point["exact"]]
    assert circle["latency_ms"] == pytest.approx(before[0], rel=0.01)
    assert f"shown at {words.ms(circle['shown_ms'])} ms" in stairs(entry, 1)
    monkeypatch.setattr(predictor, "confidence", None)
    assert learned_ms(predictor, rows) == measured


def test_kernels_inside_networks_are_drawn_without_their_times_alone() -> None:
    kernel = Kernel(toy.conv(8, 16, 14))
    inside = KernelSample(kernel, 2.0, insight="profile", network="n")
    alone = [KernelSample(kernel, 3.0 + n, insight="profile") for n in range(3)]
    (row,) = rows_of([*alone, inside], 0.0)
    assert (row.latency_ms, row.measurements) == (2.0, 1)


def test_unseen_networks_stand_beside_every_baseline(facts: dict[str, Any], html: str) -> None:
    unseen = facts["networks"]["unseen"]
    assert {row["network"] for row in unseen["networks"]} == {"mine-0", "mine-1", "mine-2"}
    assert set(unseen["methods"]) == {"latfarm", *BASELINES}
    for row in unseen["networks"]:
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["measured_ms"] - 1)
    errors = [row["error"] for row in unseen["networks"]]
    ours = unseen["methods"]["latfarm"]
    assert ours["mape"] == pytest.approx(sum(map(abs, errors)) / 3)
    assert ours["rmspe"] == pytest.approx((sum(e * e for e in errors) / 3) ** 0.5)
    text = "".join(Page(html).text)
    assert f"{100 * ours['mape']:.1f} %" in text
    assert unseen["repeat"] is None
    assert unseen["perfect"] is None, "a single pass tells nothing about noise"
    assert set(unseen["leads"]) == set(BASELINES)
    assert unseen["methods"]["latfarm"]["within10_interval"][0] < ours["within10"]


def test_calibration_networks_are_left_out_in_turn(facts: dict[str, Any]) -> None:
    told = facts["networks"]["calibration"]
    assert told["methods"]["latfarm"]["count"] == 10
    assert [row["family"] for row in told["families"]] == ["resnet"]
    assert told["repeat"]["rmspe"] == pytest.approx(0.0, abs=1e-9)
    assert {"forest", "roofline", "lookup", "sum", "flops"} <= set(told["methods"])
    # A look-up table that had seen these kernels would have no error at all.
    assert told["methods"]["lookup"]["mape"] > 0.01
    assert 0 <= told["inside"] <= 1
    assert told["width"] > 0


def test_kernels_are_judged_by_family(facts: dict[str, Any]) -> None:
    told = facts["kernels"]
    assert {row["family"]: row["count"] for row in told["families"]} == {"conv": 22, "dwconv": 11}
    assert told["methods"]["latfarm"]["count"] == 33
    assert told["methods"]["latfarm"]["mape"] < told["methods"]["lookup"]["mape"]
    assert told["repeat"]["count"] == 33
    assert told["repeat"]["mape"] == pytest.approx(0.01, rel=0.01)


def test_the_matrix_is_that_of_the_data(facts: dict[str, Any], html: str) -> None:
    told = facts["fusion"]
    assert told["counts"] == {"fused": 1, "separate": 1, "undecided": 1, "not run": 3}
    assert told["firsts"] == ["Conv", "Relu", "MaxPool"]
    assert told["seconds"] == ["Conv", "Relu"]
    by_pair = {(p["first"], p["second"]): p for p in told["pairs"]}
    right = by_pair["Conv", "Relu"]
    assert (right["precision"], right["recall"], right["judged"]) == (1.0, 0.5, "hit")
    wrong = by_pair["Relu", "Conv"]
    assert (wrong["precision"], wrong["recall"], wrong["judged"]) == (0.0, None, "false")
    assert [p["first"] for p in told["disagreements"]] == ["Relu"]
    page, samples = Page(html), 1
    assert page.count("rect", "fused") == 1 + samples
    assert page.count("rect", "separate") == 1 + samples
    assert page.count("rect", "undecided") == 1 + samples
    assert page.count("circle", "not-run") == 3 + samples
    assert page.count("circle", "wrong") == 1 + samples
    text = "".join(page.text)
    assert "0.0721" in text, "the times behind a disagreement"
    assert "it would not run" in text


def test_pairs_that_networks_put_right_are_listed(lab: toy.Lab) -> None:
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    shown = {"verdict": "fused", "fused": 21, "apart": 19}
    told = {**found.provenance, "overruled": {"Conv+HardSwish": shown}}
    facts = platform_facts(replace(found, provenance=told))
    text = " ".join(Page(render(facts)).text)
    assert "Corrected by profiles of networks" in text
    assert "Conv > HardSwish together 21 19" in " ".join(text.split())


def test_badly_covered_layers_name_their_command(facts: dict[str, Any], html: str) -> None:
    told = facts["trust"]
    assert told["missing"] == ""
    assert told["of_unseen"]
    assert {each["network"] for each in told["networks"]} == {"mine-0", "mine-1", "mine-2"}
    text = "".join(Page(html).text)
    for each in told["networks"]:
        assert set(each["paper"]) == {"CM_TV", "CM_LV", "CM_O"}
        assert all(paper["label"] == "uncalibrated" for paper in each["paper"].values())
        for layer in each["worst"]:
            assert layer["remedy"].startswith("latfarm cover ")
            assert layer["remedy"] in text
    assert "CM_TV, uncalibrated" in text
    assert told["platform"]["whole"]["measured"] == 33


def test_insight_sampling_cost_and_failures(facts: dict[str, Any], html: str) -> None:
    insight = facts["insight"]
    assert insight["chosen"] == "profile"
    single = {each["insight"]: each for each in insight["beside_profile"]}["single"]
    assert single["kernels"] == 33
    assert single["pearson"] == pytest.approx(1.0, abs=1e-3)
    sampling = facts["sampling"]
    assert sampling["target_met"] is True
    assert [(r["kernels"], r["measurements"]) for r in sampling["rounds"]] == [(34, 67)]
    assert facts["duration"]["measurements"] == 67 + 20
    assert facts["duration"]["board_ms"] == pytest.approx(50.0 * 87)
    (failure,) = facts["failures"]
    assert (failure["code"], failure["count"]) == ("MODEL_UNSUPPORTED", 1)
    assert facts["conditions"]["throttling"] == {"known": 86, "throttled": 0}
    assert facts["conditions"]["clock"]["worst_drop"] == pytest.approx(0.005)
    text = "".join(Page(html).text)
    assert "no <i>such</i> op" in text
    assert "90 % within 10 %: met, 93.0 % reached by 57 kernels kept back" in text
    assert "95 % interval 83 % to 98 %" in text
    assert "0 of 86" in text


def test_the_same_facts_make_the_same_page(facts: dict[str, Any], html: str) -> None:
    assert render(json.loads(json.dumps(facts))) == html


def poisoned(data: Any, keys: frozenset[str]) -> Any:
    """Facts with hostile text in all places where names from other people can appear."""

    def text(key: str, value: Any) -> Any:
        if key in keys and isinstance(value, str):
            return HOSTILE + value
        if key in keys and isinstance(value, list) and all(isinstance(v, str) for v in value):
            return [HOSTILE + each for each in value]
        return poisoned(value, keys)

    if isinstance(data, dict):
        named = {"types", "left_out", "boards", "fingerprints", "configuration"}
        return {
            key: {HOSTILE + k: v for k, v in value.items()}
            if key in named and isinstance(value, dict) and key in keys
            else text(key, value)
            for key, value in data.items()
        }
    return [poisoned(each, keys) for each in data] if isinstance(data, list) else data


STRANGERS = frozenset(
    (
        *("platform", "bundle", "name", "network", "family", "type", "held", "first", "second"),
        *("firsts", "seconds", "error", "source", "used", "time_fused", "case", "answer", "kind"),
        *("remedy", "what", "outside", "told", "missing", "unsupported", "example", "code"),
        *("outcome", "purpose", "reason", "asked", "sampler", "guide", "from_bundle", "stopped"),
        *("board_id", "sensor", "values", "state", "profile", "types", "left_out", "configuration"),
    )
)


def test_hostile_names_stay_text(facts: dict[str, Any]) -> None:
    bad = poisoned(facts, STRANGERS)
    bad["told"] = [HOSTILE]
    html = render(bad)
    page = Page(html)
    assert "<script" not in html
    assert not any(tag == "script" for tag, _ in page.tags)
    assert all(not name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert html.count("</title>") == html.count("<title")
    assert "".join(page.text).count("<script>alert") > 30


def test_a_platform_of_which_nothing_is_known() -> None:
    facts = platform_facts(PlatformRecord("empty"), now_s=0.0)
    html = render(json.loads(json.dumps(facts)))
    page = Page(html)
    assert "no predictor yet" in "".join(page.text)
    assert not any(tag in ("svg", "table", "nav") for tag, _ in page.tags)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store.duckdb") as found:
        yield found


def test_failures_alone_are_a_report(store: DuckDBStore, tmp_path: Path) -> None:
    graph = toy.conv(3, 8, 9)
    store.put_campaign(toy.campaign(state="failed", error="no <b>board</b> left", outcome={}))
    bad = [(toy.failed(graph, "fusion", n, "MODEL_TIMEOUT", "too slow"), graph) for n in range(3)]
    store.add_measurements(toy.CAMPAIGN, bad)
    facts = reporting.report(store, tmp_path / "bundles", toy.PLATFORM)
    assert facts["failures"] == [
        {
            "outcome": "model_error",
            "code": "MODEL_TIMEOUT",
            "purpose": "fusion",
            "count": 3,
            "graphs": 1,
            "example": "too slow",
        }
    ]
    text = "".join(Page(render(facts)).text)
    assert "no <b>board</b> left" in text
    assert "MODEL_TIMEOUT" in text
    assert facts["kernels"] is None
    assert facts["trust"] is None


def test_a_tiny_store_tells_what_it_has(store: DuckDBStore, tmp_path: Path) -> None:
    graphs = [toy.conv(3, 8 * n, 9) for n in (1, 2, 3)]
    store.put_campaign(toy.campaign(state="running"))
    store.add_measurements(
        toy.CAMPAIGN, [(toy.measured(g, "kernel", 0.5, n), g) for n, g in enumerate(graphs)]
    )
    facts = reporting.report(store, tmp_path / "bundles", toy.PLATFORM)
    assert facts["networks"] == {"unseen": None, "calibration": None, "refused": []}
    assert facts["insight"]["counts"] == {"single": 3}
    assert len(facts["told"]) == 2
    text = "".join(Page(render(facts)).text)
    assert "Campaign toy is running" in text


def test_a_bundle_from_elsewhere_needs_no_campaign(lab: toy.Lab, store: DuckDBStore) -> None:
    found = reporting.record(store, lab.bundles, toy.PLATFORM)
    assert found.campaign is None
    assert "the bundle was made elsewhere" in found.told[0]
    fusion = fusion_facts(found)
    assert fusion is not None
    assert fusion["counts"]["fused"] == 1
    assert fusion["black_box"] is None
    assert staircases(found) == []
    assert network_accuracy(found, []) == {"unseen": None, "calibration": None, "refused": []}


def test_a_damaged_bundle_is_told(lab: toy.Lab, tmp_path: Path) -> None:
    path = tmp_path / toy.PLATFORM / "0001.zip"
    path.parent.mkdir()
    path.write_bytes(b"no archive")
    found = reporting.record(lab.store, tmp_path, toy.PLATFORM)
    assert found.predictor is None
    assert "cannot be read" in found.told[0]


def test_unknown_platforms_and_campaigns_are_named(lab: toy.Lab) -> None:
    with pytest.raises(
        UsageError, match=f"nothing is known about platform 'x'; known platforms: .*{toy.PLATFORM}"
    ):
        reporting.report(lab.store, lab.bundles, "x")
    with pytest.raises(UsageError, match="no campaign 'nope'"):
        reporting.report(lab.store, lab.bundles, toy.PLATFORM, "nope")


def test_a_network_that_was_calibrated_with_is_no_unseen_one(lab: toy.Lab) -> None:
    found = reporting.record(lab.store, lab.bundles, toy.PLATFORM)
    assert {n.graph.name for n in found.unseen} == {"mine-0", "mine-1", "mine-2"}
    assert len(found.calibration) == 10
