"""The process of the controller's side, as the benchmark talks to it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.farm.figures import DIALLING, FarmRow


class ControllerProcess:
    """The process of the controller's side; see `controller_side`.

    Args:
        process: of it.
        log: what it prints besides its answers.
    """

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def say(self, word: str) -> None:
        """Let it do its next step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, float]:
        """What it found in this step.

        Raises:
            RuntimeError: it has ended.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                found: dict[str, float] = json.loads(line)
                return found
        raise RuntimeError(f"the controller has ended: {self._log.read_text()[-2000:]}")


@contextmanager
def started_controller(
    row: FarmRow, seconds: float, folder: Path, ray_address: str = "", *, inline: bool = False
) -> Iterator[ControllerProcess]:
    """Start the controller's side; it ends with the block.

    Args:
        row: the row.
        seconds: how long the campaign keeps the boards busy.
        folder: of the row.
        ray_address: the cluster that it joins; empty: it starts a Ray of its own.
        inline: without Ray.
    """
    command = [sys.executable, "-m", "benchmarks.farm.controller_side", str(folder)]
    command += [str(row.boards), str(row.measurements(seconds)), str(row.measuring_ms)]
    command += ["--longest-s", str(row.longest_s(seconds))]
    command += ["--inline"] if inline else []
    command += ["--ray-address", ray_address] if ray_address else []
    command += ["--dialling"] if row.link == DIALLING else []
    log_path = folder / "controller.log"
    with log_path.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield ControllerProcess(process, log_path)
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
