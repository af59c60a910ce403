"""Facts about a campaign: rounds, failures and sensors, with missing ones counted as unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest
from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.reports.facts import methods
from latfarm_controller.reports.facts.accuracy import network_family, repeat_scores, scores
from latfarm_controller.reports.facts.conduct import conditions, drift, failures
from latfarm_controller.reports.facts.fusion import case_scores, judged
from latfarm_controller.reports.facts.platform_record import PlatformRecord
from latfarm_controller.reports.pages import conduct as html_conduct
from latfarm_controller.reports.pages import words
from latfarm_controller.reports.pages.plot_stairs import nice_ticks
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from tests.controller.reports import toy


def passes(*rounds: tuple[int, ...]) -> list[Measurement]:
    """Measurements of numbered kernels, in rounds of two passes."""
    numbers = [n for kernels in rounds for _ in range(2) for n in kernels]
    return [toy.measured(toy.conv(4, 8 + n, 7), "kernel", 1.0, i) for i, n in enumerate(numbers)]


def test_rounds_are_seen_in_the_order_of_passes() -> None:
    again = toy.measured(toy.conv(4, 9, 7), "kernel", 1.0, 99)
    found = methods.rounds([*passes((0, 1, 2), (3, 4)), again])
    assert [(r["kernels"], r["measurements"]) for r in found] == [(3, 6), (2, 5)]
    assert found[0]["board_ms"] == pytest.approx(300.0)
    assert methods.rounds([]) == []
    once = passes((0, 1))[:2]
    assert [r["kernels"] for r in methods.rounds(once)] == [2]


def test_a_missing_sensor_counts_as_unknown() -> None:
    graph = toy.conv(4, 8, 7)
    silent = [
        toy.measured(graph, "kernel", 1.0, n, conditions={"throttling": "unknown"}) for n in (1, 2)
    ]
    told = conditions(silent)
    assert told["throttling"] == told["throttled_throughout"] == {"known": 0, "throttled": 0}
    assert told["clock"]["worst_drop"] is None
    core = {"shift": 0.0, "error": 0.0, "pairs": 0}
    drift = {"sentinels": [], "void": 0, "measured_again": 0, "left_out": {}, "slow_core": core}
    page = html_conduct.conditions(told, drift)
    assert page.count("unknown: there is no sensor") == 2
    assert "assumed" not in page
    for shift, said in ((0.0, "as assumed"), (-0.2, "less than assumed")):
        core.update(shift=shift, pairs=40)
        assert f"{said}, by 40 repeats" in html_conduct.conditions(told, drift)


def test_boards_that_throttle_all_the_time_are_told() -> None:
    graph = toy.conv(4, 8, 7)
    found = [
        toy.measured(graph, "kernel", 1.0, number, conditions=seen)
        for number, seen in enumerate(
            (
                {"throttled_throughout": "yes"},
                {"throttled_throughout": "no", "gpu_throttled_throughout": "no; yes"},
                {"throttled_throughout": "no"},
                {},
            )
        )
    ]
    told = conditions(found)
    assert told["throttled_throughout"] == {"known": 3, "throttled": 2}
    page = html_conduct.conditions(told, drift(PlatformRecord("p")))
    assert "2 of 3 (1 unknown)" in page
    assert "all the time" in page
    silent = html_conduct.conditions(conditions(found[3:]), drift(PlatformRecord("p")))
    assert "all the time" not in silent


def test_throttling_and_clock_drops_are_counted() -> None:
    graph = toy.conv(4, 8, 7)
    seen = {"throttling": "3", "clock_mhz_before": "2000", "clock_mhz_after": "1500"}
    found = [
        toy.measured(graph, "kernel", 1.0, 1, conditions=seen, rejected_runs=4, unstable=True),
        toy.measured(graph, "kernel", 1.0, 2),
    ]
    told = conditions(found)
    assert told["throttling"] == {"known": 2, "throttled": 1}
    assert (told["clock"]["known"], told["clock"]["dropped"]) == (2, 1)
    assert told["clock"]["worst_drop"] == pytest.approx(0.25)
    assert (told["rejected_runs"], told["unstable"]) == (4, 1)
    assert told["clock"]["compared"] == 0
    ranges = {row["sensor"]: row for row in told["sensors"]}
    assert (ranges["clock_mhz_after"]["least"], ranges["clock_mhz_after"]["most"]) == (1500, 1990)
    assert ranges["governor"]["known"] == 0


def test_failures_are_sorted_by_how_many() -> None:
    graph = toy.conv(4, 8, 7)
    rare = toy.failed(graph, "fusion", 1, "MODEL_TIMEOUT", "late")
    often = [toy.failed(toy.conv(4, 8 + n, 7), "kernel", n, "MODEL_ERROR", "") for n in (2, 3)]
    found = failures([rare, *often, toy.measured(graph, "kernel", 1.0, 4)])
    assert [(f["code"], f["count"], f["graphs"]) for f in found] == [
        ("MODEL_ERROR", 2, 2),
        ("MODEL_TIMEOUT", 1, 1),
    ]
    assert found[0]["example"] == ""


def test_padded_and_single_times_are_compared_with_the_profiler() -> None:
    graphs = toy.kernels()[:5]
    shown = [ProfiledLayer("a", "Conv", 1.0), ProfiledLayer("b", "Reorder", 9.0)]
    measured = [
        toy.measured(
            graph,
            "kernel",
            3.0 + n % 2,
            n,
            layers=(replace(shown[0], latency_ms=1.0 + n), shown[1]),
        )
        for n, graph in enumerate(graphs)
    ]
    times = {hash_of(g): {"latency_ms": 2.0 * (1.0 + n)} for n, g in enumerate(graphs)}
    campaign = toy.campaign(outcome={"padding": {"times": times}})
    record = PlatformRecord("toy", campaign, measured={"kernel": measured})
    padded, single = methods.beside_profile(record)
    assert (padded["insight"], padded["kernels"]) == ("padded", 5)
    assert padded["pearson"] == pytest.approx(1.0)
    assert padded["median_ratio"] == pytest.approx(2.0)
    assert single["insight"] == "single"
    assert abs(single["pearson"]) < 0.5
    page = html_conduct.insight(methods.insight(record) | {"counts": {"padded": 5}})
    assert "1.000" in page


def test_a_profile_is_compared_in_the_unit_of_the_latency() -> None:
    slow = {"slowdown": "2", "uncorrected_ms": "6"}
    layers = (ProfiledLayer("a", "Conv", 4.0), ProfiledLayer("b", "Reorder", 2.0))
    kernel = toy.kernels()[0]
    told = toy.measured(kernel, "kernel", 3.0, 0, layers=layers, conditions=slow)
    assert methods.profile_ms(told) == pytest.approx(2.0), "4 ms are as timed on a slow core"
    assert methods.profile_ms(replace(told, conditions={})) == pytest.approx(4.0)


def test_correlation_of_something_constant_is_undefined() -> None:
    assert methods.pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert methods.pearson([1, 1, 1], [3, 2, 1]) is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("mobilenet-v2-x0.75-192px", "mobilenet"),
        ("resnet18-3", "resnet"),
        ("synthetic@1-x0.35", "synthetic"),
        ("alexnet", "alexnet"),
        ("my-model.onnx", "other models"),
        ("", "other models"),
    ],
)
def test_networks_have_the_family_of_their_line(name: str, family: str) -> None:
    assert network_family(name) == family


def test_scores_are_those_of_table_8() -> None:
    found = scores([1.1, 0.96, 2.0], [1.0, 1.0, 1.0])
    assert found["within5"] == pytest.approx(1 / 3)
    assert found["within10"] == pytest.approx(2 / 3)
    assert found["mape"] == pytest.approx((0.1 + 0.04 + 1.0) / 3)
    assert repeat_scores([[1.0], [2.0]]) is None
    again = repeat_scores([[1.0, 1.2], [2.0, 5.0, 2.0], [3.0]])
    assert again is not None
    assert (again["count"], again["within10"]) == (2, 0.5)


@pytest.mark.parametrize(
    ("truth", "found", "answer"),
    [
        (None, "fused", ""),
        (True, "fused", "hit"),
        (True, "separate", "miss"),
        (False, "fused", "false"),
        (False, "separate", "right"),
        (True, "undecided", "undecided"),
    ],
)
def test_times_are_judged_by_the_profile(truth: bool | None, found: str, answer: str) -> None:
    assert judged(truth, found) == answer


def test_precision_and_recall_of_a_pair_are_over_its_cases() -> None:
    assert case_scores(True, ["fused", "undecided"]) == {"precision": 1.0, "recall": 0.5}
    assert case_scores(False, ["fused", "separate"]) == {"precision": 0.0, "recall": None}
    assert case_scores(True, ["separate"]) == {"precision": None, "recall": 0.0}
    assert case_scores(None, ["fused"]) == {"precision": None, "recall": None}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0421, "0.0421"), (1.2, "1.200"), (12.345, "12.35"), (123.45, "123.5"), (12345.6, "12,346")],
)
def test_latencies_are_written_alike(value: float, text: str) -> None:
    assert words.ms(value) == text
    assert words.ms(None) == words.NONE


def test_durations_and_shares_are_written_in_their_unit() -> None:
    assert [words.time(t) for t in (5, 5e3, 6e5, 9e6)] == ["5 ms", "5 s", "10 min", "2.5 h"]
    assert (words.percent(0.123), words.percent(None), words.percent(38.66)) == (
        "12.3 %",
        words.NONE,
        "3866 %",
    )


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.8), (7.0, 312.0), (0.0, 3e-5), (5.0, 6.0)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert 2 <= len(ticks) <= 8
    assert all(low <= tick <= high * 1.0001 for tick in ticks)
    assert nice_ticks(3.0, 3.0) == [3.0]


def test_a_lower_clock_and_the_noise_of_the_host_are_told() -> None:
    graph = toy.conv(4, 8, 7)
    found = [
        toy.measured(graph, "kernel", 1.0, number, conditions={"clock_slowdown": times})
        for number, times in enumerate(("1", "1.5", "1.01", "unknown"))
    ]
    told = conditions(found)
    clock = told["clock"]
    assert (clock["compared"], clock["lower"], clock["worst_slowdown"]) == (3, 1, 1.5)
    noise = HostNoise(0.2, 40, None, ((0.0, -3.0, 0.3),))
    counts = {"steady": 1, "usual": 0, "doubtful": 884}
    record = PlatformRecord("p", provenance={"host_noise": noise.to_json(), "steadiness": counts})
    facts = drift(record)
    page = html_conduct.conditions(told, facts)
    assert "1 of 3 (1 unknown), at worst 1.50 times slower" in page
    assert "nothing that is unstable here can be trusted" in page
    assert "1 steady, 0 usual, 884 doubtful" in page
    assert "nothing" not in html_conduct.conditions(told, drift(PlatformRecord("p")))
