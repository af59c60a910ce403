"""Ray as a quiet servant: started for one run, on loopback, and gone without a trace afterwards.

Where Ray 2.60 listens (checked with psutil; `test_ray_runtime.py` checks it again): told to use
127.0.0.1 it looks up the machine's outward address instead, and its processes then bind all
interfaces (`::`, `0.0.0.0`). The variable by which it knows hosts that cannot form clusters
(`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0`) makes it take 127.0.0.1 at its word: GCS, raylet, workers,
driver, runtime-env agent and autoscaler monitor then listen on loopback alone. Every connection
must show a token made for the run (`RAY_AUTH_MODE=token`): other users of the machine stay out.

What Ray leaves when its driver is killed (SIGKILL): its direct children end with it, its dashboard
agent and runtime-env agent do not. So a process of ours waits for the driver's end, kills whatever
carries the run's mark in its environment, and removes the run's folder; see `cleanup.py`.

Ray's children end when the *thread* that started them ends (PR_SET_PDEATHSIG): hence a thread that
lives from start to stop. Outside the main thread Ray leaves the signal handlers alone; its C++ side
must be told not to take SIGTERM.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import cleanup

LOOPBACK = "127.0.0.1"
SOCKET_PATH_LIMIT = 107
SESSION_PATH_LENGTH = 66
"""Of `/session_<date>_<time>_<pid>/sockets/plasma_store`, with seven digits for the process."""
MARK = "LATFARM_RAY_RUN"
MIN_STORE_BYTES = 256 << 20
MAX_STORE_BYTES = 2 << 30
STORE_SHARE = 0.2
STOP_S = 30.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A socket on which a process of the run takes connections."""

    pid: int
    process: str
    ip: str
    port: int


class RayRuntime:
    """Starts and stops Ray for this process; at most one at a time. Thread-safe.

    Args:
        run_dir: parent of the run's folder. Where that would make socket paths longer than the
            system allows (107 characters), a private temporary folder is used instead.
        address: an existing cluster to join, `host:port`; its operator cares for its exposure and
            its token (`RAY_AUTH_MODE`, `RAY_AUTH_TOKEN`). Empty: start our own.
        cpus: how many tasks may run at once; 0: one a core, at most 4.
    """

    def __init__(self, run_dir: Path, *, address: str = "", cpus: int = 0) -> None:
        self._run_dir = run_dir
        self._address = address
        self._cpus = cpus or min(4, os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.mark = ""
        self._reaper: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None

    def start(self) -> None:
        """Start or join Ray; blocks for seconds. A second time is no change.

        Raises:
            FarmError: Ray is used in this process already, or cannot be started.
        """
        with self._lock:
            if self._thread is not None:
                return
            self._ready.clear()
            self._ended.clear()
            self._error = None
            # A daemon: an exit that forgets to stop must not hang on it; the reaper cleans up.
            self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
            self._thread.start()
            self._ready.wait()
            error = self._failure()
            if error is not None:
                self._thread.join()
                self._thread = None
                self._reap()
                raise FarmError(f"Ray cannot be started: {error}") from error

    def stop(self) -> None:
        """End Ray and everything it started, or leave the cluster. A second time is no change."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._ended.set()
            thread.join(STOP_S)
            self._reap()

    def __enter__(self) -> RayRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def cpus(self) -> int:
        """How many tasks may run at once on our own Ray."""
        return self._cpus

    def processes(self) -> list[int]:
        """Processes of our own Ray, this one not among them; none on a joined cluster."""
        return cleanup.marked(self.mark.encode()) if self.mark else []

    def listeners(self) -> list[Listener]:
        """Every socket on which our own Ray's processes, or its part of this one, listen."""
        import psutil

        found = []
        for pid in [os.getpid(), *self.processes()]:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                name = " ".join(process.cmdline()[:3]) or process.name()
                found += [
                    Listener(pid, name, connection.laddr.ip, connection.laddr.port)
                    for connection in process.net_connections("tcp")
                    if connection.status == psutil.CONN_LISTEN
                ]
        return found

    def _failure(self) -> BaseException | None:
        return self._error

    # The thread

    def _live(self) -> None:
        try:
            ray = self._join() if self._address else self._begin()
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        self._ended.wait()
        # What fails here is ended by the cleanup.
        with contextlib.suppress(Exception):
            ray.shutdown()

    def _begin(self) -> Any:
        self.folder = make_folder(self._run_dir)
        self.mark = f"{MARK}={secrets.token_hex(16)}"
        name, value = self.mark.split("=")
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", cleanup.__file__, self.mark, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        store_bytes = store_size_bytes()
        shm_bytes = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
        environment = {
            name: value,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "AUTOSCALER_METRIC_PORT": "0",
            # Board shards must not wait behind whatever else the machine does; builders step back
            # by themselves.
            "RAY_worker_niceness": "0",
            # Its C++ side would take SIGTERM from us, print a stack and die of it.
            "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        }
        # Only Ray's processes shall inherit these: not the agents that we start later.
        with _environment(environment):
            ray = _import_ray()
            constants = importlib.import_module("ray._private.ray_constants")
            # Ray reads the variable when it is imported, which may have been before.
            vars(constants)["ENABLE_RAY_CLUSTER"] = False
            ray.init(
                address="local",
                _node_ip_address=LOOPBACK,
                num_cpus=self._cpus,
                num_gpus=0,
                object_store_memory=store_bytes,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                _temp_dir=str(self.folder),
                # Too small a /dev/shm costs speed, not correctness; named, Ray does not warn of it.
                _plasma_directory=None if shm_bytes > store_bytes else str(self.folder),
            )
        ip = ray.util.get_node_ip_address()
        if ip != LOOPBACK:
            ray.shutdown()
            raise FarmError(f"it insists on listening at {ip}, not on loopback")
        return ray

    def _join(self) -> Any:
        with _environment({"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}):
            ray = _import_ray()
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
        return ray

    def _reap(self) -> None:
        """Nothing of the run is left when this returns."""
        process, self._reaper = self._reaper, None
        self.mark = ""
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        self.folder = None


def make_folder(run_dir: Path) -> Path:
    """A new private folder for one run: under `run_dir` when that is short enough.

    Raises:
        FarmError: it cannot be made.
    """
    name_length = len(os.fsencode(run_dir.absolute())) + 1 + len("r-01234567")
    try:
        if name_length + SESSION_PATH_LENGTH > SOCKET_PATH_LIMIT:
            return Path(tempfile.mkdtemp(prefix="latfarm-"))
        run_dir.mkdir(parents=True, exist_ok=True)
        folder = run_dir.absolute() / f"r-{secrets.token_hex(4)}"
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise FarmError(f"no folder for Ray under {run_dir}: {error}") from error
    return folder


def store_size_bytes() -> int:
    """Size of the object store: a share of the memory that is free now, within bounds."""
    import psutil

    share = int(STORE_SHARE * psutil.virtual_memory().available)
    return max(MIN_STORE_BYTES, min(MAX_STORE_BYTES, share))


def _import_ray() -> Any:
    # Before the import: it warns while it is imported.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        raise FarmError("it is running in this process already")
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return ray


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
