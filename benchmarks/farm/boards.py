"""The boards of a row: a rack, or agents as processes, behind one inventory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from latfarm_controller.agents.registry import Registry

from benchmarks.farm.agents import end_process, start_agents, wait_for_file
from benchmarks.farm.figures import FarmRow

PLATFORM = "farm-bench"
"""The one platform of all boards."""

PROFILE = {"platform": PLATFORM, "noise": 0.01, "overhead_ms": 0.01}
"""The boards: `make bench-farm` is about the farm, and not about what they compute."""


BOARDS_A_RACK = 64
"""Most boards of one rack. The threads of more boards wait for each other in one interpreter: a
measurement costs a rack of 1,000 boards more than twice the CPU time that it costs one of 64, which
would say nothing about a farm, whose boards are machines of their own."""


@dataclass(frozen=True)
class StartedBoards:
    """Boards that serve.

    Attributes:
        inventory: the file that names them.
        pids: of the processes that serve them.
        state_dir: the folder below which each board has its folder.
        ports: on which they serve.
    """

    inventory: Path
    pids: tuple[int, ...]
    state_dir: Path
    ports: frozenset[int]

    def model_bytes(self) -> int:
        """Bytes of all models that the boards have."""
        return sum(path.stat().st_size for path in self.state_dir.glob("*/blobs/*[0-9a-f]"))


@contextmanager
def started_boards(row: FarmRow, folder: Path, controller: str = "") -> Iterator[StartedBoards]:
    """Start the boards of a row; they end with the block.

    Args:
        row: the row.
        folder: its folder.
        controller: `host:port` that boards call which dial in.
    """
    inventory, profile = folder / "boards.json", folder / "profile.json"
    with ExitStack() as stack:
        state_dir = folder / "boards"
        if row.processes:
            profile.write_text(json.dumps({**PROFILE, "measure_ms": row.measuring_ms}), "utf-8")
            pids = start_agents(stack, row, folder, profile, controller)
        else:
            profile.write_text(json.dumps(PROFILE), "utf-8")
            state_dir = Path(stack.enter_context(TemporaryDirectory(prefix="lf-", dir=_memory())))
            pids = _racks(stack, row, inventory, state_dir, profile)
        entries = Registry(inventory).list()
        # What boards carry that dial in is counted at the controller's end.
        addresses = {controller if entry.dials_in else entry.address for entry in entries}
        ports = frozenset(int(address.rpartition(":")[2]) for address in addresses)
        yield StartedBoards(inventory, pids, state_dir, ports)


def _memory() -> Path | None:
    """A folder in memory, for the files of a thousand boards, each of which has a disk of its own.

    On one disk, ext4 looks at all files that were deleted in the last five seconds for each new
    one.
    """
    folder = Path("/dev/shm")
    return folder if os.access(folder, os.W_OK) else None


def _racks(
    stack: ExitStack, row: FarmRow, inventory: Path, state_dir: Path, profile: Path
) -> tuple[int, ...]:
    """Start racks with all boards of a row, and write one inventory; gives their process ids."""
    racks = []
    for first in range(0, row.boards, BOARDS_A_RACK):
        name = f"rack{first // BOARDS_A_RACK + 1}"
        own, log_path = inventory.with_name(f"{name}.json"), inventory.with_name(f"{name}.log")
        command = [sys.executable, "-m", "latfarm_agent.cli", "rack", str(profile)]
        command += ["--boards", str(min(BOARDS_A_RACK, row.boards - first)), "--name", name]
        command += ["--measuring-time", f"{row.measuring_ms}ms", "--hardware", "rack"]
        command += ["--state-dir", str(state_dir), "--inventory", str(own)]
        command += ["--exit-with-parent", str(os.getpid())]
        with log_path.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        stack.callback(end_process, process)
        racks.append((process, own, log_path))
    found: dict[str, Any] = {"boards": {}}
    for process, own, log_path in racks:
        wait_for_file(own, process, log_path)
        told = json.loads(own.read_text("utf-8"))
        found = {**told, "boards": {**found["boards"], **told["boards"]}}
    inventory.write_text(json.dumps(found), "utf-8")
    return tuple(process.pid for process, _, _ in racks)
