"""Questions about the latency of one network: answered from the store, else by a board."""

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
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training.bundle_notes import NewestNotes

_Question = tuple[str, str, str, bool, bool]
"""Hash of the network, platform, tier, whether to measure again, whether to measure energy."""


class Questions:
    """Answers each question once, however many callers ask it at the same time.

    Args:
        store: holds earlier measurements.
        driver: runs the campaign that measures one network.
        pools: connects the farm to a board of the platform.
        notes: adds to each answer what the platform's newest bundle says of it.
    """

    def __init__(self, store: Store, driver: Driver, pools: Pools, notes: NewestNotes) -> None:
        self._store = store
        self._notes = notes
        self._driver = driver
        self._pools = pools
        self._asked: dict[_Question, asyncio.Task[tuple[Measurement, bool]]] = {}
        self._closing = False

    async def ask(
        self, graph: Graph, platform: str, tier: str, refresh: bool, energy: bool = False
    ) -> AsyncIterator[str | tuple[Measurement, bool]]:
        """Find the latency of a network as a board timed it, and what corrects it.

        A question that is asked twice at the same time is measured once. Different exports of one
        network are the same question; `graph_hash` of the measurement says which export was
        measured. With `energy`, the store only answers with a measurement that has an energy. A new
        measurement may still lack it; its conditions then say why.

        Args:
            graph: the network.
            platform: the platform to answer for.
            tier: `survey`, or `publish`, which measures longer; empty: `survey`.
            refresh: measure even if the store has an answer.
            energy: measure the energy of an inference, too.

        Yields:
            Texts about the progress, then the measurement and whether the store had it.

        Raises:
            UsageError: the tier or platform is not known.
            FarmError: no board could measure the network.
        """
        if tier not in {"", "survey", "publish"}:
            raise UsageError(f"there is no tier {tier!r}; give survey or publish")
        settings = PUBLISH if tier == "publish" else NETWORK
        if energy:
            longer_ms = PUBLISH_ENERGY_MS if tier == "publish" else ENERGY_MS
            settings = replace(settings, energy_ms=longer_ms)
        key = (network_hash_of(graph), platform, settings.tier, refresh, energy)
        task = self._asked.get(key)
        if task is None:
            if self._closing:
                raise ControllerError("the controller is stopping; ask again when it is back")
            task = asyncio.create_task(self._find(graph, platform, settings, refresh))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # The store answers at once. If it does not, say why this takes longer.
        done, _ = await asyncio.wait({task}, timeout=LOOK_S)
        if not done:
            yield f"{graph.name} is being measured on {platform}"
        measurement, hit = await asyncio.shield(task)
        (noted,) = await asyncio.to_thread(self._notes.noted, [measurement])
        yield noted, hit

    def _forget(self, key: _Question, task: asyncio.Task[tuple[Measurement, bool]]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # marks the error as seen: each caller got it, or has left

    async def _find(
        self, graph: Graph, platform: str, settings: Settings, refresh: bool
    ) -> tuple[Measurement, bool]:
        """Look into the store, then ask a board. One task does both, so nobody asks in between."""
        if not refresh:
            known = await asyncio.to_thread(self._latest, graph, platform, settings)
            if known is not None:
                return known, True
        return await self._ask_board(QueryCampaign(graph, platform, settings)), False

    def _latest(self, graph: Graph, platform: str, settings: Settings) -> Measurement | None:
        # A measurement for publication answers the question for a survey, too.
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
            key=lambda m: (not m.unstable, m.graph_hash == hash_of(graph), m.told_at_s),
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
            raise FarmError(
                record.error or "the board ended the query without a measurement; ask again"
            )
        return campaign.answer

    async def close(self) -> None:
        """Cancel all questions that are not answered yet."""
        self._closing = True
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
