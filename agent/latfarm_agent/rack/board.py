"""The bench of one board of a rack: the usual bench, whose runtime computes in this process.

A board that `latfarm-agent serve --simulate` serves has a worker process, since its runtime crashes
and hangs as a real one does. Here the same runtime and the same measuring loop run in the thread of
the board, and a crash or a hang is told as the agent tells it of a worker. The measuring time is
waited for.
"""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping

from latfarm_agent.bench.bench import Bench
from latfarm_agent.bench.options import BenchOptions
from latfarm_agent.bench.simulated import REFERENCE, RUNTIME, SimulatedBoard
from latfarm_agent.board.conditions import UNKNOWN, CoreTicks, SensorReading, Sensors
from latfarm_agent.rack.faults import BoardFaults, with_faults
from latfarm_agent.rack.shared_clock import SharedClock
from latfarm_agent.runtimes.base import Job, Prepared, RuntimeFailure
from latfarm_agent.runtimes.simulated.profile import BoardProfile
from latfarm_agent.runtimes.simulated.runtime import SimulatedRuntime
from latfarm_agent.worker import replies
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.measure import LoopWatch
from latfarm_agent.worker.pool import DiscoveredRuntime, WorkerSetup
from latfarm_agent.worker.request import measure_request
from latfarm_agent.worker.rules import TimingSettings


