"""`latfarm` with what a run needs changed: no Ray, far shards, or a clock that jumps.

Usage: `python -m tests.faults.programs.controller_program HOOKS serve`, where HOOKS is JSON. A run
that changes nothing starts `latfarm serve` itself.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller import builders as _builders  # noqa: F401  # so that forks have it
from latfarm_controller.api import server
from latfarm_controller.cli.main import run as run_latfarm
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.processes.backends import InlineBackend

from tests.faults.programs import jumping_clock


@dataclass(frozen=True)
class ControllerHooks:
    """What is changed in the process of the controller.

    Attributes:
        ray: whether it uses Ray; otherwise models are built in its own process.
        own_boards: how many boards its own event loop has before there are shards of their own
            processes; None: as many as always.
        clock: the file of the clock; empty: it does not jump.
    """

    ray: bool = True
    own_boards: int | None = None
    clock: str = ""

    def to_json(self) -> str:
        """The hooks for another process."""
        return json.dumps(dataclasses.asdict(self))

    @property
    def empty(self) -> bool:
        """Whether nothing is changed."""
        return self == ControllerHooks()


def run(arguments: list[str], hooks_json: str) -> int:
    """Run a command of `latfarm`; gives its exit code."""
    hooks = ControllerHooks(**json.loads(hooks_json))
    changed: Any = server
    if hooks.clock:
        jumping_clock.install(Path(hooks.clock))
    if hooks.own_boards is not None:
        shard_pool.OWN_BOARDS = hooks.own_boards
    if not hooks.ray:
        changed.RayBackend = lambda options: InlineBackend()
    return run_latfarm(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[2:], sys.argv[1]))
