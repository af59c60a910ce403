"""Starts and stops an agent on this machine, which is then called like any other agent.

The agent runs in a session of its own, so that Ctrl-C in the terminal reaches only the controller,
which then stops the agent. The agent watches its parent process, so that it also ends when the
controller is killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

from latfarm_controller.errors import AgentError, AgentLostError
from latfarm_controller.private_files import FILE_MODE, FOLDER_MODE

TAIL_LINES = 15
"""How many lines of the agent's log an error message ends with."""
TAIL_BYTES = 8192
"""How many bytes at the end of the log are read for them."""
LONGEST_PAUSE_MS = 250.0
"""Longest pause between two looks at whether the agent is ready or has ended."""
HEALTH_MS = 2_000.0
"""How long one question whether the agent is ready may take."""


@dataclass(frozen=True, slots=True)
class LocalAgentOptions:
    """How to start an agent; most fields are options of `latfarm-agent serve`.

    Attributes:
        state_dir: where the agent keeps its data.
        log_path: where its output goes; the log of the run before is kept as `<name>.1`.
        name: the name of the board.
        hardware: what the agent says about its hardware.
        simulate: the profile of a simulated board; None: this machine is measured.
        cpu: the core to measure on.
        threads: the numbers of threads to offer, such as "1,2,4".
        config: the agent's configuration file.
        metrics_port: where the agent serves its metrics.
    """

    state_dir: Path
    log_path: Path
    name: str = "local"
    hardware: str = ""
    simulate: Path | None = None
    cpu: int | None = None
    threads: str = ""
    config: Path | None = None
    metrics_port: int | None = None

    def command(self, port_file: Path) -> list[str]:
        """The command that starts the agent, which writes its address to `port_file`."""
        # -P: whatever modules the present folder has
        words = [sys.executable, "-P", "-m", "latfarm_agent.cli", "serve"]
        words += ["--listen", "127.0.0.1:0", "--name", self.name]
        words += ["--state-dir", str(self.state_dir), "--port-file", str(port_file)]
        words += ["--exit-with-parent", str(os.getpid())]
        if self.hardware:
            words += ["--hardware", self.hardware]
        if self.simulate is not None:
            words += ["--simulate", str(self.simulate)]
        if self.cpu is not None:
            words += ["--cpu", str(self.cpu)]
        if self.threads:
            words += ["--threads", self.threads]
        if self.config is not None:
            words += ["--config", str(self.config)]
        if self.metrics_port is not None:
            words += ["--metrics-port", str(self.metrics_port)]
        return words


class LocalAgent:
    """One process of an agent: `start` it, call it at `address`, `stop` it. Not thread-safe."""

    def __init__(self, options: LocalAgentOptions) -> None:
        self.options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def address(self) -> str:
        """The address of the agent, `host:port`; empty while it does not run."""
        return self._address

    @property
    def pid(self) -> int | None:
        """The id of its process, which leads a process group; None while it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and not _ended(self._process.pid)

    def start(self, timeout_ms: float = 60_000.0) -> str:
        """Start the agent and wait until it is ready to serve; returns its address.

        Raises:
            AgentError: the agent cannot be started or ended at once; the message ends with its log.
            AgentLostError: the agent was not ready in time, and was stopped again.
        """
        if self._process is not None:
            return self._address
        port_file = self.options.state_dir / "address"
        try:
            self.options.state_dir.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            self.options.log_path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
            port_file.unlink(missing_ok=True)
            log = _new_log(self.options.log_path)
        except OSError as error:
            raise AgentError(f"cannot start the agent {self.options.name}: {error}") from error
        deadline_s = time.monotonic() + timeout_ms / 1e3
        with log:
            try:
                self._process = subprocess.Popen(
                    self.options.command(port_file),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise AgentError(f"cannot start the agent {self.options.name}: {error}") from error
        try:
            self._address = self._wait_until_ready(port_file, deadline_s)
        except BaseException:
            self.stop()
            raise
        return self._address

    def stop(self, grace_ms: float = 10_000.0) -> None:
        """Stop the agent and all its processes; a second call does nothing.

        Args:
            grace_ms: how long the agent gets to end by itself before it is killed.
        """
        process, self._process, self._address = self._process, None, ""
        if process is None:
            return
        try:
            if not _ended(process.pid):
                process.terminate()
                _wait(lambda: _ended(process.pid), time.monotonic() + grace_ms / 1e3)
        finally:
            # While the leader is a zombie, no other process group can get its number. So the group
            # is killed first, and the leader is reaped afterwards.
            _kill_group(process.pid)
            process.wait()

    def __enter__(self) -> LocalAgent:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def log_tail(self) -> str:
        """The last lines of the agent's log."""
        try:
            with self.options.log_path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-TAIL_LINES:])

    def _wait_until_ready(self, port_file: Path, deadline_s: float) -> str:
        assert self._process is not None
        pid = self._process.pid

        def written() -> bool:
            return _ended(pid) or bool(_read_address(port_file))

        address = ""
        if _wait(written, deadline_s) and not _ended(pid):
            address = _read_address(port_file)
            if _wait(lambda: _ended(pid) or _serving(address), deadline_s) and not _ended(pid):
                return address
        tail = self.log_tail()
        story = f"; the end of {self.options.log_path}:\n{tail}" if tail else ""
        if _ended(pid):
            raise AgentError(f"the agent {self.options.name} ended while it started{story}")
        where = f" at {address}" if address else ""
        raise AgentLostError(f"the agent {self.options.name} was not ready{where} in time{story}")


def _wait(condition: Callable[[], bool], deadline_s: float) -> bool:
    """Wait until a condition holds, with growing pauses; False if the deadline comes first."""
    pause_s = 0.005
    while not condition():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))
        pause_s = min(1.5 * pause_s, LONGEST_PAUSE_MS / 1e3)
    return True


def _ended(pid: int) -> bool:
    """Whether a child process has ended; it is not reaped by this."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _new_log(path: Path) -> IO[bytes]:
    if path.exists():
        path.replace(path.with_name(path.name + ".1"))
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE), "wb")


def _read_address(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.strip() if text.endswith("\n") else ""


def _serving(address: str) -> bool:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=HEALTH_MS / 1e3
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
