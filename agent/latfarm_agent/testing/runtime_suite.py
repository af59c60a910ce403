"""The conformance suite of runtimes: subclass it in a test module and say how to make models.

It judges a runtime through the bench, as the agent uses it: what it says about itself, a result for
a good model, a typed error for every bad one, and no process left behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

from latfarm_agent import PROTOCOL_VERSION
from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.records import BenchRequest, BenchResult, BenchStage
from latfarm_agent.worker import keeper, rules
from latfarm_agent.worker.pool import WorkerLimits
from latfarm_agent.worker.rules import UNSET, TimingSettings

QUICK = replace(
    UNSET,
    tier="survey",
    sessions=2,
    warmup_runs=2,
    warmup_ms=1.0,
    min_runs=5,
    max_runs=20,
    max_ms=10.0,
    compile_timeout_ms=60_000.0,
    run_timeout_ms=30_000.0,
    precision=0.05,
)
"""Settings that make a test short."""

LONG = replace(
    UNSET,
    tier="survey",
    sessions=50,
    min_runs=1000,
    max_runs=1000,
    max_ms=500.0,
    compile_timeout_ms=60_000.0,
    run_timeout_ms=30_000.0,
)
"""Settings that keep a worker busy until something happens to it."""

PATIENT = WorkerLimits(busy_wait_s=0.0)
"""Tests share their cores: nobody waits for a quiet one."""


def changed(settings: TimingSettings, **values: Any) -> TimingSettings:
    """A copy of settings with some fields replaced."""
    return replace(settings, **values)


def measure(
    bench: Bench,
    platform: str,
    model: Path,
    *,
    settings: TimingSettings = QUICK,
    profile: bool = False,
    request_id: str = "request",
    on_stage: Callable[[BenchStage], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> BenchResult:
    """Measure one model with defaults that fit a test."""
    request = BenchRequest(request_id=request_id, platform=platform, settings=settings)
    return bench.measure(request, model, profile=profile, on_stage=on_stage, cancelled=cancelled)


def worker_pids() -> set[int]:
    """Pids of the workers below this process: what lives below their keepers."""
    keepers = keeper.descendants(os.getpid())
    return {pid for parent in keepers for pid in keeper.descendants(parent)}


def _signal_workers(*numbers: signal.Signals) -> None:
    """Send signals, each to all of them before the next."""
    pids = worker_pids()
    for number in numbers:
        for pid in pids:
            # A helper that a worker started may have ended since we looked.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _settles(holds: Callable[[], bool], patience_s: float = 10.0) -> bool:
    """Whether it holds within a while: a busy host takes its time to end processes."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def platform_of(bench: Bench, runtime: str, part: str = "") -> str:
    """Name of a runtime's first platform with `part` in it; skips the test where there is none."""
    for entry in bench.describe()[1]:
        if entry.name == runtime:
            if not entry.available:
                pytest.skip(f"{runtime}: {entry.missing}")
            for platform in entry.platforms:
                if part in platform.name:
                    return str(platform.name)
            pytest.skip(f"{runtime}: no {part!r} here; {entry.missing}")
    raise AssertionError(f"{runtime} is not even looked for")


