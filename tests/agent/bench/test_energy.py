"""Energy through the bench: a worker whose work drives the board's power files, as physics would.

The board takes `IDLE_MW` at rest and `WORK_MW` more of each core that computes. A thread of the
test writes that into files of sysfs; what an inference costs is known exactly, because a run of the
test's runtime takes a fixed CPU time, however busy the host is.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchResult
from latfarm_agent.confinement.plan import Confinement
from latfarm_agent.power.rails import PowerConfig
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure
from tests.agent.bench.energy_kit import energy_of

IDLE_MW, WORK_MW = 4000.0, 12_000.0
RUN_CPU_MS = 2.0
RUN_MJ = WORK_MW * RUN_CPU_MS / 1e3
PLATFORM = "board-heater1.0-fp32-1t"
ASKED = changed(QUICK, sessions=1, energy_ms=400.0)
COUNTER_FILE = "sys/class/powercap/intel-rapl:0/energy_uj"
CURRENT_FILE = "sys/class/hwmon/hwmon0/curr1_input"
MILLIVOLTS = 5000.0

HEATER = '''
from __future__ import annotations
import mmap, os, struct, time
from latfarm_agent.runtimes.base import Description, PlatformSpec, Prepared

class Heater:
    """Each run takes a fixed CPU time; the total is written to a file."""

    def __init__(self, threads=1, meter="", run_ms=2.0):
        self.meter, self.run_s, self.done = meter, run_ms / 1e3, 0.0

    def describe(self):
        return Description("1.0", (PlatformSpec("heater1.0-fp32-1t", "any", "fp32"),))

    def prepare(self, job):
        if not hasattr(self, "shared"):
            handle = os.open(self.meter, os.O_RDWR)
            self.shared = mmap.mmap(handle, 8)
            os.close(handle)
            self.done = struct.unpack("d", self.shared[:8])[0]
        return Prepared()

    def run(self):
        begun = time.thread_time()
        while True:
            spent = time.thread_time() - begun
            self.shared[:8] = struct.pack("d", self.done + min(spent, self.run_s))
            if spent >= self.run_s:
                break
        self.done += self.run_s
        return None

    def profile(self, job, runs):
        return []
'''


class Board:
    """A board made of files, and a thread that updates them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.meter = folder / "meter"
        self.meter.write_bytes(struct.pack("d", 0.0))
        self.model = folder / "model"
        self.model.write_bytes(b"any")
        self.other_cores = 0.0
        self._folder = folder
        self._files: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._other_s = 0.0
        with self.meter.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def file(self, path: str, text: str = "") -> Path:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return place

    def live(self, *paths: str) -> None:
        """Update these files from now on."""
        for path in (*paths, "proc/stat"):
            self._files[path] = os.open(self.file(path), os.O_RDWR)
        self._thread.start()

    def close(self) -> None:
        if self._files:
            self._ended.set()
            self._thread.join()
        for handle in self._files.values():
            os.close(handle)
        self._shared.close()

    def _live(self) -> None:
        begun = before = time.monotonic()
        work_s = self._work_s()
        while True:
            now, done_s = time.monotonic(), self._work_s()
            passed_s = max(now - before, 1e-6)
            self._other_s += passed_s * self.other_cores
            energy_uj = (IDLE_MW * (now - begun) + WORK_MW * (done_s + self._other_s)) * 1e3
            # A board with four cores, on which only the worker and the other load run.
            busy = round((done_s + self._other_s) * 100)
            idle = max(0, round((now - begun) * 400) - busy)
            cores = (done_s - work_s) / passed_s + self.other_cores
            milliwatts = IDLE_MW + WORK_MW * cores
            values = {
                COUNTER_FILE: f"{round(energy_uj):020d}\n",
                CURRENT_FILE: f"{round(milliwatts / MILLIVOLTS * 1e3):09d}\n",
                "proc/stat": f"cpu0 {busy:012d} 0 0 {idle:012d} 0 0 0 0\n",
            }
            for path, handle in self._files.items():
                os.pwrite(handle, values[path].encode(), 0)
            before, work_s = now, done_s
            if self._ended.wait(0.002 if COUNTER_FILE in self._files else 0.02):
                return

    def _work_s(self) -> float:
        found: float = struct.unpack("d", self._shared[:8])[0]
        return found

    def bench(self, config: PowerConfig | None = None, run_ms: float = RUN_CPU_MS) -> Bench:
        plugins = self._folder / "plugins"
        plugins.mkdir(exist_ok=True)
        (plugins / "heater.py").write_text(HEATER)
        options = {"meter": str(self.meter), "run_ms": run_ms}
        return host_bench(
            BenchOptions(
                "board",
                None,
                self._folder / "work",
                runtimes={"heater": "heater:Heater"},
                search_path=[plugins],
                config=AgentConfig(
                    runtimes={"heater": RuntimeConfig(options=options)},
                    power=config or PowerConfig(),
                    confinement=Confinement(write=(str(self.meter),)),
                ),
                limits=PATIENT,
            ),
            root=self.root,
        )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board(tmp_path)
    yield made
    made.close()


