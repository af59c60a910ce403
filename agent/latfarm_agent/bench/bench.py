"""The bench: what the agent asks to describe the board and to measure a model on it.

It owns the workers (one process per runtime), waits until the measuring core is quiet, lets a
worker measure, and adds the conditions that it was done under. A failure is a `Result`, never an
exception.
"""

from __future__ import annotations

import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Callable, Mapping, Sequence

from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent.agent_config import AgentConfig, RuntimeConfig, check_names
from latfarm_agent.bench.energy import EnergyMeter
from latfarm_agent.bench.platforms import Platforms
from latfarm_agent.bench.readiness import Monitor, Readiness
from latfarm_agent.bench.results import fail, fill
from latfarm_agent.bench.seats import Seat, measuring_cores
from latfarm_agent.board.conditions import (
    BoardReadiness,
    Sensors,
    fingerprint,
    shares,
    shown,
    spoiled_by,
)
from latfarm_agent.errors import AgentUsageError, LatfarmAgentError
from latfarm_agent.files.folders import remove
from latfarm_agent.runtimes import base
from latfarm_agent.runtimes.simulated.cost import BoardProfile
from latfarm_agent.worker import rules
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.pool import WorkerLimits, Workers
from latfarm_agent.worker.rules import SettingsError, TimingSettings
from latfarm_agent.worker.worker import FOLDER_PREFIX, WorkerFailure

_SIMULATED = "simulated"
_SCRATCH = "scratch-"


