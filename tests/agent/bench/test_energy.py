"""Energy through the bench: a worker whose work drives the board's power files, as physics would.

The board takes `IDLE_MW` at rest and `WORK_MW` more of each core that computes. A thread of the
test writes that into files of sysfs; what an inference costs is known exactly, because a run of the
test's runtime takes a fixed CPU time, however busy the host is.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from latfarm_agent.agent_config import AgentConfig, RuntimeConfig
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.host import host_bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchResult, MeasuredEnergy, OfferedRuntime
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.power.rails import PowerConfig
from latfarm_agent.runtimes.base import Prepared, RuntimeFailure
from latfarm_agent.runtimes.simulated.cost import BoardProfile, exact_energy_mj
from latfarm_agent.testing.runtime_suite import PATIENT, QUICK, changed, measure
from latfarm_agent.worker import measure_energy, rules
from latfarm_agent.worker.measure import LoopWatch
from latfarm_agent.worker.rules import TimingSettings

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
    """Each run takes a fixed CPU time, and says how much it has taken in all."""

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
    """A board of files, and the thread that keeps them up to date."""

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
        """Keep these files up to date from now on."""
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
            # A board of four cores with nothing on them but the worker and the other load.
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


def energy_of(result: BenchResult) -> MeasuredEnergy:
    """The energy of a result that has one."""
    assert result.energy is not None
    return result.energy


def asked(
    bench: Bench, board: Board, stages: list[str] | None = None, **settings: object
) -> BenchResult:
    """Measure once. Where the sampling thread starves beside other tests, the agent says so."""
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


# Runtimes that keep an account of their own


class Account:
    """A board whose time and energy are the test's."""

    source = "bench-supply"
    step_mj = 0.0
    lag_ms = 40.0

    def __init__(self) -> None:
        self.ms = 0.0
        self.taken_mj = 0.0
        self.rests: list[float] = []
        self.refuses = ""

    def now_s(self) -> float:
        return self.ms / 1e3

    def energy_mj(self) -> float:
        if self.refuses:
            raise RuntimeFailure("ENERGY_UNAVAILABLE", self.refuses)
        return self.taken_mj

    def rest(self, rest_ms: float) -> None:
        self.rests.append(rest_ms)
        self.pass_ms(rest_ms, 1000.0)

    def pass_ms(self, passed_ms: float, milliwatts: float) -> None:
        self.ms += passed_ms
        self.taken_mj += passed_ms * milliwatts / 1e3


class Accounted:
    """A runtime of such a board: 5 ms at 3 W a run."""

    def __init__(self, run_ms: float = 5.0) -> None:
        self.account = Account()
        self.run_ms = run_ms
        self.runs = 0

    def run(self) -> float | None:
        self.runs += 1
        self.account.pass_ms(self.run_ms, 3000.0)
        return self.run_ms


def run_for_energy(
    runtime: Accounted, settings: TimingSettings, stages: list[str] | None = None
) -> dict[str, object]:
    told = stages if stages is not None else []
    watch = LoopWatch(lambda name, *_: told.append(name), lambda: None, lambda: None)
    prepared = Prepared(energy=runtime.account)
    found: dict[str, object] = measure_energy.run_for_energy(
        runtime,  # type: ignore[arg-type]
        prepared,
        0,
        settings,
        watch,
    )
    return found


def finished(told: dict[str, object]) -> BenchResult:
    result, conditions = BenchResult(), dict[str, str]()
    recording = EnergyMeter(Path("/nowhere")).recording(settings={}, real_time=False, cores=())
    recording.finish(told, result, conditions)
    result.conditions.update(conditions)
    return result


def test_the_spans_of_an_account_are_exact() -> None:
    runtime, stages = Accounted(), list[str]()
    told = run_for_energy(runtime, TimingSettings(energy_ms=1000.0), stages)
    assert stages == ["resting", "energy", "resting"]
    spans = told["spans"]
    assert isinstance(spans, list)
    counts = [span[2] for span in spans]
    assert (counts[0], counts[-1], len(counts)) == (0, 0, 7)
    assert set(counts[1:-1]) <= {40, 41}, "a fifth of the time each"
    assert runtime.runs - sum(counts) in (8, 9), "what leads in fills the lag"
    assert runtime.account.rests == [300.0, 250.0, 300.0, 250.0, 0.0]
    for before, after in zip(spans[1:-1], spans[2:-1]):
        assert before[1] == after[0]
    result = finished(told)
    assert energy_of(result).energy_mj == pytest.approx(10.0)
    assert energy_of(result).gross_mj == pytest.approx(15.0)
    assert energy_of(result).idle_mw == pytest.approx(1000.0)
    assert energy_of(result).source == "bench-supply"
    assert energy_of(result).runs == sum(counts)
    assert result.conditions["energy_spans"] == "5 of 5"


def test_a_long_model_runs_three_times_at_least() -> None:
    told = run_for_energy(Accounted(run_ms=4000.0), TimingSettings(energy_ms=1000.0))
    spans = told["spans"]
    assert isinstance(spans, list)
    assert [span[2] for span in spans] == [0, 1, 1, 1, 0]


def test_rest_is_a_quarter_of_the_runs_within_bounds() -> None:
    rests = [rules.rest_ms(TimingSettings(energy_ms=ms)) for ms in (1.0, 2000.0, 600_000.0)]
    assert rests == [250.0, 500.0, 10_000.0]


