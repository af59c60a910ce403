"""What each kind of fault does to a farm, one small class each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tests.faults import scenario as kinds
from tests.faults.farm_under_test import FarmUnderTest
from tests.faults.programs import jumping_clock
from tests.faults.scenario import Fault

PART_S = 60.0
"""Longest wait for a part of Ray that can be killed, in seconds: Ray may be starting."""

MOMENT_S = 5.0
"""Longest wait for the moment of a cut, in seconds; a link without traffic is cut then."""


@dataclass(frozen=True)
class Strike:
    """A fault that happened.

    Attributes:
        kind: of the fault.
        board: the name of the board that had it; empty: the fault was of no single board.
        at_s: when it began, by the monotonic clock in seconds.
        back_s: when what had failed was there again; for a part of Ray: when it was killed.
        boards: the names of all boards that were away; empty: none.
    """

    kind: str
    board: str
    at_s: float
    back_s: float
    boards: tuple[str, ...] = ()


class FaultAction(Protocol):
    """Lets one fault happen."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Let it happen, and wait until it is over; None if there was nothing to strike."""
        ...


class KillController:
    """Kills the controller, and starts it again, as the host's service manager does."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Kill the controller, wait, and start it again."""
        at_s = time.monotonic()
        farm.kill_controller()
        time.sleep(fault.seconds)
        farm.start_controller()
        return Strike(fault.kind, "", at_s, time.monotonic())


class KillPart:
    """Kills one process of Ray.

    Args:
        chosen: whether a process with this command line is the one.
    """

    def __init__(self, chosen: Callable[[str], bool]) -> None:
        self._chosen = chosen

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Wait until there is such a process, and kill it."""
        until_s = time.monotonic() + PART_S
        while time.monotonic() < until_s and not farm.over and not farm.ended:
            for pid in farm.ray_processes(self._chosen):
                with contextlib.suppress(ProcessLookupError):
                    at_s = time.monotonic()
                    os.kill(pid, signal.SIGKILL)
                    return Strike(fault.kind, "", at_s, at_s)
            time.sleep(0.1)
        return None


class KillAgent:
    """Kills the process of a board, and starts it again."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Kill the agent, or the whole rack, wait, and start it again."""
        process = farm.process_of(fault.board)
        at_s = time.monotonic()
        process.kill()
        farm.journal.killed(process.pid)
        time.sleep(fault.seconds)
        process.start()
        return Strike(fault.kind, "", at_s, time.monotonic(), tuple(process.links))


class KillWorker:
    """Kills the process in which a board runs models."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Kill the worker as soon as there is one."""
        until_s = time.monotonic() + MOMENT_S
        while time.monotonic() < until_s and not farm.ended:
            at_s = time.monotonic()
            if farm.process_of(fault.board).kill_worker():
                return Strike(fault.kind, _name(farm, fault), at_s, at_s)
            time.sleep(0.05)
        return None


class CutLink:
    """Cuts the link to a board at a moment, and lets nobody connect for a while.

    Args:
        moment: see `relay.LinkRelay.arm`.
    """

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Wait for the moment, cut, wait, and let the board be reached again."""
        link = farm.link_of(fault.board)

        async def cut() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MOMENT_S):
                    await link.arm(self._moment).wait()
            link.refuse(refused=True)

        farm.relays.run(cut())
        at_s = time.monotonic()
        time.sleep(fault.seconds)
        farm.relays.call(lambda: link.refuse(refused=False))
        return Strike(fault.kind, _name(farm, fault), at_s, time.monotonic())


class SilenceLink:
    """Lets nothing through a link for a while, although it stays open."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Silence the link, wait, and let it speak again."""
        link = farm.link_of(fault.board)
        at_s = time.monotonic()
        farm.relays.call(lambda: link.silence(silent=True))
        until_s = at_s + fault.seconds
        while time.monotonic() < until_s and not farm.over:
            time.sleep(0.1)
        farm.relays.call(lambda: link.silence(silent=False))
        return Strike(fault.kind, _name(farm, fault), at_s, time.monotonic())


class FillDisk:
    """Lets the process of a board write to no file for a while."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Fill the disk, wait, and free it."""
        process = farm.process_of(fault.board)
        at_s = time.monotonic()
        process.fill_disk(full=True)
        time.sleep(fault.seconds)
        process.fill_disk(full=False)
        return Strike(fault.kind, "", at_s, time.monotonic(), tuple(process.links))


class JumpClock:
    """Lets the wall clock of the controller or of the boards jump, and stay there."""

    def strike(self, farm: FarmUnderTest, fault: Fault) -> Strike | None:
        """Let it jump."""
        at_s = time.monotonic()
        jumping_clock.jump(farm.clocks[fault.where], fault.seconds)
        return Strike(fault.kind, "", at_s, at_s)


def _name(farm: FarmUnderTest, fault: Fault) -> str:
    return list(farm.links)[fault.board]


def _is_shard(command: str) -> bool:
    return "ActorShard" in command


def _is_builder(command: str) -> bool:
    return command.startswith("ray::") and "ActorShard" not in command


def _is_program(name: str) -> Callable[[str], bool]:
    """Whether a command line is that of a program of this name."""
    return lambda command: name in command.partition(" ")[0]


ACTIONS: dict[str, FaultAction] = {
    kinds.CONTROLLER_KILLED: KillController(),
    kinds.SHARD_KILLED: KillPart(_is_shard),
    kinds.RAYLET_KILLED: KillPart(_is_program("raylet")),
    kinds.GCS_KILLED: KillPart(_is_program("gcs_server")),
    kinds.BUILDER_KILLED: KillPart(_is_builder),
    kinds.AGENT_KILLED: KillAgent(),
    kinds.WORKER_KILLED: KillWorker(),
    kinds.CUT_BEFORE_REQUEST: CutLink("request"),
    kinds.CUT_BEFORE_ANSWER: CutLink("answer"),
    kinds.CUT_DURING_ANSWER: CutLink("during"),
    kinds.SILENCE: SilenceLink(),
    kinds.FULL_DISK: FillDisk(),
    kinds.CLOCK_JUMPS: JumpClock(),
}
"""What happens at each kind of fault. The others are faults that a board has from its start."""
