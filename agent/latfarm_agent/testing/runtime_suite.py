"""The conformance suite of runtimes. To test a runtime, subclass `RuntimeSuite` in a test module.

The suite uses a runtime through the bench, as the agent does. It checks what the runtime says about
itself, that a good model gives a result, that every bad model gives a typed error, and that no
process is left behind.
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
"""Settings for a short test."""

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
"""Settings that keep a worker busy until a test interrupts it."""

PATIENT = WorkerLimits(busy_wait_s=0.0)
"""Limits for tests: as tests share their cores, they do not wait for a quiet core."""


def changed(settings: TimingSettings, **values: Any) -> TimingSettings:
    """Return a copy of settings with some fields replaced."""
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
    """Measure one model with defaults that fit a test; the arguments are as in `Bench.measure`."""
    request = BenchRequest(request_id=request_id, platform=platform, settings=settings)
    return bench.measure(request, model, profile=profile, on_stage=on_stage, cancelled=cancelled)


def worker_pids() -> set[int]:
    """Return the pids of the workers of this process: the children of the workers' keepers.

    Other processes that this one has started, and what those have started, do not count.
    """
    keepers = [pid for pid in keeper.children(os.getpid()) if _is_keeper(pid)]
    return {pid for parent in keepers for pid in keeper.descendants(parent)}


def _is_keeper(pid: int) -> bool:
    """Whether a child of this process began as the program of workers."""
    try:
        return b"latfarm_agent.worker.main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False  # it has ended meanwhile


def _signal_workers(*numbers: signal.Signals) -> None:
    """Send some signals to all workers, each signal to all of them before the next one."""
    pids = worker_pids()
    for number in numbers:
        for pid in pids:
            # A child process that a worker started may have ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def _settles(holds: Callable[[], bool], patience_s: float = 10.0) -> bool:
    """Return whether a condition becomes true within some seconds, as a busy host needs time."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def platform_of(bench: Bench, runtime: str, part: str = "") -> str:
    """Return a runtime's first platform with `part` in its name; skip the test if there is none."""
    for entry in bench.describe()[1]:
        if entry.name == runtime:
            if not entry.available:
                pytest.skip(f"{runtime}: {entry.missing}")
            for platform in entry.platforms:
                if part in platform.name:
                    return str(platform.name)
            pytest.skip(f"{runtime}: no {part!r} here; {entry.missing}")
    raise AssertionError(f"the bench does not know the runtime {runtime}")


class RuntimeSuite:
    """The tests. Subclass it as `Test...`, and override how benches and models are made.

    Attributes:
        runtime: name of the runtime.
        model_format: the format of its models.
        profiles: whether the runtime has a profiler; without one it must answer
            PROFILE_UNAVAILABLE.
        part: a part of the name of the platform to test; empty: its first platform.
        places: whether its profiles say where a kernel ran.
        folder: the folder of the bench, set by the suite.
    """

    runtime: str
    model_format: str
    profiles = True
    part = ""
    places = True
    folder: Path

    @classmethod
    def make_bench(cls, directory: Path, limits: WorkerLimits) -> Bench:
        """Make a bench that offers the runtime, works in `directory` and keeps to `limits`."""
        raise NotImplementedError

    def make_model(self, directory: Path) -> Path:
        """Make a small model that the runtime can run."""
        raise NotImplementedError

    def make_unsupported(self, directory: Path) -> Path | None:
        """Make a valid model with an op that the runtime lacks; None if there is no such model."""
        del directory
        return None

    def make_greedy(self, directory: Path) -> Path | None:
        """Make a small file that needs over 3 GB when it runs; None if there is no such model."""
        del directory
        return None

    def make_lacking(self, directory: Path) -> Bench | None:
        """Make a bench on which the runtime's library is missing; None if it needs no library."""
        del directory
        return None

    def make_misconfigured(self, directory: Path, option: str) -> Bench | None:
        """Make a bench that gives the runtime an unknown option; None if that is not possible."""
        del directory, option
        return None

    @pytest.fixture(scope="class", name="bench")  # Python 3.8 cannot name a class method itself
    @classmethod
    def bench(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
        """One bench for all tests of the class, which must leave no process behind."""
        before = keeper.descendants(os.getpid())
        cls.folder = tmp_path_factory.mktemp("bench")
        bench = cls.make_bench(cls.folder, PATIENT)
        yield bench
        bench.close()
        assert keeper.descendants(os.getpid()) <= before

    @pytest.fixture
    def platform(self, bench: Bench) -> str:
        """The name of the platform to test."""
        return platform_of(bench, self.runtime, self.part)

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """A model that the runtime can run."""
        return self.make_model(tmp_path)

    def test_describe(self, bench: Bench, platform: str) -> None:
        """The runtime has a version, and platforms with different names and fingerprints."""
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
        """A good model gives all sessions, its stages come in order, and no file is left behind."""
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
        """A profile has kernels with times; a runtime without a profiler answers with a code."""
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
        """Garbage and truncated files are errors of the model; a missing file is not."""
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
        """An op that the runtime lacks has another error code than a broken file."""
        path = self.make_unsupported(tmp_path)
        if path is None:
            pytest.skip("every well-formed model can be run")
        result = measure(bench, platform, path)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_UNSUPPORTED")
        assert result.error_message

    def test_unknown_platform(self, bench: Bench, platform: str, model: Path) -> None:
        """The error about an unknown platform names the platforms that exist."""
        result = measure(bench, "no-such-platform", model)
        assert (result.outcome, result.error_code) == ("infrastructure_error", "RUNTIME_MISSING")
        assert platform in result.error_message

    def test_cancel(self, bench: Bench, platform: str, model: Path) -> None:
        """A cancelled request ends together with its worker, and the next request succeeds."""
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
        """A worker that dies while it measures counts as a crash; the next request succeeds."""
        bench.restart_workers()

        def crash(stage: BenchStage) -> None:
            if stage.name == "loading":
                # Stop all first: a worker whose child crashes earlier could still report an error.
                _signal_workers(signal.SIGSTOP, signal.SIGSEGV, signal.SIGCONT)

        result = measure(bench, platform, model, settings=LONG, on_stage=crash)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_CRASHED")
        assert "SIGSEGV" in result.error_message
        assert measure(bench, platform, model).outcome == "ok"

    def test_hang(self, bench: Bench, platform: str, model: Path) -> None:
        """A worker that stops answering is killed, and the next request succeeds."""

        def stop(stage: BenchStage) -> None:
            if stage.name == "warming":
                _signal_workers(signal.SIGSTOP)

        settings = changed(LONG, run_timeout_ms=300.0)
        result = measure(bench, platform, model, settings=settings, on_stage=stop)
        assert (result.outcome, result.error_code) == ("model_error", "MODEL_TIMEOUT")
        assert "no answer within" in result.error_message
        assert measure(bench, platform, model).outcome == "ok"

    def test_out_of_memory(self, tmp_path: Path) -> None:
        """A model that needs too much memory ends with its own code; the next request succeeds."""
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
        """Without its library, the runtime is listed as missing with a remedy."""
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
        """An unknown option is refused, and the message names it."""
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
        """Return the names in the bench's folder, except the folders of workers and caches."""
        names = {path.name for path in self.folder.iterdir()}
        return {name for name in names if not name.startswith("worker-") and name != "cache"}
