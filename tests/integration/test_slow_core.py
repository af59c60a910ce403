"""A disturbed simulated board, from its worker to the corrected latency; the truth is known."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from latfarm_agent import wire as agent_wire
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.testing.runtime_suite import measure
from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.results import measurement_from_pb
from latfarm_controller.agents.statistics import exponent
from latfarm_controller.agents.wire import board_from_pb
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.slow_core import LEAST_PAIRS, felt
from latfarm_controller.cli.shell.output import clock_note
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.reports.facts.conduct import conditions
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.slow_core import AS_TOLD, SlowCore, clock_slowdown_of, slowdown_of
from latfarm_protos.v1 import agent_pb2 as pb

SLOWDOWN = 1.7
"""How many times slower the neighbour makes the core."""
PROFILE = {
    "platform": "sim",
    "peak_macs_per_ms": 5e7,
    "bandwidth_bytes_per_ms": 1e9,
    "noise": 0.002,
}


def convs() -> list[Graph]:
    """Models that compute; an odd number, so that each is measured disturbed every other time."""
    found = []
    for channels in (48, 64, 80, 96, 112):
        b = GraphBuilder(f"conv{channels}")
        found.append(b.build([b.conv(b.input((1, channels, 28, 28)), channels, 3)]))
    return found


def described(bench: Bench) -> BoardInfo:
    """What the controller knows of a board."""
    board, runtimes = bench.describe()
    return board_from_pb(
        pb.DescribeResponse(
            board=agent_wire.board_as_pb(board),
            runtimes=[agent_wire.runtime_as_pb(runtime) for runtime in runtimes],
        )
    )


def measured(
    folder: Path, passes: int, **profile: Any
) -> tuple[list[Measurement], dict[str, float]]:
    """All models in several passes, and the true latency of each in ms, by the graph's hash."""
    path = folder / "board.json"
    path.write_text(json.dumps({**PROFILE, **profile}))
    bench = simulated_bench(BenchOptions("one", None, folder / "work"), path)
    found: list[Measurement] = []
    truth: dict[str, float] = {}
    try:
        for number in range(passes):
            for graph in convs():
                model = folder / f"{graph.name}.json"
                model.write_text(graph.dumps())
                asked = BoardRequest.of(
                    MeasurementRequest(graph, "sim", "kernel", Settings(), repeat=number)
                )
                result = measure(bench, "sim", model, request_id=asked.request_id)
                told = agent_wire.result_as_pb(result)
                answer = measurement_from_pb(told, asked, described(bench))
                found.append(answer)
                truth[answer.graph_hash] = exact_latency_ms(
                    json.loads(model.read_text()), BoardProfile.read(path)
                )
    finally:
        bench.close()
    assert all(m.ok for m in found)
    return found, truth


def off(found: list[Measurement], truth: dict[str, float], core: SlowCore) -> list[float]:
    """How far corrected latencies are from the truth, as shares."""
    return [
        told.corrected_ms / truth[m.graph_hash] - 1.0
        for m in found
        if (told := core.latency(m)) is not None
    ]


def test_a_neighbour_that_slows_by_a_known_factor_is_removed(tmp_path: Path) -> None:
    asked = [BoardRequest.of(MeasurementRequest(g, "sim", "k", Settings())) for g in convs()]
    assumed = [exponent(each.graph.macs, each.graph.traffic_bytes) for each in asked]
    assert max(assumed) - min(assumed) < 0.02
    power = sum(assumed) / len(assumed)
    slow = {"every": 2, "length": 1, "slowdown": SLOWDOWN, "felt": power}
    found, truth = measured(tmp_path, 2, neighbour=slow)
    assert {round(slowdown_of(m), 2) for m in found} == {1.0, SLOWDOWN}
    assert off(found, truth, AS_TOLD) == pytest.approx([0.0] * len(found), abs=0.01)
    for m in found:
        told = AS_TOLD.latency(m)
        assert told is not None
        times = slowdown_of(m) ** power
        assert told.timed_ms == pytest.approx(times * truth[m.graph_hash], rel=0.01)


