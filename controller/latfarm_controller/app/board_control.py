"""What operators do about single boards: drain, quarantine, resume and watch them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.app.pools import LOOK_S, Pools
from latfarm_controller.app.summaries import BoardSummary
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.errors import FarmError, UsageError
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY, Standing
from latfarm_controller.farm.supervision.board_decisions import MAINTENANCE, RESERVED, story
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.power_switch import PowerSwitch
from latfarm_controller.farm.supervision.recovery_crew import RecoveryCrew
from latfarm_controller.farm.supervision.reservations import Reservations
from latfarm_controller.farm.supervision.sentinel_history import SentinelReference
from latfarm_controller.store.base import BoardEvent, CampaignRecord, Store

LONGEST_DRAIN_S = 30 * 86_400.0
"""Longest time from a drain to its deadline, in seconds."""
DRAINED = "drained"
"""Standing of a draining board on which nothing runs any more."""


@dataclass(frozen=True, slots=True)
class BoardCare:
    """What switches, reserves and recovers boards; `crew` is None where nobody recovers them."""

    power: PowerSwitch
    reservations: Reservations
    crew: RecoveryCrew | None = None


class BoardControl:
    """Carries out what operators ask about a board, which they name as the inventory does.

    Args:
        store: holds the sentinels' graphs and the decisions about boards.
        fleet: the boards of the inventory.
        farm: knows how many requests each board has.
        driver: measures the sentinel of a board before the board may work again.
        desk: decides about boards, and remembers the decisions.
        pools: connects the farm to a board.
        care: switches the power of boards, reserves and recovers them.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        farm: Farm,
        driver: Driver,
        desk: BoardSupervisor,
        pools: Pools,
        care: BoardCare,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._farm = farm
        self._driver = driver
        self._desk = desk
        self._pools = pools
        self._switch = care.power
        self._crew = care.crew
        self._reservations = care.reservations

    async def drain(
        self, name: str, reason: str, actor: str, *, deadline_s: float = 0.0
    ) -> BoardSummary:
        """Give a board no new work; it finishes the work that it has, until the deadline if any.

        Args:
            name: of the board.
            reason: why.
            actor: who decides.
            deadline_s: after so many seconds, what is left goes to other boards; 0: never.

        Raises:
            UsageError: there is no such board, or the deadline is no time.
        """
        self._fleet.address(name)
        if not 0 <= deadline_s <= LONGEST_DRAIN_S:
            raise UsageError("the deadline of a drain must be from 0 s to 30 days")
        await self._desk.drain(name, reason, actor, deadline_s=deadline_s)
        return self._standing_of(name)

    async def power(self, name: str, action: str, reason: str, actor: str) -> str:
        """Switch the power of a board by its hooks; returns the last words of the hook.

        Raises:
            UsageError: there is no such board or action, or the board has no hook for it.
            FarmError: the hook failed, or must not be run now.
        """
        self._fleet.address(name)
        return await self._switch.switch(name, action, reason, actor)

    async def quarantine(self, name: str, reason: str, actor: str) -> BoardSummary:
        """Stop a board, and discard what it measured since its last good sentinel.

        Raises:
            UsageError: there is no such board.
        """
        self._fleet.address(name)
        await self._desk.quarantine(name, reason, actor)
        return self._standing_of(name)

    async def resume(
        self, name: str, reason: str, actor: str, *, new_reference: bool
    ) -> BoardSummary:
        """Let a board work again if its sentinel takes as long as it used to.

        The board works at once, without a measurement, where no reference latency is known (it
        measured too few sentinels, or its platform has changed) and with `new_reference`.

        Raises:
            UsageError: there is no such board.
            FarmError: the sentinel cannot be measured, or its latency is still off; the board's
                standing does not change.
        """
        self._fleet.address(name)
        if self._desk.standing(name) is Standing.WORKING:
            return self._standing_of(name)
        if not new_reference:
            found = await self._reference_of(name)
            if found is not None:
                told = await self._check(name, *found, actor)
                reason = f"{reason}; {told}" if reason else told
        await self._desk.resume(name, reason, actor, new_reference=new_reference)
        return self._standing_of(name)

    async def reserve(self, name: str, reason: str, actor: str, *, until_s: float) -> BoardSummary:
        """Reserve a board for the caller until a Unix time; it then works again by itself.

        Raises:
            UsageError: there is no such board, or the time cannot be.
            FarmError: the board does not work, or is reserved by somebody else.
        """
        self._fleet.address(name)
        await self._reservations.reserve(name, actor, until_s, reason)
        return self._standing_of(name)

    async def release(self, name: str, actor: str) -> BoardSummary:
        """End the caller's reservation of a board.

        Raises:
            UsageError: there is no such board.
            FarmError: it is not reserved, or by somebody else.
        """
        self._fleet.address(name)
        await self._reservations.release(name, actor)
        return self._standing_of(name)

    async def watch(self, name: str) -> AsyncIterator[BoardSummary]:
        """A board's standing now and at each change, until nothing runs on it.

        Raises:
            UsageError: there is no such board.
        """
        self._fleet.address(name)
        told: BoardSummary | None = None
        while True:
            status = self._standing_of(name)
            if status != told:
                yield status
                told = status
            if not status.under_way:
                return
            await asyncio.sleep(LOOK_S)

    async def events(self, name: str) -> list[BoardEvent]:
        """What was decided about a board, newest first; about all boards where `name` is empty.

        A board that was removed keeps its events.

        Raises:
            UsageError: there is no such board, and there never was.
        """
        found = await asyncio.to_thread(self._store.board_events, name)
        if name and not found:
            self._fleet.address(name)
        return found

    def with_standing(self, board: BoardSummary) -> BoardSummary:
        """The same board, with whether it may work, and why it may not."""
        under_way = self._farm.under_way(board.name)
        standing = str(self._desk.standing(board.name))
        why = self._desk.why(board.name)
        if why is None:
            trouble = "" if self._crew is None else self._crew.story(board.name)
            detail = "; ".join(filter(None, (board.detail, trouble)))
            return replace(board, under_way=under_way, standing=standing, detail=detail)
        if standing == Standing.DRAINING and not under_way:
            standing = DRAINED
        if why.event in (RESERVED, MAINTENANCE):
            standing = why.event
        return replace(
            board,
            under_way=under_way,
            standing=standing,
            standing_reason=story(why),
            standing_since_s=why.at_s,
        )

    async def _reference_of(self, name: str) -> tuple[SentinelReference, str] | None:
        """The newest reference latency that the board can still be compared with, and its board id.

        Returns:
            None, if there is no reference of a platform that the board offers unchanged.

        Raises:
            FarmError: there are references, but the board does not answer.
        """
        references = await self._desk.references(name)
        if not references:
            return None
        (view,) = [view for view in await self._fleet.views() if view.entry.name == name]
        if view.info is None:
            raise FarmError(
                f"the sentinel of board {name} cannot be measured, because its agent does not "
                f"answer: {view.error}"
            )
        for reference in references:
            offered = view.info.platform(reference.platform)
            if offered is not None and offered.fingerprint == reference.fingerprint:
                return reference, view.info.board_id
        return None

    async def _check(
        self, name: str, reference: SentinelReference, board_id: str, actor: str
    ) -> str:
        """Measure the sentinel of a board that may not work, and compare it with its reference.

        Returns:
            A sentence about the latency, if the board may work again.

        Raises:
            FarmError: the latency is off, or the sentinel cannot be measured.
        """
        graph = await asyncio.to_thread(self._store.get_graph, reference.graph_hash)
        if graph is None:
            raise FarmError(
                f"the network of the sentinel of {name} is missing from the store; to let the "
                f"board work without a comparison: latfarm boards resume {name} --new-reference"
            )
        campaign = CheckCampaign(graph, reference.platform, reference.settings, board_id)
        scope = CampaignScope((reference.platform,), board_id)
        await self._pools.open(scope, asyncio.Event())
        record = CampaignRecord(
            campaign_id=f"check-{campaign.nonce}",
            name=f"check of {name}",
            kind=campaign.kind,
            platform=reference.platform,
            started_at_s=time.time(),
        )
        self._desk.allow_check(name, allowed=True)
        try:
            ended = await self._driver.run(campaign, record, priority=QUERY_PRIORITY, scope=scope)
        finally:
            self._desk.allow_check(name, allowed=False)
        if campaign.latency_ms is None:
            text = ended.error or "; ".join({m.error_message for m in campaign.answers})
            raise FarmError(f"board {name} could not measure its sentinel: {text}")
        told = f"its sentinel takes {reference.tell(campaign.latency_ms)}"
        if not reference.accepts(campaign.latency_ms):
            await self._desk.check_failed(name, told, actor)
            raise FarmError(
                f"board {name} stays {self._desk.standing(name)}: {told}; check its cooling, its "
                "clocks and its other processes, or accept the present latency as the new normal "
                f"one: latfarm boards resume {name} --new-reference"
            )
        return told

    def _standing_of(self, name: str) -> BoardSummary:
        board_id = self._farm.board_id(name)
        board = BoardSummary(name=name, address=self._fleet.address(name), board_id=board_id)
        profile = self._fleet.profiles().get(name)
        return self.with_standing(board if profile is None else board.noted(profile))
