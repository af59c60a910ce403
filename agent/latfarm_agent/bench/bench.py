"""The bench: describes a board and measures models on it, with a worker process per runtime.

A measurement goes through these steps: find the platform, let `watch` wait until the board is fit,
let a worker measure, and add the conditions under which it happened. A failure is a `BenchResult`,
never an exception.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Mapping

from latfarm_agent import PROTOCOL_VERSION
from latfarm_agent.bench.board import MeasuredBoard
from latfarm_agent.bench.clock import FastestProbe, clock_of, without_clock, without_throttling
from latfarm_agent.bench.energy import Recording
from latfarm_agent.bench.measuring import WORKER
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.platforms import Platform, Platforms
from latfarm_agent.bench.readiness import Readiness
from latfarm_agent.bench.records import (
    BenchRequest,
    BenchResult,
    BenchStage,
    DescribedBoard,
    Offer,
)
from latfarm_agent.bench.results import fail, fill
from latfarm_agent.bench.seats import Seat
from latfarm_agent.bench.watch import RunWatch, watch_of
from latfarm_agent.board.conditions import shown, yes_or_no
from latfarm_agent.confinement.plan import combined
from latfarm_agent.errors import BlobNotFoundError, LatfarmAgentError
from latfarm_agent.files.folders import remove
from latfarm_agent.files.handover import hand_over
from latfarm_agent.worker import rules
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.main import ONNX
from latfarm_agent.worker.pool import MODELS, RuntimeWorkers, Workers, WorkerSetup
from latfarm_agent.worker.rules import SettingsError, TimingSettings
from latfarm_agent.worker.start import FOLDER_PREFIX


@dataclass(frozen=True)
class _BenchRun:
    """One measurement: what is asked, and whom to tell how it goes."""

    request: BenchRequest
    model_path: Path
    profile: bool
    stage: Callable[[str, int], None]
    cancelled: Callable[[], bool]


class Bench:
    """Measures models on one board. Thread-safe: one measurement at a time, others wait.

    `host.host_bench`, `phone.phone_bench` and `simulated.simulated_bench` make a bench for each
    kind of board.

    Args:
        board: the board to measure.
        options: names, where to work and what to offer.
        make_workers: makes what measures; it is given the event that ends a start in progress.
    """

    def __init__(
        self,
        board: MeasuredBoard,
        options: BenchOptions,
        make_workers: Callable[[WorkerSetup, threading.Event], RuntimeWorkers] = Workers,
    ) -> None:
        self._board = board
        self._name = options.board_name
        self._hardware_name = options.hardware_name
        self._work_dir = _cleaned(Path(options.work_dir).absolute())
        self._board_id = board.board_id(self._work_dir)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        setup = WorkerSetup(
            references=board.references,
            configured=board.configured,
            work_dir=self._work_dir,
            cores=board.cores,
            search_path=tuple(options.search_path),
            limits=board.limits,
            confinement=board.confinement,
        )
        setup.models_dir.mkdir(mode=0o700, exist_ok=True)
        self._models_dir = setup.models_dir
        self._workers = make_workers(setup, self._closing)
        self._sequence = 0
        # One entry for each platform: each runtime has its own probe, and may be wrong about it.
        self._fastest: dict[str, FastestProbe] = {}
        self._seats = {threads: self._seat(threads) for threads in board.cores}
        self._first_seat = next(iter(self._seats.values()))
        self._platforms = Platforms(options.hardware_name, board, self._seats)

    def describe(self) -> Offer:
        """The board, and its runtimes with their platforms; missing ones say why.

        Runtimes are looked for once, in processes of their own; conditions are read each time.
        """
        found = self._workers.found()
        sensors = self._board.sensors
        reading = self._first_seat.readiness.read()
        conditions = dict(
            sensors.policy(),
            clock_mhz=shown(reading.clock_mhz),
            temperature_c=shown(reading.temperature_c),
            throttling=shown(reading.throttles),
            load_1m=sensors.load(),
            core_mask=self._first_seat.core_mask,
            **self._board.extra_conditions(),
        )
        if reading.throttled is not None:
            conditions["throttled"] = yes_or_no(reading.throttled)
        hardware = {
            **self._board.hardware,
            **self._board.software,
            "name": self._hardware_name,
            **self._board.extra_hardware(),
        }
        described = DescribedBoard(
            board_id=self._board_id,
            name=self._name,
            boot_id=sensors.boot_id(),
            hardware=hardware,
            conditions=conditions,
            protection=combined({name: each.protection for name, each in found.items()}),
        )
        return described, self._platforms.listed(found)

    def measure(
        self,
        request: BenchRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[BenchStage], None],
        cancelled: Callable[[], bool],
    ) -> BenchResult:
        """Measure a model, and with `profile` its kernels too; blocks until the result is there.

        Never raises. `on_stage` is called from this thread as stages begin. `cancelled` is asked at
        least every 0.1 s: once it says yes, the worker is ended and the result is CANCELLED.
        """
        begun_s = time.monotonic()
        result = BenchResult(
            request_id=request.request_id,
            board_id=self._board_id,
            platform=request.platform,
            protocol_version=PROTOCOL_VERSION,
            settings=request.settings,
            measured_at_s=time.time(),
        )

        def stage(name: str, session: int = 0) -> None:
            on_stage(BenchStage(name, session, (time.monotonic() - begun_s) * 1e3))

        def stop() -> bool:
            return self._closing.is_set() or cancelled()

        run = _BenchRun(request, Path(model_path).absolute(), profile, stage, stop)
        try:
            with self._lock:
                self._measure(result, run)
        except WorkerFailure as failure:
            fail(result, failure.code, failure.message)
        except SettingsError as error:
            fail(result, "SETTINGS_INVALID", str(error))
        except LatfarmAgentError as error:
            fail(result, error.code, str(error))
        except Exception as error:
            fail(result, "INTERNAL", f"{type(error).__name__}: {error}")
        result.board_ms = (time.monotonic() - begun_s) * 1e3
        return result

    def restart_workers(self) -> None:
        """End the workers that wait: the next measurement gets a fresh one."""
        with self._lock:
            self._workers.restart()

    def restart(self, part: str) -> str:
        """Restart the workers, or with `RUNTIME` the runtimes too; see `MeasuringBench.restart`."""
        if part == WORKER:
            self.restart_workers()
            return "its workers were ended; the next measurement starts a new one"
        with self._lock:
            self._workers.rediscover()
        found = self._workers.found()
        there = ", ".join(sorted(name for name, each in found.items() if not each.missing))
        return f"its runtimes were looked for anew, with empty caches: {there or 'none is left'}"

    def close(self) -> None:
        """Cancel what runs, end all workers. Idempotent."""
        self._closing.set()
        with self._lock:
            self._workers.close()

    def _seat(self, threads: int) -> Seat:
        cores, sensors = self._board.cores[threads], self._board.seat_sensors(threads)
        wait_s = self._board.limits.busy_wait_s
        return Seat(cores, sensors, Readiness(sensors, cores, wait_s, self._closing))

    def _measure(self, result: BenchResult, run: _BenchRun) -> None:
        """Fill in `result`.

        Raises:
            WorkerFailure: the typed error that the measurement ended in.
            SettingsError: what was asked contradicts itself.
        """
        if self._closing.is_set():
            raise WorkerFailure("CANCELLED", "the agent is shutting down")
        settings = result.settings = rules.effective(run.request.settings)
        platform = self._platforms.find(run.request.platform, self._workers.found())
        result.fingerprint = self._platforms.fingerprint(platform)
        if run.request.companions and platform.spec.model_format != ONNX:
            text = f"a model in the format {platform.spec.model_format} consists of one file"
            raise WorkerFailure("MODEL_INVALID", text, alive=True)
        if not self._workers.separate:
            self._measure_on(platform, result, run, settings)
            return
        model = self._handed_over(run.model_path, run.request.companions)
        try:
            self._measure_on(platform, result, replace(run, model_path=model), settings)
        finally:
            remove(model.parent)

    def _handed_over(self, model: Path, companions: Mapping[str, str]) -> Path:
        """The model, with its companions beside it, where workers may read it, and only there.

        Raises:
            WorkerFailure: it is not here or damaged, or it cannot be copied.
        """
        try:
            return hand_over(model, self._models_dir, companions)
        except BlobNotFoundError as error:
            raise WorkerFailure("BLOB_MISSING", str(error)) from error
        except OSError as error:
            text = f"the model cannot be handed to a worker: {error.strerror or error}"
            raise WorkerFailure("DISK_FULL", text) from error

    def _measure_on(
        self, platform: Platform, result: BenchResult, run: _BenchRun, settings: TimingSettings
    ) -> None:
        """Measure on a platform, and fill in `result`."""
        spec, seat = platform.spec, self._seats[platform.threads]
        conditions = {"runtime_version": platform.version}
        watch = watch_of(seat, real_time=spec.real_time, publish=settings.tier == "publish")
        standing = watch.standing()
        conditions.update(standing.told)
        if standing.unfit:
            result.conditions.update(conditions)
            raise WorkerFailure("NOT_READY", standing.unfit, alive=True)
        if spec.real_time:
            conditions.update(self._board.software)
            conditions.update(seat.sensors.policy())
        watch.wait_until_ready(conditions, run.stage, run.cancelled)
        energy = self._board.energy.recording(
            settings=spec.settings if settings.energy_ms else None,
            real_time=spec.real_time,
            cores=seat.cores,
        )
        done, crashed = self._run(run, platform, settings, watch, energy)
        if crashed:
            conditions["tried_again_after"] = crashed
        if spec.real_time:
            conditions.update(watch.conditions())
            conditions.update(self._board.run_conditions(spec, seat, done))
        self._judge_clock(run.request.platform, watch, done, conditions)
        fill(result, done, conditions)
        energy.finish(done.get("energy"), result, conditions)
        result.conditions.update(conditions)
        result.memory_bytes = self._board.peak_bytes(result.memory_bytes)
        objection = watch.objection()
        if objection:
            raise WorkerFailure("THROTTLED", objection, alive=True)
        result.outcome = "ok"

    def _judge_clock(
        self, platform: str, watch: RunWatch, done: Message, conditions: dict[str, str]
    ) -> None:
        """Tell a lower clock apart from a busy neighbour, and learn how fast the core can be."""
        clock_mhz = clock_of(done, watch.clock_mhz())
        known = self._fastest.get(platform, FastestProbe())
        known = known.after(done["sessions"][-1]["fastest_us"], clock_mhz)
        self._fastest[platform] = known
        times = known.clock_slowdown(clock_mhz)
        without_clock(done, times, conditions)
        if watch.throttled():
            without_throttling(done, times)

    def _run(
        self,
        run: _BenchRun,
        platform: Platform,
        settings: TimingSettings,
        watch: RunWatch,
        energy: Recording,
    ) -> tuple[Message, str]:
        """Let a worker measure: its answer, and the code of a crash after which it tried again.

        Raises:
            WorkerFailure: the typed error that the measurement ended in.
        """

        def on_event(event: Message) -> None:
            watch.stage(event["name"])
            energy.begin(event["name"])
            run.stage(event["name"], event["session"])

        message = self._message(run, platform, settings)
        message["rail"] = energy.has_rail
        watch.begin()
        try:
            return self._workers.ask(
                platform.runtime, platform.threads, message, on_event, run.cancelled
            )
        except WorkerFailure as failure:
            # When a driven board disappears, its model seems to hang or to crash.
            lost = watch.lost() if failure.code in ("MODEL_TIMEOUT", "MODEL_CRASHED") else ""
            if lost:
                raise WorkerFailure("DEVICE_LOST", f"{lost}; {failure.message}") from failure
            raise
        finally:
            energy.close()
            watch.end()

    def _message(self, run: _BenchRun, platform: Platform, settings: TimingSettings) -> Message:
        """The worker's request, still without the folder and the rail."""
        message: Message = {
            "model_path": str(run.model_path),
            "companions": sorted(run.request.companions),
            "model_format": platform.spec.model_format,
            "platform_settings": dict(platform.spec.settings),
            "dtype": platform.spec.dtype,
            "settings": settings.to_json(),
            "request_id": run.request.request_id,
            "sequence": self._sequence,
            "fastest_us": self._fastest.get(run.request.platform, FastestProbe()).probe_us,
            "profile": run.profile,
        }
        self._sequence += 1
        return message


def _cleaned(work_dir: Path) -> Path:
    """The work folder, made if it is missing, without what a killed agent left in it."""
    work_dir.mkdir(parents=True, exist_ok=True)
    # Older agents made folders for models beside those of workers.
    for left in (
        *work_dir.glob(FOLDER_PREFIX + "*"),
        *work_dir.glob("scratch-*"),
        work_dir / MODELS,
    ):
        remove(left)
    return work_dir