def test_what_a_runtime_feels_otherwise_is_learned_and_removed(tmp_path: Path) -> None:
    slow = {"every": 2, "length": 1, "slowdown": SLOWDOWN, "felt": 0.4}
    found, truth = measured(tmp_path, 8, neighbour=slow)
    wrong = off(found, truth, AS_TOLD)
    assert min(wrong) < -0.15, "the assumed exponent takes too much out"
    core = felt(found)
    assert core.pairs >= LEAST_PAIRS
    assert core.shift == pytest.approx(-0.38, abs=0.03)
    assert off(found, truth, core) == pytest.approx([0.0] * len(found), abs=0.015)


def test_a_lower_clock_is_reported_and_not_divided_out(tmp_path: Path) -> None:
    clock = {"every": 2, "length": 1, "factor": 1.6, "mhz": 1800.0}
    found, truth = measured(tmp_path, 2, lower_clock=clock)
    lower = [m for m in found if clock_slowdown_of(m) == pytest.approx(1.6)]
    assert len(lower) == len(found) // 2
    for m in lower:
        told = AS_TOLD.latency(m)
        assert told is not None
        assert told.slowdown == 1.0
        assert told.corrected_ms == pytest.approx(1.6 * truth[m.graph_hash], rel=0.01)
        assert told.timed_ms == pytest.approx(told.corrected_ms, rel=0.01)


def test_a_neighbour_on_a_lower_clock_is_removed_and_the_clock_is_not(tmp_path: Path) -> None:
    power = median(exponent(macs_of(graph), graph.traffic_bytes) for graph in convs())
    slow = {"every": 2, "length": 1, "slowdown": SLOWDOWN, "felt": power}
    clock = {"every": 4, "length": 2, "factor": 1.6, "mhz": 1800.0}
    found, truth = measured(tmp_path, 4, neighbour=slow, lower_clock=clock)
    seen = set()
    for m in found:
        told, times = AS_TOLD.latency(m), clock_slowdown_of(m)
        assert told is not None
        assert times is not None
        seen.add((round(told.slowdown, 2), round(times, 2)))
        assert told.corrected_ms == pytest.approx(times * truth[m.graph_hash], rel=0.015)
        felt_ms = times * told.slowdown**power * truth[m.graph_hash]
        assert told.timed_ms == pytest.approx(felt_ms, rel=0.02)
    assert seen == {(1.0, 1.0), (SLOWDOWN, 1.0), (1.0, 1.6), (SLOWDOWN, 1.6)}
    # The report counts lower clocks, and a query tells one beside its latency.
    clocks = conditions(found)["clock"]
    assert (clocks["compared"], clocks["lower"]) == (len(found), len(found) // 2)
    assert clocks["worst_slowdown"] == pytest.approx(1.6)
    notes = {clock_note(m) for m in found}
    assert notes == {"", "its clock was 1.60 times lower, which is not corrected"}


def test_throttling_that_no_sensor_shows_stays_in_the_latency(tmp_path: Path) -> None:
    silent = {"every": 2, "length": 1, "factor": 1.5, "reported": False}
    found, truth = measured(tmp_path, 2, throttle=silent)
    times = [told.corrected_ms / truth[m.graph_hash] for m in found if (told := AS_TOLD.latency(m))]
    assert sorted(round(each, 1) for each in times) == [1.0] * 5 + [1.5] * 5
    assert all(slowdown_of(m) == 1.0 for m in found)


def test_throttling_that_the_board_reports_is_a_typed_failure(tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps({**PROFILE, "throttle": {"every": 1, "length": 1}}))
    graph = convs()[0]
    model = tmp_path / "conv.json"
    model.write_text(graph.dumps())
    bench = simulated_bench(BenchOptions("one", None, tmp_path / "work"), path)
    asked = BoardRequest.of(MeasurementRequest(graph, "sim", "kernel", Settings()))
    try:
        result = measure(bench, "sim", model, request_id=asked.request_id)
    finally:
        bench.close()
    answer = measurement_from_pb(agent_wire.result_as_pb(result), asked, described(bench))
    assert (answer.ok, answer.error_code) == (False, "THROTTLED")
    assert AS_TOLD.latency(answer) is None
