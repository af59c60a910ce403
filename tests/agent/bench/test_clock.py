"""A lower clock is told apart from a neighbour, and is not taken out of latencies."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.clock import FastestProbe, clock_of, without_clock, without_throttling
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.simulated.cost import exact_latency_ms
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.testing.runtime_suite import PATIENT, measure

PROFILE = {"platform": "sim", "peak_macs_per_ms": 1e6, "bandwidth_bytes_per_ms": 1e6}


def answer(*slowdown: float, clock_mhz: float = 0.0) -> dict[str, Any]:
    """What a worker says of one session."""
    session = {"slowdown": list(slowdown), "slowed_share": 1.0, "clock_mhz": clock_mhz}
    return {"sessions": [session]}


def test_the_clock_of_the_fastest_probe_is_remembered() -> None:
    known = FastestProbe().after(20.0, 2000.0)
    assert known == FastestProbe(20.0, 2000.0)
    assert known.after(20.002, 1000.0) == FastestProbe(20.002, 2000.0), "forgotten a little"
    assert known.after(18.0, 2400.0) == FastestProbe(18.0, 2400.0), "faster than ever"
    assert known.after(0.0, None) is known, "no core computes"


@pytest.mark.parametrize(
    ("clock_mhz", "times"), [(1000.0, 2.0), (1990.0, 1.0), (2400.0, 1.0), (None, None)]
)
def test_how_much_slower_a_clock_makes_the_core(
    clock_mhz: float | None, times: float | None
) -> None:
    assert FastestProbe(20.0, 2000.0).clock_slowdown(clock_mhz) == times
    assert FastestProbe(20.0, None).clock_slowdown(clock_mhz) is None


def test_what_the_clock_explains_is_no_slowdown() -> None:
    conditions: dict[str, str] = {}
    done = answer(2.0, 3.0, 1.9)
    without_clock(done, 2.0, conditions)
    assert conditions == {"clock_slowdown": "2"}
    assert done["sessions"][0]["slowdown"] == [1.0, 1.5, 1.0]
    assert done["sessions"][0]["slowed_share"] == pytest.approx(1 / 3)
    for times, told in ((None, {}), (1.0, {"clock_slowdown": "1"})):
        done, conditions = answer(2.0), {}
        without_clock(done, times, conditions)
        assert (done["sessions"][0]["slowdown"], conditions) == ([2.0], told)


@pytest.mark.parametrize(("times", "left"), [(None, 1.0), (1.0, 1.0), (1.5, 2.0)])
def test_throttling_that_no_clock_shows_is_no_slowdown(times: float | None, left: float) -> None:
    """What is left beside a clock that shows the throttling is a neighbour's."""
    done = answer(2.0)
    without_throttling(done, times)
    session = done["sessions"][0]
    assert (session["slowdown"], session["slowed_share"]) == ([left], float(left > 1.0))


def test_a_runtime_that_knows_its_clock_is_believed() -> None:
    assert clock_of(answer(clock_mhz=1500.0), 900.0) == 1500.0
    assert clock_of(answer(), 900.0) == 900.0
    assert clock_of({"sessions": [{}]}, None) is None


@pytest.mark.usefixtures("no_process_left")
def test_a_simulated_board_tells_neighbour_and_clock_apart(
    tmp_path: Path, conv_graph: Callable[..., Path]
) -> None:
    path = tmp_path / "board.json"
    slow = {"every": 2, "length": 1, "slowdown": 1.5, "felt": 0.5}
    clock = {"every": 4, "length": 2, "factor": 2.0, "mhz": 1800.0}
    path.write_text(json.dumps(dict(PROFILE, neighbour=slow, lower_clock=clock)))
    model = conv_graph(tmp_path / "conv.json")
    exact_ms = exact_latency_ms(json.loads(model.read_text()), BoardProfile.read(path))
    bench = simulated_bench(BenchOptions("one", None, tmp_path / "work"), path)
    try:
        found = [measure(bench, "sim", model) for _ in range(4)]
    finally:
        bench.close()
    assert [result.outcome for result in found] == ["ok"] * 4
    timed = [result.sessions[0].runs_ms[0] / exact_ms for result in found]
    assert timed == pytest.approx([1.0, 1.5**0.5, 2.0, 2.0 * 1.5**0.5])
    slowdown = [result.sessions[0].slowdown[0] for result in found]
    assert slowdown == pytest.approx([1.0, 1.5, 1.0, 1.5], rel=1e-3)
    told = [float(result.conditions["clock_slowdown"]) for result in found]
    assert told == pytest.approx([1.0, 1.0, 2.0, 2.0])


