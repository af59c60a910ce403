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

from latfarm_controller.agents.registry import Registry

from benchmarks.farm.agents import end_process, start_agents, wait_for_file
from benchmarks.farm.figures import FarmRow

PLATFORM = "farm-bench"
"""The one platform of all boards."""

PROFILE = {"platform": PLATFORM, "noise": 0.01, "overhead_ms": 0.01}
"""The boards: `make bench-farm` is about the farm, and not about what they compute."""


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
    inventory, state_dir = folder / "boards.json", folder / "boards"
    profile = folder / "profile.json"
    with ExitStack() as stack:
        if row.processes:
            profile.write_text(json.dumps({**PROFILE, "measure_ms": row.measuring_ms}), "utf-8")
            pids = start_agents(stack, row, folder, profile, controller)
        else:
            profile.write_text(json.dumps(PROFILE), "utf-8")
            pids = _rack(stack, row, inventory, state_dir, profile)
        entries = Registry(inventory).list()
        # What boards carry that dial in is counted at the controller's end.
        addresses = {controller if entry.dials_in else entry.address for entry in entries}
        ports = frozenset(int(address.rpartition(":")[2]) for address in addresses)
        yield StartedBoards(inventory, pids, state_dir, ports)


def _rack(
    stack: ExitStack, row: FarmRow, inventory: Path, state_dir: Path, profile: Path
) -> tuple[int, ...]:
    command = [sys.executable, "-m", "latfarm_agent.cli", "rack", str(profile)]
    command += ["--boards", str(row.boards), "--measuring-time", f"{row.measuring_ms}ms"]
    command += ["--state-dir", str(state_dir), "--inventory", str(inventory)]
    command += ["--exit-with-parent", str(os.getpid())]
    log_path = inventory.with_name("rack.log")
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    stack.callback(end_process, process)
    wait_for_file(inventory, process, log_path)
    return (process.pid,)
