"""Energy from a runtime's own account, and of simulated boards."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.records import BenchResult, OfferedRuntime
from latfarm_agent.bench.simulated import simulated_bench
from latfarm_agent.runtimes.base import Prepared, RuntimeFailure
from latfarm_agent.runtimes.simulated.cost import exact_energy_mj
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.testing.runtime_suite import QUICK, changed, measure
from latfarm_agent.worker import measure_energy, rules
from latfarm_agent.worker.measure import LoopWatch
from latfarm_agent.worker.rules import TimingSettings
from tests.agent.bench.energy_kit import energy_of


class Account:
    """An energy account whose time and energy the test controls."""

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
    """A runtime with such an account; each run takes 5 ms at 3 W."""

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
    # Computed by hand: 16 x 16 positions, 8 inputs, 8 outputs padded to 16, kernel 3 x 3.
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