def asked(
    bench: Bench, board: Board, stages: list[str] | None = None, **settings: object
) -> BenchResult:
    """Measure once. If other tests starve the sampling thread, the agent tells that."""
    told = stages if stages is not None else []
    try:
        for _ in range(4):
            told.clear()
            result = measure(
                bench,
                PLATFORM,
                board.model,
                settings=changed(ASKED, **settings),
                on_stage=lambda stage: told.append(stage.name),
            )
            story = result.conditions.get("energy", "")
            if "could not be read" not in story and "cannot tell" not in story:
                break
        return result
    finally:
        bench.close()


@pytest.mark.usefixtures("no_process_left")
def test_a_counter_tells_what_an_inference_costs(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.file("sys/class/powercap/intel-rapl:0/max_energy_range_uj", "262143328850")
    board.live(COUNTER_FILE)
    stages: list[str] = []
    bench = board.bench()
    assert "rapl:package-0" in bench.describe()[0].conditions["power_rail"]
    result = asked(bench, board, stages)
    assert result.outcome == "ok", result.error_message
    assert result.conditions["energy"] == "ok", result.conditions
    found = energy_of(result)
    assert found.source == "rapl:package-0"
    assert found.energy_mj == pytest.approx(RUN_MJ, rel=0.15)
    assert found.idle_mw == pytest.approx(IDLE_MW, rel=0.1)
    assert found.gross_mj > found.energy_mj
    assert 0 < found.spread_mj < 0.25 * RUN_MJ
    assert found.span_ms >= 0.5 * ASKED.energy_ms
    assert found.runs * RUN_CPU_MS <= found.span_ms
    assert stages[-3:] == ["resting", "energy", "resting"]
    assert result.sessions[0].runs_ms


def test_power_that_is_sampled_tells_it_too(board: Board) -> None:
    for name, text in (("name", "ina3221"), ("in1_label", "VDD_IN"), ("in1_input", "5000")):
        board.file(f"sys/class/hwmon/hwmon0/{name}", text)
    board.live(CURRENT_FILE)
    result = asked(board.bench(), board, energy_ms=800.0)
    assert result.conditions["energy"] == "ok", result.conditions
    assert energy_of(result).source == "ina3221:VDD_IN"
    assert energy_of(result).energy_mj == pytest.approx(RUN_MJ, rel=0.25)
    assert energy_of(result).idle_mw == pytest.approx(IDLE_MW, rel=0.1)


def test_another_load_is_noticed(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.live(COUNTER_FILE)
    board.other_cores = 1.5
    result = asked(board.bench(), board)
    assert result.outcome == "ok"
    assert result.energy is None
    assert result.conditions["energy"].startswith("ENERGY_UNAVAILABLE: another load kept 1.")


def test_a_board_without_a_rail_measures_all_the_same(board: Board) -> None:
    stages: list[str] = []
    bench = board.bench()
    assert bench.describe()[0].conditions["power_rail"].startswith("none: this board has no power")
    result = asked(bench, board, stages)
    assert result.outcome == "ok"
    assert result.sessions[0].runs_ms
    assert result.energy is None
    assert result.conditions["energy"].startswith(
        "ENERGY_UNAVAILABLE: this board has no power rail"
    )
    assert "energy" not in stages, "nobody would see it"


def test_a_rail_that_is_too_coarse_says_so(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.file(COUNTER_FILE, "7000000")
    result = asked(board.bench(), board, energy_ms=10.0)
    assert result.outcome == "ok"
    assert "ENERGY_UNAVAILABLE: rapl:package-0 does not move" in result.conditions["energy"]


def test_nobody_pays_for_an_energy_that_was_not_asked_for(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.live(COUNTER_FILE)
    result = asked(board.bench(), board, energy_ms=0.0)
    assert result.energy is None
    assert "energy" not in result.conditions


def test_an_energy_of_a_day_is_refused(board: Board) -> None:
    result = asked(board.bench(), board, energy_ms=1e9)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "SETTINGS_INVALID")
    assert "energy_ms" in result.error_message


# Time that is computed


def test_time_that_is_computed_is_seen_by_no_rail(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.file(COUNTER_FILE, "1")
    meter = EnergyMeter(board.root)
    assert not meter.recording(settings={}, real_time=False, cores=()).has_rail
    assert meter.recording(settings={}, real_time=True, cores=()).has_rail
    assert not meter.recording(settings=None, real_time=True, cores=()).has_rail
