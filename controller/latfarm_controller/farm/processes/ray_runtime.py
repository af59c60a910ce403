"""Starts Ray for one life of the Ray process, on loopback only, and removes all of it afterwards.

Where Ray 2.60 listens was found with psutil, and `tests/controller/farm/processes/test_ray.py`
checks it again. When Ray is told to use 127.0.0.1, it looks up the machine's outward address all
the same, and its processes then listen on all interfaces (`::`, `0.0.0.0`). The variable
`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0`, which is meant for hosts that cannot form clusters, makes Ray
keep to 127.0.0.1: GCS, raylet, workers, driver, runtime-env agent and autoscaler monitor then
listen on loopback only. Every connection must show a token that is made for the run
(`RAY_AUTH_MODE=token`), so that other users of the machine cannot connect. Ray's client keeps the
first token that it has read, so the token is one for the life of this process and not for a run.

If the Ray process is killed with SIGKILL, Ray's direct children end with it, but its dashboard
agent and its runtime-env agent do not. Therefore a separate process, `cleanup.py`, waits for the
end of the Ray process, kills every process that has the mark of the run in its environment, and
removes the folder of the run.

Ray's children end when the *thread* that started them ends (PR_SET_PDEATHSIG), so the thread that
starts Ray lives until Ray is stopped. Outside the main thread, Ray leaves Python's signal handlers
as they are; an environment variable keeps its C++ code from handling SIGTERM.
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
from pathlib import Path
from typing import Any

from latfarm_controller.agents.tls import is_loopback
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import cleanup

_log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket on Linux, in bytes (`man 7 unix`)."""
SESSION_PATH_LENGTH = 66
"""Length of the path that Ray appends to the folder of a run.

That is `/session_<date>_<time>_<pid>/sockets/plasma_store`, with seven digits for the process id.
"""
MARK = "LATFARM_RAY_RUN"
"""Environment variable that marks the processes of a run."""
MIN_STORE_BYTES = 256 << 20
"""Smallest size of Ray's object store."""
MAX_STORE_BYTES = 2 << 30
"""Largest size of Ray's object store."""
STORE_SHARE = 0.2
"""Share of the memory that is free at the start which Ray's object store may use."""
STOP_S = 30.0
"""Seconds that Ray gets to end by itself before its processes are killed."""
START_TRIES = 4
"""How often Ray is started before it counts as broken.

Ray gives its raylet 30 s to start, which is a constant of its code (`ray/_private/node.py`); on a
host with ten busy processes a core that is not always enough.
"""
_SLOW = "timed out during startup"
"""What Ray's error says when its raylet did not start in time."""
_TOKEN = secrets.token_hex(32)
"""What connections to a Ray of this process must show."""


