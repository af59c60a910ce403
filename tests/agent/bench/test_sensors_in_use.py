"""What the bench does with sensors; the sensors are files that the test writes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_agent.bench import readiness
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchStage
from latfarm_agent.board.conditions import SensorReading, Sensors
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, measure
from latfarm_agent.worker.rules import UNSET

PLATFORM = "board-bad1.0-fp32-1t"
CPU = "sys/devices/system/cpu"

pytestmark = pytest.mark.usefixtures("no_process_left")


class Board:
    """A bench, and the files that its sensors read."""

    def __init__(self, folder: Path, plugins: Path, core: int) -> None:
        self.root = folder / "root"
        self.core = core
        self.model = folder / "model"
        self.model.write_bytes(b"any")
        self.bench = host_bench(
            BenchOptions(
                "board",
                None,
                folder / "work",
                runtimes={"own": "bad_runtimes:Own"},
                search_path=[plugins],
                limits=PATIENT,
            ),
            cpu=core,
            root=self.root,
        )

    def put(self, path: str, value: int) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def clock(self, mhz: int) -> None:
        self.put(f"{CPU}/cpu{self.core}/cpufreq/scaling_cur_freq", mhz * 1000)

    def throttles(self, count: int) -> None:
        self.put(f"{CPU}/cpu{self.core}/thermal_throttle/core_throttle_count", count)

    def temperature(self, celsius: int) -> None:
        self.put("sys/class/thermal/thermal_zone0/temp", celsius * 1000)


@pytest.fixture
def board(tmp_path: Path, bad_runtimes: Path) -> Iterator[Board]:
    made = Board(tmp_path, bad_runtimes, min(os.sched_getaffinity(0)))
    yield made
    made.bench.close()


def test_readings_before_and_after(board: Board) -> None:
    board.clock(1500)
    board.temperature(40)

    def heat(stage: BenchStage) -> None:
        board.temperature(45)
        board.clock(1400)

    result = measure(board.bench, PLATFORM, board.model, on_stage=heat)
    assert result.outcome == "ok", result.error_message
    found = result.conditions
    assert (found["temperature_c_before"], found["temperature_c_after"]) == ("40", "45")
    assert (found["clock_mhz_before"], found["clock_mhz_after"]) == ("1500", "1400")


def test_a_board_that_throttles_is_rejected_with_its_conditions(board: Board) -> None:
    board.throttles(7)
    result = measure(board.bench, PLATFORM, board.model, on_stage=lambda stage: board.throttles(8))
    assert (result.outcome, result.error_code) == ("infrastructure_error", "THROTTLED")
    assert "7 -> 8" in result.error_message
    assert result.conditions["throttling"] == "8"
    assert not result.sessions
    assert measure(board.bench, PLATFORM, board.model).outcome == "ok"


def test_the_governor_is_part_of_the_fingerprint(board: Board) -> None:
    def fingerprint() -> str:
        return measure(board.bench, PLATFORM, board.model).fingerprint

    before = fingerprint()
    assert before == board.bench.describe()[1][0].platforms[0].fingerprint
    governor = board.root / f"{CPU}/cpu{board.core}/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True, exist_ok=True)
    governor.write_text("powersave\n")
    assert fingerprint() != before
    assert board.bench.describe()[0].conditions["governor"] == "powersave"


@pytest.fixture
def next_readings(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Waits until the sensors have been read so many more times."""
    monkeypatch.setattr(readiness, "LOG_EVERY_S", 0.001)
    changed = threading.Condition()
    count = [0]
    read = Sensors.read

    def counted(self: Sensors) -> SensorReading:
        found = read(self)
        with changed:
            count[0] += 1
            changed.notify_all()
        return found

    monkeypatch.setattr(Sensors, "read", counted)

    def wait(more: int) -> None:
        with changed:
            target = count[0] + more
            assert changed.wait_for(lambda: count[0] >= target, 30)

    return wait


PUBLISH = replace(UNSET, tier="publish", sessions=5)


def test_publish_logs_its_sensors(board: Board, next_readings: Callable[[int], None]) -> None:
    board.clock(1500)

    def listen(stage: BenchStage) -> None:
        if stage.name == "timing":
            next_readings(3)

    result = measure(board.bench, PLATFORM, board.model, settings=PUBLISH, on_stage=listen)
    assert result.outcome == "ok", result.error_message
    log = result.conditions["clock_mhz_log"].split(",")
    assert len(log) >= 5
    assert set(log) == {"1500"}
    assert set(result.conditions["temperature_c_log"].split(",")) == {"unknown"}
    assert sum(len(session.runs_ms) for session in result.sessions) >= 1024
    recorded = sum(sum(session.runs_ms) for session in result.sessions)
    assert recorded * float(result.conditions.get("recorded_every", "1")) >= 60_000.0


def test_publish_rejects_a_clock_that_falls(
    board: Board, next_readings: Callable[[int], None]
) -> None:
    board.clock(1500)

    def listen(stage: BenchStage) -> None:
        if stage.name == "timing":
            next_readings(3)
            board.clock(1400)
            next_readings(3)

    result = measure(board.bench, PLATFORM, board.model, settings=PUBLISH, on_stage=listen)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "THROTTLED")
    assert "from 1500 to 1400 MHz" in result.error_message
    # The survey tier records it and continues.
    assert measure(board.bench, PLATFORM, board.model, settings=QUICK).outcome == "ok"


def test_publish_waits_for_a_cool_board_but_not_for_ever(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "LOG_EVERY_S", 0.001)
    monkeypatch.setattr(readiness, "COOL_WAIT_S", 0.05)
    board.temperature(40)
    board.bench.describe()
    board.temperature(60)
    stages: list[str] = []
    result = measure(
        board.bench,
        PLATFORM,
        board.model,
        settings=PUBLISH,
        on_stage=lambda stage: stages.append(stage.name),
    )
    assert (result.outcome, result.error_code) == ("infrastructure_error", "NOT_READY")
    assert "60.0 degC" in result.error_message
    assert "idle 40.0 degC" in result.error_message
    assert stages == ["waiting"]


def test_a_busy_core_is_waited_for_and_told(board: Board) -> None:
    """The test writes the accounts of the measuring core: it is busy at first, and idle later."""
    total = [0, 0]

    def account(busy: int, idle: int) -> None:
        total[0] += busy
        total[1] += idle
        stat = board.root / "proc/stat"
        stat.parent.mkdir(parents=True, exist_ok=True)
        stat.write_text(f"cpu{board.core} {total[0]} 0 0 {total[1]} 0 0 0 0 0 0\n")

    read = Sensors.ticks
    looks = iter([(0, 0), (9, 1), (8, 2), (0, 10)])

    def ticks(self: Sensors) -> object:
        account(*next(looks, (0, 10)))
        return read(self)

    account(1, 1)
    options = BenchOptions(
        "board",
        None,
        board.root.parent / "work2",
        runtimes={"own": "bad_runtimes:Own"},
        search_path=[board.root.parent / "plugins"],
    )
    bench = host_bench(options, cpu=board.core, root=board.root)
    try:
        bench.describe()
        stages: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sensors, "ticks", ticks)
            result = measure(
                bench,
                PLATFORM,
                board.model,
                on_stage=lambda stage: stages.append(stage.name),
            )
        assert stages[:2] == ["waiting", "loading"]
        assert result.conditions["core_busy_share"] == "0"
        assert float(result.conditions["waited_ms"]) > 0
    finally:
        bench.close()