class RuntimeSuite:
    """Subclass as `Test...`, set `runtime` and `model_format`, say how benches and models are made.

    `profiles`: whether it has a profiler, or else must say PROFILE_UNAVAILABLE. `part`: of the name
    of the platform to judge; empty: the first. `places`: whether profiles say where a kernel ran.
    """

    runtime: str
    model_format: str
    profiles = True
    part = ""
    places = True
    folder: Path

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        """A bench that offers the runtime, working in `directory`, within `limits`."""
        raise NotImplementedError

    def make_model(self, directory: Path) -> Path:
        """A small model that the runtime can run."""
        raise NotImplementedError

    def make_unsupported(self, directory: Path) -> Path | None:
        """A well-formed model with an op that the runtime lacks; None: there is no such thing."""
        del directory
        return None

    def make_greedy(self, directory: Path) -> Path | None:
        """A small file whose run needs over 3 GB; None: there is no such thing."""
        del directory
        return None

    def make_lacking(self, directory: Path) -> Bench | None:
        """A bench on which the runtime's library is missing; None: it needs none."""
        del directory
        return None

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        """A bench whose configuration gives the runtime an unknown option; None: not to be had."""
        del directory, option
        return None

    @pytest.fixture(scope="class", name="bench")  # Python 3.8 cannot name a class method itself
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
        """One bench for all tests of the class; no process of it is left afterwards."""
        before = keeper.descendants(os.getpid())
        cls.folder = tmp_path_factory.mktemp("bench")
        bench = cls.make_bench(cls.folder, PATIENT)
        yield bench
        bench.close()
        assert keeper.descendants(os.getpid()) <= before

    @pytest.fixture
    def platform(self, bench: Bench) -> str:
        """The platform under judgement."""
        return platform_of(bench, self.runtime, self.part)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """The good model."""
        return self.make_model(tmp_path)

    def test_describe(self, bench: Bench, platform: str) -> None:
        """It has a version, and platforms that can be told apart."""
        board, runtimes = bench.describe()
        (mine,) = [entry for entry in runtimes if entry.name == self.runtime]
        assert mine.version
        assert not mine.missing
        assert platform in {entry.name for entry in mine.platforms}
        assert {entry.model_format for entry in mine.platforms} == {self.model_format}
        assert len({entry.name for entry in mine.platforms}) == len(mine.platforms)
        assert len({entry.fingerprint for entry in mine.platforms}) == len(mine.platforms)
        assert board.board_id
        again_board, again = bench.describe()
        assert again_board.board_id == board.board_id
        assert again == runtimes

    def test_prepare_and_run(self, bench: Bench, platform: str, model: Path) -> None:
        """A good model gives what was asked for, with its stages in order, and leaves nothing."""
        before = self._left()
        stages: list[tuple[str, int]] = []
        settings = changed(QUICK, cold_runs=2)
        result = measure(
            bench,
            platform,
            model,
            settings=settings,
            on_stage=lambda stage: stages.append((stage.name, stage.session)),
        )
        assert result.outcome == "ok", result.error_message
        assert not result.error_code
        assert len(result.sessions) == settings.sessions
        for session in result.sessions:
            runs = len(session.runs_ms)
            assert rules.LEAST_RUNS <= runs <= rules.OVERTIME * settings.max_runs
            assert min(session.runs_ms) > 0
            assert session.load_ms > 0
            assert session.first_run_ms > 0
            assert 1 <= len(session.cold_ms) <= 2
        wanted = ("loading", "warming", "timing", "cold")
        seen = [stage for stage in stages if stage[0] != "waiting"]
        assert seen == [(name, session) for session in range(2) for name in wanted]
        assert result.settings == settings
        assert result.platform == platform
        (offered,) = [entry for entry in bench.describe()[1] if entry.name == self.runtime]
        prints = {entry.name: entry.fingerprint for entry in offered.platforms}
        assert result.fingerprint == prints[platform]
        assert result.conditions["runtime_version"]
        assert result.board_ms > 0
        assert result.measured_at_s > 0
        assert result.protocol_version == PROTOCOL_VERSION
        assert self._left() == before
        assert _settles(lambda: len(worker_pids()) <= 1)

    def test_profile(self, bench: Bench, platform: str, model: Path) -> None:
        """Kernels with times, or a typed answer that there is no profiler; never made up."""
        result = measure(bench, platform, model, profile=True)
        if not self.profiles:
            assert (result.outcome, result.error_code) == ("model_error", "PROFILE_UNAVAILABLE")
            return
        assert result.outcome == "ok", result.error_message
        assert result.layers
        assert all(layer.name and layer.op and layer.latency_ms >= 0 for layer in result.layers)
        assert len({layer.name for layer in result.layers}) == len(result.layers)
        assert sum(layer.latency_ms for layer in result.layers) > 0
        assert all(bool(layer.device) or not self.places for layer in result.layers)

    def test_wrong_input(self, bench: Bench, platform: str, tmp_path: Path, model: Path) -> None:
        """Garbage and truncated files are the model's fault; a missing file is ours."""
        garbage = tmp_path / "garbage"
        garbage.write_bytes(bytes(range(256)) * 8)
        half = tmp_path / "half"
        half.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
        empty = tmp_path / "empty"
        empty.write_bytes(b"")
        for path in (garbage, half, empty):
            result = measure(bench, platform, path)
            found = (path.name, result.outcome, result.error_code)
            assert found == (path.name, "model_error", "MODEL_INVALID"), result.error_message
            assert result.error_message
            assert not result.sessions
        missing = measure(bench, platform, tmp_path / "nowhere")
        assert (missing.outcome, missing.error_code) == ("infrastructure_error", "BLOB_MISSING")

    def test_unsupported(self, bench: Bench, platform: str, tmp_path: Path) -> None:
        """An op that it lacks is told from a broken file."""
        path = self.make_unsupported(tmp_path)
        if path is None:
            pytest.skip("every well-formed model can be run")
        result = measure(bench, platform, path)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_UNSUPPORTED")
        assert result.error_message

    def test_unknown_platform(self, bench: Bench, platform: str, model: Path) -> None:
        """The answer names what there is."""
        result = measure(bench, "no-such-platform", model)
        assert (result.outcome, result.error_code) == ("infrastructure_error", "RUNTIME_MISSING")
        assert platform in result.error_message

    def test_cancel(self, bench: Bench, platform: str, model: Path) -> None:
        """A cancelled request ends, with its worker; the next one is served."""
        begun: list[str] = []
        result = measure(
            bench,
            platform,
            model,
            settings=LONG,
            on_stage=lambda stage: begun.append(stage.name),
            cancelled=lambda: "timing" in begun,
        )
        assert (result.outcome, result.error_code) == ("infrastructure_error", "CANCELLED")
        assert not result.sessions
        assert measure(bench, platform, model).outcome == "ok"

    def test_crash(self, bench: Bench, platform: str, model: Path) -> None:
        """A worker that dies while it measures is the model's crash; the next one is served."""
        bench.restart_workers()

        def crash(stage: BenchStage) -> None:
            if stage.name == "loading":
                # Stopped before: a worker whose helper crashes first would live to tell of that.
                _signal_workers(signal.SIGSTOP, signal.SIGSEGV, signal.SIGCONT)

        result = measure(bench, platform, model, settings=LONG, on_stage=crash)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_CRASHED")
        assert "SIGSEGV" in result.error_message
        assert measure(bench, platform, model).outcome == "ok"

    def test_hang(self, bench: Bench, platform: str, model: Path) -> None:
        """A worker that stops answering is ended; the next one is served."""

        def stop(stage: BenchStage) -> None:
            if stage.name == "warming":
                _signal_workers(signal.SIGSTOP)

        settings = changed(LONG, run_timeout_ms=300.0)
        result = measure(bench, platform, model, settings=settings, on_stage=stop)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_TIMEOUT")
        assert "no answer within" in result.error_message
        assert measure(bench, platform, model).outcome == "ok"

    def test_out_of_memory(self, tmp_path: Path) -> None:
        """A model that needs more memory than there is ends as such, and takes nothing with it."""
        greedy = self.make_greedy(tmp_path)
        if greedy is None:
            pytest.skip("no model needs memory here")
        bench = self.make_bench(tmp_path, replace(PATIENT, memory_bytes=1 << 30))
        try:
            platform = platform_of(bench, self.runtime, self.part)
            result = measure(bench, platform, greedy)
            assert (result.outcome, result.error_code) == ("model_error", "OUT_OF_MEMORY")
            assert measure(bench, platform, self.make_model(tmp_path)).outcome == "ok"
        finally:
            bench.close()

    def test_missing_library(self, tmp_path: Path) -> None:
        """Without its library the runtime is listed as missing, with a remedy; nothing fails."""
        bench = self.make_lacking(tmp_path)
        if bench is None:
            pytest.skip("it needs no library")
        try:
            (mine,) = [entry for entry in bench.describe()[1] if entry.name == self.runtime]
            assert not mine.available
            assert not mine.platforms
            assert "install" in mine.missing or "start the agent" in mine.missing
        finally:
            bench.close()

    def test_unknown_option(self, tmp_path: Path) -> None:
        """An option that it does not know is refused by name, and takes nothing else down."""
        bench = self.make_misconfigured(tmp_path, "no_such_option")
        if bench is None:
            pytest.skip("it cannot be configured here")
        try:
            (mine,) = [entry for entry in bench.describe()[1] if entry.name == self.runtime]
            assert not mine.available
            assert "no_such_option" in mine.missing
        finally:
            bench.close()

    def _left(self) -> set[str]:
        """What lies in the agent's folder, but for what workers and caches are given."""
        names = {path.name for path in self.folder.iterdir()}
        return {name for name in names if not name.startswith("worker-") and name != "cache"}
