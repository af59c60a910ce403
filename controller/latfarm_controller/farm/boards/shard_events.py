"""What a shard tells about its boards. All of it travels from one process to another."""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.farm.scheduling.messages import (
    BoardLost,
    LeaseExpired,
    ProbeAnswered,
    ResultReceived,
    Withdrawn,
)


@dataclass(frozen=True, slots=True)
class BoardConnected:
    """A board is connected and leased.

    `quiet`: the board measures real time on the controller's own host, so that this host must stay
    idle while the board measures. `spooled`: the finished results that the board still had.
    `connection` names the connection; no other one has that name.
    """

    name: str
    info: BoardInfo
    quiet: bool
    spooled: tuple[SpooledResult, ...] = ()
    connection: str = ""


@dataclass(frozen=True, slots=True)
class BoardUnreachable:
    """A board of the inventory cannot be connected now; the shard goes on trying.

    `refused`: the reason is a certificate, the board's or ours. `foreign`: the reason is that it
    gave another id than its own.
    """

    name: str
    reason: str
    refused: bool = False
    foreign: bool = False


@dataclass(frozen=True, slots=True)
class BoardRestarted:
    """The agent of a board has restarted a part, or could not.

    `part` is one of `agents.board.RESTARTS`; `told` says what was done, or why not.
    """

    board_id: str
    part: str
    ok: bool
    told: str = ""


ShardEvent = (
    BoardConnected
    | BoardUnreachable
    | BoardLost
    | LeaseExpired
    | ResultReceived
    | Withdrawn
    | ProbeAnswered
    | BoardRestarted
)
"""What a shard tells, in the order in which it happened."""