def test_an_account_that_cannot_tell_says_why() -> None:
    runtime = Accounted()
    runtime.account.refuses = "the phone is charging"
    told = run_for_energy(runtime, TimingSettings(energy_ms=100.0))
    assert told == {"unavailable": "the phone is charging"}
    result = finished(told)
    assert result.conditions["energy"] == "ENERGY_UNAVAILABLE: the phone is charging"
    assert result.energy is None


def test_other_failures_of_the_model_stay_what_they_are() -> None:
    class Broken(Accounted):
        def run(self) -> float | None:
            raise RuntimeFailure("MODEL_FAILED", "no")

    with pytest.raises(RuntimeFailure, match="no"):
        run_for_energy(Broken(), TimingSettings(energy_ms=100.0))


@pytest.mark.parametrize(
    "told",
    [
        {"source": "own", "spans": [[0.0, 1.0, 0]]},
        {"source": "own", "spans": [["a", 1.0, 0, 0.0, [0.0, 0.0]]]},
        {"source": "own", "spans": 3},
        {"source": "own", "spans": [[0.0, 1.0, 0, 0.0, None]]},
        {"source": "own", "spans": []},
        {},
    ],
)
def test_a_story_that_makes_no_sense_is_no_energy(told: dict[str, object]) -> None:
    result = finished(told)
    assert result.energy is None
    assert result.conditions["energy"].startswith("ENERGY_UNAVAILABLE: ")


def test_time_that_is_computed_is_seen_by_no_rail(board: Board) -> None:
    board.file("sys/class/powercap/intel-rapl:0/name", "package-0")
    board.file(COUNTER_FILE, "1")
    meter = EnergyMeter(board.root)
    assert not meter.recording(settings={}, real_time=False, cores=()).has_rail
    assert meter.recording(settings={}, real_time=True, cores=()).has_rail
    assert not meter.recording(settings=None, real_time=True, cores=()).has_rail


# Simulated boards

POWER = {
    "idle_mw": 1500.0,
    "active_mw": 400.0,
    "mac_pj": 3.0,
    "vector_pj": 5.0,
    "byte_pj": 40.0,
    "call_uj": 7.0,
}
PROFILE = {
    "platform": "toy",
    "peak_macs_per_ms": 1e5,
    "bandwidth_bytes_per_ms": 1e6,
    "call_overhead_ms": 0.05,
    "fused_pairs": [["Conv", "Relu"]],
    "tiles": {"out_channels": 16},
}


def simulated(folder: Path, model: Path, **power: float) -> BenchResult:
    profile = folder / "profile.json"
    profile.write_text(json.dumps({**PROFILE, "power": {**POWER, **power}}))
    bench = simulated_bench(BenchOptions("toy", None, folder / "bench"), profile)
    try:
        settings = changed(QUICK, energy_ms=50.0)
        return measure(bench, "toy", model, settings=settings)
    finally:
        bench.close()


def test_a_simulated_board_takes_what_its_profile_says(
    tmp_path: Path, conv_graph: Callable[..., Path]
) -> None:
    model = conv_graph(tmp_path / "conv.json", ops=("Relu", "Sigmoid"))
    result = simulated(tmp_path, model)
    assert result.conditions["energy"] == "ok", result.conditions
    profile = BoardProfile.from_json({**PROFILE, "power": POWER})
    graph = json.loads(model.read_text())
    # By hand: 16 x 16 positions, 8 inputs, 8 outputs filled up to 16, 3 x 3.
    macs = 16 * 16 * 8 * 16 * 9
    latency_ms = result.sessions[0].runs_ms[0]
    moved = (8 * 16 * 16 * 4) * 2 + 8 * 8 * 9 * 4 + (8 * 16 * 16 * 4) * 2
    vector = 2 * 8 * 16 * 16
    expected_uj = 400.0 * latency_ms + 7.0 + (3.0 * macs + 5.0 * vector + 40.0 * moved) / 1e6
    assert exact_energy_mj(graph, profile) == pytest.approx(expected_uj / 1e3)
    assert energy_of(result).energy_mj == pytest.approx(expected_uj / 1e3, rel=1e-6)
    assert energy_of(result).idle_mw == pytest.approx(1500.0)
    assert energy_of(result).source == "simulated"


def test_a_coarse_counter_of_a_simulated_board_is_doubted(
    tmp_path: Path, conv_graph: Callable[..., Path]
) -> None:
    model = conv_graph(tmp_path / "conv.json")
    fine = energy_of(simulated(tmp_path, model, step_uj=10.0))
    assert 0 < fine.spread_mj < 0.01 * fine.energy_mj
    coarse = simulated(tmp_path, model, step_uj=50_000.0)
    assert coarse.conditions["energy"].startswith("ENERGY_UNAVAILABLE: simulated cannot tell")


@pytest.mark.parametrize("power", [3, {"idle": 1}, {"idle_mw": -1}, {"mac_pj": "few"}])
def test_a_wrong_power_of_a_profile_is_named(power: object) -> None:
    with pytest.raises(ValueError, match=r"(?i)power"):
        BoardProfile.from_json({**PROFILE, "power": power})


def test_a_profile_without_power_keeps_its_fingerprint(tmp_path: Path) -> None:
    def fingerprint(extra: dict[str, object]) -> str:
        profile = tmp_path / "p.json"
        profile.write_text(json.dumps({**PROFILE, **extra}))
        bench = simulated_bench(BenchOptions("toy", None, tmp_path / "b"), profile)
        try:
            found: Sequence[OfferedRuntime] = bench.describe()[1]
            return str(found[0].platforms[0].fingerprint)
        finally:
            bench.close()

    assert fingerprint({}) == fingerprint({"power": None})
    assert fingerprint({}) != fingerprint({"power": POWER})