class Bench:
    """Measures models on this board. Thread-safe: one measurement at a time, others wait.

    Args:
        board_name: what people call the board; platform names begin with it unless `hardware` does.
        hardware: name of the board's type, so that equal boards offer equal platforms.
        work_dir: for scratch files and, where the board has no identity, its identity.
        simulate: profile file of a simulated board, which then is all that this bench offers.
        cpu: core to measure on; None: the last one where there are two or more. Simulated time
            needs none.
        runtimes: name -> "module:Class"; None: what is registered as entry points.
        search_path: folders added to the workers' module search path.
        config: thread counts (a runtime is pinned to as many cores), and what runtimes are given.
        sensors: of a board that this host only drives, as a phone; None: the board is this host.
        root: where /proc, /sys and /etc are found.

    Raises:
        UsageError: the core does not exist, or the profile is none.
    """

    def __init__(
        self,
        board_name: str,
        hardware: str | None,
        work_dir: Path,
        simulate: Path | None = None,
        cpu: int | None = None,
        *,
        runtimes: Mapping[str, str] | None = None,
        search_path: Sequence[Path] = (),
        config: AgentConfig | None = None,
        sensors: Sensors | None = None,
        limits: WorkerLimits | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._board_name = board_name
        self._hardware_name = hardware or board_name
        self._simulate = Path(simulate).absolute() if simulate else None
        self._profile: BoardProfile | None = None
        if self._simulate is not None:
            try:
                self._profile = BoardProfile.read(self._simulate)
            except (OSError, ValueError) as error:
                raise AgentUsageError(f"--simulate: {error}") from error
        config = config or AgentConfig()
        self._driven = sensors is not None
        on_host = not (self._simulate or self._driven)
        cores = {
            threads: measuring_cores(cpu, threads) if on_host else () for threads in config.threads
        }
        self._work_dir = Path(work_dir).absolute()
        self._work_dir.mkdir(parents=True, exist_ok=True)
        for prefix in (_SCRATCH, FOLDER_PREFIX):
            for left in self._work_dir.glob(prefix + "*"):
                remove(left)  # of an agent that was killed
        own = Sensors(cores[config.threads[0]], root)
        self._sensors = sensors or own
        # The host's rails see nothing of a board that it only drives.
        self._energy = EnergyMeter(root / "nowhere" if self._driven else root, config.power)
        self._hardware = self._sensors.hardware()
        self._software = self._sensors.software()
        self._board_id = self._sensors.board_id(self._work_dir)
        if self._simulate:
            self._board_id = fingerprint({"host": self._board_id, "simulated": board_name})
        if runtimes is None:
            runtimes = base.discover()
            check_names(config, runtimes)
            if self._simulate:
                runtimes = {_SIMULATED: "latfarm_agent.runtimes.simulated.runtime:SimulatedRuntime"}
        configured = dict(config.runtimes)
        runtimes = {
            name: reference
            for name, reference in runtimes.items()
            if configured.get(name, RuntimeConfig()).enabled
        }
        if self._simulate:
            configured[_SIMULATED] = RuntimeConfig(options={"profile": str(self._simulate)})
        limits = limits or WorkerLimits()
        memory = own.hardware()["memory_bytes"]
        if not limits.memory_bytes and memory.isdigit():
            limits = replace(limits, memory_bytes=int(memory) * 8 // 10)
        if not on_host:
            limits = replace(limits, nice=0)
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._workers = Workers(
            runtimes, configured, self._work_dir, cores, search_path, limits, self._closing
        )
        self._sequence = 0
        # By platform: each runtime has a probe of its own, and may be wrong about it.
        self._fastest_us: dict[str, float] = {}
        self._seats = {
            threads: Seat(mine, read, Readiness(read, mine, limits.busy_wait_s, self._closing))
            for threads, mine in cores.items()
            for read in [
                self._sensors
                if self._driven or threads == config.threads[0]
                else Sensors(mine, root)
            ]
        }
        self._readiness = self._seats[config.threads[0]].readiness
        self._platforms = Platforms(
            hardware or board_name, self._hardware, self._software, self._seats, self._profile
        )

    def describe(self) -> tuple[pb.Board, list[pb.Runtime]]:
        """The board, and its runtimes with their platforms; missing ones say why.

        Runtimes are looked for once, in processes of their own; conditions are read each time.
        """
        found = self._workers.found()
        reading = self._readiness.read()
        conditions = dict(
            self._sensors.policy(),
            clock_mhz=shown(reading.clock_mhz),
            temperature_c=shown(reading.temperature_c),
            throttling=shown(reading.throttles),
            load_1m=self._sensors.load(),
            core_mask=self._seats[next(iter(self._seats))].core_mask,
        )
        if not self._simulate:
            conditions["power_rail"] = self._energy.shown()
        hardware = dict(self._hardware, **self._software)
        hardware["name"] = self._hardware_name
        if self._simulate:
            hardware["simulated"] = "yes"
        board = pb.Board(
            board_id=self._board_id,
            name=self._board_name,
            boot_id=self._sensors.boot_id(),
            hardware=hardware,
            conditions=conditions,
        )
        return board, self._platforms.listed(found)

    def measure(
        self,
        request: pb.MeasureRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[pb.Stage], None],
        cancelled: Callable[[], bool],
    ) -> pb.Result:
        """Measure a model, with `profile` its kernels too; blocks until the result is there.

        Never raises. `on_stage` is called from this thread as stages begin; `cancelled` is asked at
        least every 0.1 s: once it says yes, the worker is ended and the result is CANCELLED.
        """
        begun = time.monotonic()
        result = pb.Result(
            request_id=request.request_id,
            board_id=self._board_id,
            platform=request.platform,
            protocol_version=rules.PROTOCOL_VERSION,
            settings=request.settings,
            measured_at_s=time.time(),
        )

        def stage(name: str, session: int = 0) -> None:
            elapsed_ms = (time.monotonic() - begun) * 1e3
            on_stage(pb.Stage(name=name, session=session, elapsed_ms=elapsed_ms))

        def stop() -> bool:
            return self._closing.is_set() or cancelled()

        try:
            with self._lock:
                self._measure(result, request, Path(model_path).absolute(), profile, stage, stop)
        except WorkerFailure as failure:
            fail(result, failure.code, failure.message)
        except SettingsError as error:
            fail(result, "SETTINGS_INVALID", str(error))
        except LatfarmAgentError as error:
            fail(result, error.code, str(error))
        except Exception as error:
            fail(result, "INTERNAL", f"{type(error).__name__}: {error}")
        result.board_ms = (time.monotonic() - begun) * 1e3
        return result

    def restart_workers(self) -> None:
        """End the workers that wait: the next measurement gets a fresh one."""
        with self._lock:
            self._workers.restart()

    def close(self) -> None:
        """Cancel what runs, end all workers. Idempotent."""
        self._closing.set()
        with self._lock:
            self._workers.close()

    def _measure(
        self,
        result: pb.Result,
        request: pb.MeasureRequest,
        model_path: Path,
        profile: bool,
        stage: Callable[[str, int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        if self._closing.is_set():
            raise WorkerFailure("CANCELLED", "the agent is shutting down")
        asked = TimingSettings(
            **{name: getattr(request.settings, name) for name in TimingSettings().to_json()}
        )
        settings = rules.effective(asked)
        result.settings.CopyFrom(pb.Settings(**settings.to_json()))
        platform = self._platforms.find(request.platform, self._workers.found())
        spec, seat = platform.spec, self._seats[platform.threads]
        sensors, readiness = seat.sensors, seat.readiness
        result.fingerprint = self._platforms.fingerprint(platform)
        if not model_path.is_file():
            raise WorkerFailure("BLOB_MISSING", f"the model is not here: {model_path.name}")
        conditions: dict[str, str] = {"runtime_version": platform.version}
        standing = BoardReadiness()
        if spec.real_time:
            standing = sensors.standing()
            conditions.update(standing.told)
            if standing.unfit:
                result.conditions.update(conditions)
                raise WorkerFailure("NOT_READY", standing.unfit, alive=True)
            conditions.update(self._software)
            conditions.update(sensors.policy())
            readiness.wait_until_quiet(conditions, stage, cancelled)
            if settings.tier == "publish":
                readiness.wait_until_cool(stage, cancelled)
        monitor = Monitor(sensors, active=spec.real_time and settings.tier == "publish")
        message: Message = {
            "model_path": str(model_path),
            "platform_settings": dict(spec.settings),
            "dtype": spec.dtype,
            "settings": settings.to_json(),
            "request_id": request.request_id,
            "sequence": self._sequence,
            "fastest_us": self._fastest_us.get(request.platform, 0.0),
            "profile": profile,
        }
        self._sequence += 1
        energy = self._energy.recording(
            settings=spec.settings if settings.energy_ms else None,
            real_time=spec.real_time,
            cores=seat.cores,
        )
        message["rail"] = energy.has_rail

        def on_event(event: Message) -> None:
            monitor.watch(event["name"] in ("timing", "cold"))
            energy.begin(event["name"])
            stage(event["name"], event["session"])

        before, ticks = readiness.read(), sensors.ticks()
        begun = time.monotonic()
        # Ours to remove, as a worker that crashes removes nothing.
        scratch = tempfile.mkdtemp(prefix=_SCRATCH, dir=str(self._work_dir))
        message["scratch_dir"] = scratch
        try:
            done, crashed = self._workers.ask(
                platform.runtime, platform.threads, message, on_event, cancelled
            )
            if crashed:
                conditions["tried_again_after"] = crashed
        except WorkerFailure as failure:
            # A board that went away takes the model's answer with it.
            lost = sensors.lost() if failure.code in ("MODEL_TIMEOUT", "MODEL_CRASHED") else ""
            if lost:
                raise WorkerFailure("DEVICE_LOST", f"{lost}; {failure.message}") from failure
            raise
        finally:
            remove(Path(scratch))
            monitor.close()
            energy.close()
            after, ticks_after = readiness.read(), sensors.ticks()
            readiness.measured(ticks_after)
        if spec.real_time:
            # The kernel counts in steps of 10 ms: of a shorter time no share can be told.
            long_enough = time.monotonic() - begun >= 0.1
            steal = shares(ticks, ticks_after).steal if long_enough else None
            conditions.update(
                clock_mhz_before=shown(before.clock_mhz),
                clock_mhz_after=shown(after.clock_mhz),
                temperature_c_before=shown(before.temperature_c),
                temperature_c_after=shown(after.temperature_c),
                throttling=shown(after.throttles),
                steal_share=shown(steal),
                load_1m=sensors.load(),
                **monitor.logged(),
            )
            if self._driven:
                conditions["core_mask"] = spec.settings.get("core_mask", seat.core_mask)
            else:
                conditions.update(
                    core_mask=",".join(map(str, done["cpus"])),
                    nice=str(done["nice"]),
                    involuntary_switches=str(done["switches"]),
                )
            self._fastest_us[request.platform] = done["sessions"][-1]["fastest_us"]
        fill(result, done, conditions)
        energy.finish(done.get("energy"), result, conditions)
        result.conditions.update(conditions)
        if self._driven:
            result.memory_bytes = 0  # the worker's says nothing of the board
        reason = spoiled_by(before, monitor.samples, after, clock=settings.tier == "publish")
        if spec.real_time and not reason:
            changes = standing.changes(sensors.standing())
            reason = f"the board changed while it measured: {changes}" if changes else None
        if spec.real_time and reason:
            raise WorkerFailure("THROTTLED", reason, alive=True)
        result.outcome = "ok"