class RackSensors(Sensors):
    """The sensors of all boards of a rack: this machine's identity, and nothing that is measured.

    A board whose latency is computed needs no temperature, and a thousand boards that read the
    files of the kernel before and after each measurement would cost more than they compute.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__((), root)
        self._hardware = super().hardware()
        self._software = super().software()
        self._boot_id = super().boot_id()

    def read(self) -> SensorReading:
        """Nothing is known."""
        return SensorReading(None, None, None)

    def ticks(self) -> CoreTicks | None:
        """Nothing is known."""
        return None

    def load(self) -> str:
        """Nothing is known."""
        return UNKNOWN

    def policy(self) -> dict[str, str]:
        """Nothing: no setting of this machine changes a computed latency."""
        return {}

    def hardware(self) -> dict[str, str]:
        """What this machine is made of, read once."""
        return dict(self._hardware)

    def software(self) -> dict[str, str]:
        """Operating system and kernel, read once."""
        return dict(self._software)

    def boot_id(self) -> str:
        """The identity of this boot, read once."""
        return self._boot_id


@dataclass(frozen=True)
class RackBoardSetup:
    """What a board of a rack is made of.

    Attributes:
        name: of the board.
        hardware: the type of the board, shared by all boards of the rack.
        profile_path: the file with its profile.
        measuring_ms: real time that one measurement takes, in milliseconds; None: as the profile
            says.
        faults: what goes wrong on it.
        restart: called in the thread of the board when the board has to restart.
    """

    name: str
    hardware: str
    profile_path: Path
    measuring_ms: float | None = None
    faults: BoardFaults = dataclasses.field(default_factory=BoardFaults)
    restart: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class _Request:
    """The request that a board measures now."""

    request_id: str
    limit_ms: float
    cancelled: Callable[[], bool]


class RackRuntime(SimulatedRuntime):
    """The runtime of a simulated board, which waits, crashes and hangs without a process.

    Args:
        setup: what the board is made of.
        profile: as the board really behaves.
        clock: wakes the board.
    """

    def __init__(self, setup: RackBoardSetup, profile: BoardProfile, clock: SharedClock) -> None:
        super().__init__(profile=profile)
        self._setup = setup
        self._clock = clock
        self._request = _Request("", 0.0, lambda: False)

    def begin(self, request: _Request) -> None:
        """A request begins."""
        self._request = request

    def prepare(self, job: Job) -> Prepared:
        """Read the graph, and misbehave as profile and faults say."""
        name, faults = self._setup.name, self._setup.faults
        if job.session == 0 and faults.hang_rate and faults.hangs(name, job.request_id):
            self.hang()
        prepared = super().prepare(job)
        if job.session == 0 and faults.late_rate:
            self.pass_time(faults.extra_ms(name, job.request_id))
        return prepared

    def pass_time(self, wait_ms: float) -> None:
        """Wait without keeping a core busy.

        Raises:
            WorkerFailure: CANCELLED.
        """
        if not self._clock.wait(wait_ms / 1e3, self._request.cancelled):
            raise WorkerFailure("CANCELLED", "cancelled while loading")

    def crash(self) -> None:
        """Fail as a worker that crashed.

        Raises:
            WorkerFailure: MODEL_CRASHED.
        """
        raise WorkerFailure("MODEL_CRASHED", "the worker ended by signal SIGSEGV")

    def hang(self) -> None:
        """Wait until the time limit of the model, and fail as a worker that was silent so long.

        Raises:
            WorkerFailure: MODEL_TIMEOUT or CANCELLED.
        """
        limit_ms = self._request.limit_ms
        self.pass_time(limit_ms)
        raise WorkerFailure("MODEL_TIMEOUT", f"no answer within {limit_ms:.0f} ms while loading")


class RackWorkers:
    """Measures with a runtime in this process; see `worker.pool.RuntimeWorkers`.

    Args:
        setup: what the board is made of.
        profile: as the board really behaves.
        clock: wakes the board.
    """

    separate = False

    def __init__(self, setup: RackBoardSetup, profile: BoardProfile, clock: SharedClock) -> None:
        self._setup = setup
        self._asked = 0
        self._runtime = RackRuntime(setup, profile, clock)
        described = self._runtime.describe()
        self._found = {
            RUNTIME: DiscoveredRuntime(
                version=described.version,
                platforms=described.platforms,
                threads=(1,) * len(described.platforms),
            )
        }

    def found(self) -> Mapping[str, DiscoveredRuntime]:
        """The one runtime."""
        return self._found

    def ask(
        self,
        name: str,
        threads: int,
        message: Message,
        on_event: Callable[[Message], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Message, str]:
        """Measure in the calling thread; see `worker.pool.Workers.ask`."""
        del name, threads
        self._asked += 1
        every = self._setup.faults.restart_every
        if every and self._asked % every == 0:
            self._setup.restart()
        settings = TimingSettings.from_json(message["settings"])
        request = _Request(message["request_id"], settings.compile_timeout_ms, cancelled)
        self._runtime.begin(request)

        def on_stage(stage: str, session: int, patience_ms: float) -> None:
            del patience_ms
            on_event({"event": "stage", "name": stage, "session": session})

        watch = LoopWatch(stage=on_stage, beat=lambda: None, flush=lambda: None)
        try:
            done = measure_request(self._runtime, dict(message, scratch_dir=""), settings, watch)
        except RuntimeFailure as failure:
            code = replies.failure_code(failure.code)
            raise WorkerFailure(code, failure.message, alive=True) from failure
        except WorkerFailure:
            raise
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            raise WorkerFailure("MODEL_FAILED", text, alive=True) from error
        # There is no worker whose cores, priority and memory could be told.
        told = {"cpus": [], "nice": 0, "peak_bytes": 0, "rss_bytes": 0, "switches": 0}
        return {**done, **told}, ""

    def restart(self) -> None:
        """Do nothing: there is no process."""

    def rediscover(self) -> None:
        """Do nothing: the one runtime is a part of this process."""

    def close(self) -> None:
        """Do nothing: there is no process."""


def rack_bench(
    setup: RackBoardSetup, work_dir: Path, sensors: Sensors, clock: SharedClock
) -> Bench:
    """The bench of one board of a rack.

    Args:
        setup: what the board is made of.
        work_dir: folder for its models.
        sensors: those of the rack.
        clock: wakes the board.

    Raises:
        AgentUsageError: the file is not a profile.
    """
    options = BenchOptions(setup.name, setup.hardware, work_dir, runtimes={RUNTIME: REFERENCE})
    board = SimulatedBoard(options, setup.profile_path, Path("/"), sensors)
    profile = with_faults(board.profile, setup.faults)
    if setup.measuring_ms is not None:
        profile = dataclasses.replace(profile, measure_ms=setup.measuring_ms)

    def make_workers(worker_setup: WorkerSetup, closing: threading.Event) -> RackWorkers:
        del worker_setup, closing  # a bench that closes cancels what runs
        return RackWorkers(setup, profile, clock)

    return Bench(board, options, make_workers)
