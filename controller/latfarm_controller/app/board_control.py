"""What is done about single boards: drained, put aside, let work again, watched."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.app.pools import LOOK_S, Pools
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY, Standing
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.sentinel_history import SentinelReference
from latfarm_controller.store.base import BoardEvent, CampaignRecord, Store


class BoardControl:
    """Carries out what is asked about a board by its name.

    Args:
        store: of the sentinels' graphs and the decisions.
        fleet: the inventory.
        farm: what runs where.
        driver: measures the sentinel of a board that shall work again.
        desk: decides, and remembers.
        pools: have the farm connected to a board.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        farm: Farm,
        driver: Driver,
        desk: BoardSupervisor,
        pools: Pools,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._farm = farm
        self._driver = driver
        self._desk = desk
        self._pools = pools

    async def drain(self, name: str, reason: str, actor: str) -> pb.BoardStatus:
        """Give a board no new work; what it runs is finished.

        Raises:
            UsageError: there is no such board.
        """
        self._fleet.address(name)
        await self._desk.drain(name, reason, actor)
        return self._standing_of(name)

    async def quarantine(self, name: str, reason: str, actor: str) -> pb.BoardStatus:
        """Stop a board, and use no more what it measured since its last good sentinel.

        Raises:
            UsageError: there is no such board.
        """
        self._fleet.address(name)
        await self._desk.quarantine(name, reason, actor)
        return self._standing_of(name)

    async def resume(
        self, name: str, reason: str, actor: str, *, new_reference: bool
    ) -> pb.BoardStatus:
        """Let a board work again, once its sentinel is as it was.

        Where no reference is known (too few sentinels, or a changed platform), or with
        `new_reference`, it works at once.

        Raises:
            UsageError: there is no such board.
            FarmError: its sentinel cannot be measured, or is still off: it stays as it is.
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

    async def watch(self, name: str) -> AsyncIterator[pb.BoardStatus]:
        """A board's standing now and at each change, until nothing runs on it.

        Raises:
            UsageError: there is no such board.
        """
        self._fleet.address(name)
        told: pb.BoardStatus | None = None
        while True:
            status = self._standing_of(name)
            if status != told:
                yield status
                told = status
            if not status.under_way:
                return
            await asyncio.sleep(LOOK_S)

    async def events(self, name: str) -> list[BoardEvent]:
        """What was decided about a board, or about any, newest first."""
        return await asyncio.to_thread(self._store.board_events, name)

    def add_standing(self, status: pb.BoardStatus) -> None:
        """Whether a board works, and why it does not."""
        status.under_way = self._farm.under_way(status.name)
        why = self._desk.why(status.name)
        status.standing = self._desk.standing(status.name)
        if why is not None:
            status.standing_reason, status.standing_since_s = why.reason, why.at_s
            if status.standing == Standing.DRAINING and not status.under_way:
                status.standing = "drained"

    async def _reference_of(self, name: str) -> tuple[SentinelReference, str] | None:
        """The newest reference of a sentinel that the board still offers to measure, and its id.

        Raises:
            FarmError: it has references, and does not answer.
        """
        references = await self._desk.references(name)
        if not references:
            return None
        (view,) = [view for view in await self._fleet.views() if view.entry.name == name]
        if view.info is None:
            raise FarmError(f"board {name} cannot prove itself: {view.error}")
        for reference in references:
            offered = view.info.platform(reference.platform)
            if offered is not None and offered.fingerprint == reference.fingerprint:
                return reference, view.info.board_id
        return None

    async def _check(
        self, name: str, reference: SentinelReference, board_id: str, actor: str
    ) -> str:
        """Measure a held board's sentinel; what was found, if it is as it was.

        Raises:
            FarmError: it is not.
        """
        graph = await asyncio.to_thread(self._store.get_graph, reference.graph_hash)
        if graph is None:
            raise FarmError(f"the sentinel of {name} is not in the store any more")
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
                f"board {name} stays {self._desk.standing(name)}: {told}; look at cooling, clocks "
                "and what else runs there, or take the sentinel as it is now for the new normal: "
                f"latfarm boards resume {name} --new-reference"
            )
        return told

    def _standing_of(self, name: str) -> pb.BoardStatus:
        status = pb.BoardStatus(
            name=name, address=self._fleet.address(name), board_id=self._farm.board_id(name)
        )
        self.add_standing(status)
        return status
