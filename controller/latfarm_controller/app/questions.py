"""One network's latency, asked for: from the store, else from a board at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import (
    ENERGY_MS,
    NETWORK,
    PUBLISH,
    PUBLISH_ENERGY_MS,
    Measurement,
    Settings,
)

from latfarm_controller.app.pools import LOOK_S, Pools
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.errors import ControllerError, FarmError, UsageError
from latfarm_controller.farm.driver import Driver
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY
from latfarm_controller.farm.scope import CampaignScope
from latfarm_controller.store.base import CampaignRecord, Store

_Question = tuple[str, str, str, bool, bool]
"""Network, platform, tier, whether to measure anew, whether with its energy."""


class Questions:
    """Answers each question once, however many ask it at the same time.

    Args:
        store: of what was measured before.
        driver: has a board measure.
        pools: have the farm connected to one.
    """

    def __init__(self, store: Store, driver: Driver, pools: Pools) -> None:
        self._store = store
        self._driver = driver
        self._pools = pools
        self._asked: dict[_Question, asyncio.Task[tuple[Measurement, bool]]] = {}
        self._closing = False

    async def ask(
        self, graph: Graph, platform: str, tier: str, refresh: bool, energy: bool = False
    ) -> AsyncIterator[str | tuple[Measurement, bool]]:
        """Progress as text, then the measurement and whether the store knew it.

        The same question asked twice at once is measured once. Exports of one network are one
        question: `graph_hash` of the measurement says which of them was measured. With `energy`
        only a measurement that tells what an inference costs is known; the new one may still lack
        it, and says why in its conditions.

        Raises:
            UsageError: an unknown tier or platform.
        """
        if tier not in {"", "survey", "publish"}:
            raise UsageError(f"unknown tier {tier!r}: survey or publish")
        settings = PUBLISH if tier == "publish" else NETWORK
        if energy:
            longer_ms = PUBLISH_ENERGY_MS if tier == "publish" else ENERGY_MS
            settings = replace(settings, energy_ms=longer_ms)
        key = (network_hash_of(graph), platform, settings.tier, refresh, energy)
        task = self._asked.get(key)
        if task is None:
            if self._closing:
                raise ControllerError("the controller is stopping")
            task = asyncio.create_task(self._find(graph, platform, settings, refresh))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # At once where the store knows it; else say what takes its time.
        done, _ = await asyncio.wait({task}, timeout=LOOK_S)
        if not done:
            yield f"{graph.name}: measuring on {platform}"
        yield await asyncio.shield(task)

    def _forget(self, key: _Question, task: asyncio.Task[tuple[Measurement, bool]]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # seen: whoever asked was told, or left

    async def _find(
        self, graph: Graph, platform: str, settings: Settings, refresh: bool
    ) -> tuple[Measurement, bool]:
        """Look into the store, then ask a board: one task, so that nobody asks in between."""
        if not refresh:
            known = await asyncio.to_thread(self._latest, graph, platform, settings)
            if known is not None:
                return known, True
        return await self._ask_board(QueryCampaign(graph, platform, settings)), False

    def _latest(self, graph: Graph, platform: str, settings: Settings) -> Measurement | None:
        # What was measured to be published answers the lesser question too.
        tier = settings.tier if settings.tier == PUBLISH.tier else ""
        found = [
            self._store.latest(
                hash_of(graph),
                platform,
                purpose,
                network_hash=network_hash_of(graph),
                tier=tier,
                energy=settings.energy_ms > 0,
            )
            for purpose in ("query", "network")
        ]
        return max(
            (m for m in found if m),
            key=lambda m: (not m.unstable, m.graph_hash == hash_of(graph), m.measured_at_s),
            default=None,
        )

    async def _ask_board(self, campaign: QueryCampaign) -> Measurement:
        await self._pools.open(CampaignScope((campaign.platform,)), asyncio.Event())
        record = CampaignRecord(
            campaign_id=f"query-{campaign.nonce}",
            name="query",
            kind=campaign.kind,
            platform=campaign.platform,
            started_at_s=time.time(),
        )
        record = await self._driver.run(campaign, record, priority=QUERY_PRIORITY)
        if campaign.answer is None:
            raise FarmError(record.error or "the query ended without a measurement")
        return campaign.answer

    async def close(self) -> None:
        """Leave what is asked."""
        self._closing = True
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