class RayRuntime:
    """Starts and stops Ray for this process, which can have one Ray at a time. Thread-safe.

    `mark` is the text that the processes of the run have in their environment, and `folder` the
    folder of the run; both are empty on a cluster that was joined.

    Args:
        run_dir: the parent of the run's folder. If the paths of Ray's sockets there would be longer
            than the system allows (107 bytes), a private temporary folder is used instead.
        address: an existing cluster to join, as `host:port`. The operator of that cluster sees to
            who can reach it, and to its token (`RAY_AUTH_MODE`, `RAY_AUTH_TOKEN`). Empty: Ray is
            started on this machine.
        cpus: how many tasks may run at once on a Ray that is started here; 0: one for each core of
            this host, at most 4, because each of them is a process that waits in memory.
        keep_open: file descriptors that the cleanup process holds until it has ended.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        address: str = "",
        cpus: int = 0,
        keep_open: tuple[int, ...] = (),
    ) -> None:
        self._run_dir = run_dir
        self._keep_open = keep_open
        self._address = address
        self._cpus = cpus or min(4, os.cpu_count() or 1)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self.mark = ""
        self._cleanup: subprocess.Popen[bytes] | None = None
        self.folder: Path | None = None

    def start(self) -> None:
        """Start Ray, or join a cluster; this takes seconds. A second call changes nothing.

        Raises:
            FarmError: Ray is used in this process already, or cannot be started.
        """
        with self._lock:
            if self._thread is not None:
                return
            for tried in range(1, START_TRIES + 1):
                error = self._try()
                if error is None:
                    return
                if tried == START_TRIES or _SLOW not in str(error):
                    raise FarmError(f"Ray cannot be started: {error}") from error
                _log.warning("Ray has not started in time (try %d of %d)", tried, START_TRIES)

    def _try(self) -> BaseException | None:
        """Start Ray once; returns why it could not be started, or None."""
        self._ready.clear()
        self._ended.clear()
        self._error = None
        # As a daemon thread, it does not keep a process alive that ends without calling `stop`;
        # the cleanup process then ends Ray.
        self._thread = threading.Thread(target=self._live, name="ray", daemon=True)
        self._thread.start()
        self._ready.wait()
        error = self._failure()
        if error is not None:
            self._thread.join()
            self._thread = None
            self._clean_up()
        return error

    def stop(self) -> None:
        """End Ray and all its processes, or leave the cluster. A second call changes nothing."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._ended.set()
            thread.join(STOP_S)
            self._clean_up()

    def __enter__(self) -> RayRuntime:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def cpus(self) -> int:
        """How many tasks may run at once on a Ray that was started here."""
        return self._cpus

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
        # If this fails, the cleanup process ends Ray.
        with contextlib.suppress(Exception):
            ray.shutdown()

    def _begin(self) -> Any:
        self.folder = make_folder(self._run_dir)
        self.mark = f"{MARK}={secrets.token_hex(16)}"
        name, value = self.mark.split("=")
        self._cleanup = subprocess.Popen(
            [sys.executable, "-I", "-S", cleanup.__file__, self.mark, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=self._keep_open,
        )
        store_bytes = store_size_bytes()
        shm_bytes = shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else 0
        environment = {
            name: value,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _TOKEN,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            # No such port exists: Ray's monitor logs that, and serves no metrics. It would serve
            # them without a token, and nobody reads them.
            "AUTOSCALER_METRIC_PORT": "-1",
            # Shards of boards must not wait for other processes; builders lower their priority
            # themselves.
            "RAY_worker_niceness": "0",
            # Otherwise Ray's C++ code handles SIGTERM of this process: it prints a stack and dies.
            "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
        }
        # Only Ray's processes inherit these variables; agents that are started later do not.
        with _environment(environment):
            ray = _import_ray()
            _keep_to_loopback()
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
                # If /dev/shm is too small, the object store lies in the folder, which is slower.
                # Ray does not warn about that if the folder is named.
                _plasma_directory=None if shm_bytes > store_bytes else str(self.folder),
            )
        ip = ray.util.get_node_ip_address()
        if ip != LOOPBACK:
            ray.shutdown()
            raise FarmError(f"it insists on listening at {ip}, not on loopback")
        return ray

    def _join(self) -> Any:
        environment = {"RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1"}
        here = is_loopback(self._address.rpartition(":")[0].strip("[]"))
        if here:  # otherwise Ray takes this host's outward address in the place of loopback
            environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        with _environment(environment):
            ray = _import_ray()
            if here:
                _keep_to_loopback()
            ray.init(address=self._address, log_to_driver=False, configure_logging=False)
        return ray

    def _clean_up(self) -> None:
        """Have the cleanup process end what is left of the run, and wait until it has done so."""
        process, self._cleanup = self._cleanup, None
        self.mark = ""
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
        self.folder = None


def make_folder(run_dir: Path) -> Path:
    """Make a private folder for one run, under `run_dir` if that path is short enough.

    Raises:
        FarmError: the folder cannot be made.
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
    """The size of Ray's object store: a share of the memory that is free now, within bounds."""
    import psutil

    share = int(STORE_SHARE * psutil.virtual_memory().available)
    return max(MIN_STORE_BYTES, min(MAX_STORE_BYTES, share))


def _import_ray() -> Any:
    # The level is set before the import too, because Ray logs warnings while it is imported.
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        raise FarmError("it is running in this process already")
    logging.getLogger("ray").setLevel(logging.CRITICAL)
    return ray


def _keep_to_loopback() -> None:
    """Have Ray use 127.0.0.1 alone. It reads the variable at its import, which may be over."""
    constants = importlib.import_module("ray._private.ray_constants")
    vars(constants)["ENABLE_RAY_CLUSTER"] = False


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables while the block runs."""
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