def clocked_bench(folder: Path, bad_runtimes: Path, core: int) -> Bench:
    """A bench of this host whose sensors are files in `root`, and whose runtime tells the clock."""
    options = BenchOptions(
        "board",
        None,
        folder / "work",
        runtimes={"clocked": "bad_runtimes:Clocked"},
        search_path=[bad_runtimes],
        limits=PATIENT,
    )
    return host_bench(options, cpu=core, root=folder / "root")


@pytest.mark.usefixtures("no_process_left")
def test_a_lower_clock_of_the_host_is_told_and_stays_in_the_latency(
    tmp_path: Path, bad_runtimes: Path
) -> None:
    """The clock is read from the files of a kernel; the runtime tells what it does to the probe."""
    core = min(os.sched_getaffinity(0))
    clock = tmp_path / f"root/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"
    clock.parent.mkdir(parents=True)
    model = tmp_path / "model"
    bench = clocked_bench(tmp_path, bad_runtimes, core)
    found = []
    try:
        for mhz, slowdown in ((2000, 1.0), (1250, 1.0), (1250, 1.5), (2000, 1.0)):
            clock.write_text(f"{mhz}000\n")
            model.write_text(f"{mhz} {slowdown}")
            found.append(measure(bench, "board-bad1.0-fp32-1t", model))
    finally:
        bench.close()
    assert [result.error_message for result in found] == [""] * 4
    told = [result.conditions["clock_slowdown"] for result in found]
    assert told == ["1", "1.6", "1.6", "1"]
    timed = [result.sessions[0].runs_ms[0] for result in found]
    assert timed == pytest.approx([2.0, 3.2, 4.8, 2.0])
    left = [result.sessions[-1].slowdown[0] for result in found]
    assert left == pytest.approx([1.0, 1.0, 1.5, 1.0], rel=1e-2), "the neighbour's alone"


@pytest.mark.usefixtures("no_process_left")
def test_throttling_from_before_to_after_is_told_and_stays_in_the_latency(
    tmp_path: Path, bad_runtimes: Path
) -> None:
    """The firmware says that the board throttles, and the clock that it tells stays as it is."""
    core = min(os.sched_getaffinity(0))
    state = tmp_path / "root/sys/devices/platform/soc/soc:firmware/get_throttled"
    state.parent.mkdir(parents=True)
    model = tmp_path / "model"
    bench = clocked_bench(tmp_path, bad_runtimes, core)
    found, described = [], []
    try:
        for flags, mhz, slowdown in (("0", 2000, 1.0), ("4", 1250, 1.0), ("0", 2000, 1.5)):
            state.write_text(f"{flags}\n")
            model.write_text(f"{mhz} {slowdown}")
            found.append(measure(bench, "board-bad1.0-fp32-1t", model))
            described.append(bench.describe()[0].conditions["throttled"])
    finally:
        bench.close()
    assert [result.error_message for result in found] == [""] * 3
    assert [each.conditions["throttled_throughout"] for each in found] == ["no", "yes", "no"]
    assert described == ["no", "yes", "no"]
    left = [result.sessions[-1].slowdown[0] for result in found]
    assert left == pytest.approx([1.0, 1.0, 1.5], rel=1e-2)


@pytest.mark.parametrize(
    "wrong", [{"neighbour": {"slowdown": 0.5}}, {"lower_clock": {"factor": 0}}]
)
def test_a_wrong_neighbour_or_clock_of_a_profile_is_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        BoardProfile.from_json({**PROFILE, **wrong})
