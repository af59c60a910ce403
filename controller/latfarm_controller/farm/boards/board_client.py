"""What the farm needs of the client of a board.

`agents.streaming.StreamingClient` has it, and so have the fake boards of tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import BoardInfo, Lease
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.farm.boards.interfaces import BoardRequest


class BoardClient(Protocol):
    """What a shard needs of the client of a board; `agents.streaming.StreamingClient` has it.

    Each method raises an AgentError when the board refuses, and an AgentLostError when the board
    cannot be reached.
    """

    async def describe(self, timeout_ms: float | None = None) -> BoardInfo:
        """Ask the board what it is and which platforms it offers."""
        ...

    async def acquire(self, ttl_ms: int, holder_id: str = "") -> Lease:
        """Lease the board for `ttl_ms` milliseconds; the holder of that id gets it at once."""
        ...

    async def renew(self, ttl_ms: int | None = None) -> Lease:
        """Extend the lease, by default by as long as it was granted for."""
        ...

    async def release(self) -> None:
        """Give the lease back; what runs on the board is cancelled."""
        ...

    async def upload(self, sha256: str, data: bytes) -> int:
        """Send a file of a model to the board unless the board has it; returns the bytes sent."""
        ...

    async def measure(
        self, request: BoardRequest, sha256: str, *, companions: Mapping[str, str]
    ) -> Measurement:
        """Have a model measured that was uploaded with its companions; waits for the result."""
        ...

    async def results(self, after: str = "") -> list[SpooledResult]:
        """Finished results in the board's spool that follow the one of the request `after`."""
        ...

    async def withdraw(self, request_id: str) -> bool:
        """Stop one request that is being measured; False, if only the end of the lease does that.

        `measure` then returns a failure with the code `CANCELLED`, or a result that came before.
        """
        ...

    async def acknowledge(self, request_ids: Sequence[str]) -> int:
        """Let the board forget results; returns how many it had or will be told."""
        ...

    async def restart(self, part: str) -> str:
        """Have the agent restart a part of it, one of `agents.board.RESTARTS`; what was done."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


Connect = Callable[[BoardEntry, str], BoardClient]
"""Makes the client of a board, for the holder of that name. It is pickled, so by its name."""
