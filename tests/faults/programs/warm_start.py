"""Starts programs at once: a process that has imported everything already makes copies of itself.

The import of a controller takes one to two seconds of CPU, which twenty quick runs cannot afford.
Each copy is a process and a session of its own, and can be killed as any other one.

Usage of the module as a program: each line of its standard input starts one program; it answers
with the id of the process. All programs end with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CONTROLLER, BOARDS = "controller", "boards"
"""The programs: see `controller_program` and `board_program`."""

_LOOK_S = 0.05
"""Time between two looks at whether a program has ended, in seconds."""


class WarmStart:
    """The process that makes the copies; use it as a block. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> WarmStart:
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("LATFARM_", "GRPC_"))}
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.programs.warm_start"],
            cwd=Path(__file__).parents[3],
            env={**plain, **threads, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()
        process.wait()

    @property
    def pid(self) -> int:
        """The parent of all programs."""
        assert self._process is not None
        return self._process.pid

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        hooks: str,
        log: Path,
        environment: Mapping[str, str],
    ) -> int:
        """Start a program; gives the id of its process.

        Args:
            program: `CONTROLLER` or `BOARDS`.
            arguments: its command line.
            hooks: what is changed in it, as JSON.
            log: its output is added to this file.
            environment: variables that it has besides those of this process.

        Raises:
            RuntimeError: the process that makes the copies has ended.
        """
        order = {
            "program": program,
            "arguments": list(arguments),
            "hooks": hooks,
            "log": str(log),
            "environment": dict(environment),
        }
        with self._lock:
            process = self._process
            assert process is not None
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that starts programs has ended")
        return int(answer)


def _serve() -> None:
    """Start a program for each line of the standard input, until that is closed."""
    # Everything that a program needs is imported before the first copy is made.
    from tests.faults.programs import board_program, controller_program

    programs = {CONTROLLER: controller_program.run, BOARDS: board_program.run}
    started: set[int] = set()
    descriptor = sys.stdin.fileno()
    rest = b""
    while True:
        _reap(started)
        if not select.select([descriptor], [], [], _LOOK_S)[0]:
            continue
        data = os.read(descriptor, 1 << 16)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                _become(order, programs[order["program"]])
            started.add(pid)
            print(pid, flush=True)
    for pid in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _reap(started: set[int]) -> None:
    """Wait for the programs that have ended, so that they do not stay zombies."""
    with contextlib.suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            started.discard(pid)


def _become(order: Mapping[str, Any], program: Any) -> None:
    """Run a program in this process, which is a fresh copy, and end."""
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(order["environment"])
        code = program(list(order["arguments"]), order["hooks"])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
