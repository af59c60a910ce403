"""Runs campaigns of all kinds: starts, watches, cancels and resumes them, and trains bundles."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.app import comparison
from latfarm_controller.app.pools import Pools
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.campaigns.kinds import COMPARING, TRAINED, make_campaign
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.farm.driving.campaign_run import CampaignStatus
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.nearest_names import hint
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training import bundles
from latfarm_controller.training.training import train

logger = logging.getLogger(__name__)
RUNNING = "running"
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"
REMOVED = "removed"
"""State of a campaign that a person took out of all lists."""
CLOSE_S = 30.0
"""Longest wait for campaigns to stop when the controller stops, in seconds."""


class _StoppedError(ControllerError):
    """The training was stopped by a user."""


def campaign_id(kind: str, platform: str, config: Mapping[str, Any], name: str) -> str:
    """The id of a campaign; it is equal for equal kind, platform, configuration and name."""
    text = json.dumps([kind, platform, config, name], sort_keys=True)
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


class CampaignRuns:
    """Runs campaigns on boards and keeps what they find.

    All its methods belong to one event loop: call them there alone.

    Args:
        store: holds records and measurements.
        fleet: the boards of the inventory.
        driver: runs one campaign.
        pools: connects the farm to a campaign's boards.
        bundles_dir: the folder of all bundles.
        watch: is told about each predictor that is trained; None: nobody is told.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        driver: Driver,
        pools: Pools,
        bundles_dir: Path,
        watch: FarmObserver | None = None,
    ) -> None:
        self._watch = watch or FarmObserver()
        self._store = store
        self._fleet = fleet
        self._driver = driver
        self._pools = pools
        self._bundles_dir = bundles_dir
        self._remaining_s: dict[str, float] = {}
        self._records: dict[str, CampaignRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancels: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Condition()
        self._tellers: set[asyncio.Future[None]] = set()
        self._closing = False
        for record in store.campaigns():
            if (
                record.state == RUNNING
            ):  # the process that ran it is gone, because this one holds the lock
                store.put_campaign(replace(record, state=INTERRUPTED))

    async def start(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str
    ) -> CampaignRecord:
        """Start a campaign, or continue the same one; a finished one is returned as it is.

        Raises:
            UsageError: the kind or platform is not known, or the configuration is wrong.
        """
        await asyncio.to_thread(make_campaign, kind, platform, config)  # raises an error early
        key = campaign_id(kind, platform, config, name)
        if kind in COMPARING:
            config = comparison.compared(platform, config, await self._fleet.views())
        else:
            await self._fleet.offering(platform)
        known = self._known(key)
        if known is not None:
            return known if known.state == "done" else self._launch(known)
        record = CampaignRecord(
            campaign_id=key,
            name=name or key,
            kind=kind,
            platform=platform,
            config=dict(config),
            started_at_s=time.time(),
        )
        return self._launch(record)

    async def all(self) -> list[CampaignRecord]:
        """All campaigns, newest first, without those that only answer one question."""
        stored = await asyncio.to_thread(self._store.campaigns)
        found = {record.campaign_id: record for record in stored} | self._records
        hidden = (QueryCampaign.kind, CheckCampaign.kind)
        shown = [
            record
            for record in found.values()
            if record.kind not in hidden and record.state != REMOVED
        ]
        return sorted(shown, key=lambda record: record.started_at_s, reverse=True)

    async def get(self, name: str) -> CampaignRecord:
        """One campaign by id or name.

        Raises:
            UsageError: there is none; the message names the newest ones.
        """
        record = self._known(name)
        if record is None or record.state == REMOVED:
            known = await self.all()
            some = ", ".join(r.campaign_id for r in known[:8]) or "none yet"
            near = hint(name, [text for r in known for text in (r.name, r.campaign_id)])
            raise UsageError(f"there is no campaign {name!r}; the newest are: {some}{near}")
        return record

    async def watch(self, name: str) -> AsyncIterator[CampaignRecord]:
        """The campaign now and at each change, until it ends.

        Raises:
            UsageError: there is none.
        """
        key = (await self.get(name)).campaign_id
        while True:
            # Read both at the same moment: a campaign that ended between two reads would be shown
            # as if it still ran.
            record, ended = await self.get(key), key not in self._tasks
            yield replace(record, config={})
            if ended:
                return
            await self._wait_for_change(record)

    async def _wait_for_change(self, seen: CampaignRecord) -> None:
        key = seen.campaign_id
        async with self._changed:
            await self._changed.wait_for(lambda: self._known(key) != seen or key not in self._tasks)

    async def resume(self, name: str) -> CampaignRecord:
        """Continue a campaign that was stopped.

        Raises:
            UsageError: there is no such campaign, or no board offers its platform.
        """
        record = await self.get(name)
        if record.state == "done":
            return record
        await self._pools.boards_of(_scope(record))
        return self._launch(record)

    async def cancel(self, name: str) -> CampaignRecord:
        """Stop a campaign after the measurement that is running.

        Raises:
            UsageError: there is no such campaign.
        """
        record = await self.get(name)
        task = self._tasks.get(record.campaign_id)
        if task is not None:
            self._cancels[record.campaign_id].set()
            await asyncio.wait([task])
        elif record.state != "done":
            record = replace(record, state=CANCELLED)
            await asyncio.to_thread(self._store.put_campaign, record)
            self._show(record)
        return await self.get(record.campaign_id)

    async def remove(self, name: str) -> CampaignRecord:
        """Take a campaign out of all lists. Its measurements stay, and it can be started again.

        Raises:
            UsageError: there is no such campaign, or it runs.
        """
        record = await self.get(name)
        if record.campaign_id in self._tasks:
            raise UsageError(
                f"campaign {record.name} runs; stop it first: latfarm campaign cancel "
                f"{record.campaign_id}"
            )
        record = replace(record, state=REMOVED)
        await asyncio.to_thread(self._store.put_campaign, record)
        self._show(record)
        return record

    def _known(self, name: str) -> CampaignRecord | None:
        if name in self._records:
            return self._records[name]
        named = [record for record in self._records.values() if record.name == name]
        stored = self._store.get_campaign(name)
        if stored is not None:
            named.append(self._records.get(stored.campaign_id, stored))
        return max(
            named,
            key=lambda record: (record.state != REMOVED, record.started_at_s),
            default=None,
        )

    def _launch(self, record: CampaignRecord) -> CampaignRecord:
        """Start a campaign unless it runs. Nothing is awaited in between, so it starts once."""
        key = record.campaign_id
        if key in self._tasks:
            return self._records[key]
        if self._closing:
            raise ControllerError("the controller is stopping; start the campaign again later")
        record = replace(record, state=RUNNING, error="", finished_at_s=0.0)
        self._records[key] = record
        self._cancels[key] = asyncio.Event()
        self._tasks[key] = asyncio.create_task(self._run(record), name=key)
        return record

    async def _run(self, record: CampaignRecord) -> None:
        key = record.campaign_id
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
            record = await self._measure(record)
            if record.kind in TRAINED and record.state == "done":
                record = await self._train(record)
        except asyncio.CancelledError:
            record = replace(self._records[key], state=INTERRUPTED)
        except Exception as error:
            expected = isinstance(error, (ControllerError, PredictorsError, OSError))
            if not expected:
                logger.exception("campaign %s failed", key)
            state = CANCELLED if isinstance(error, _StoppedError) else "failed"
            text = str(error) or type(error).__name__
            record = replace(self._records[key], state=state, error=text)
        if self._closing and record.state == CANCELLED:
            record = replace(record, state=INTERRUPTED)
        record = replace(record, finished_at_s=time.time())
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
        except ControllerError as error:  # those who watch must be told about the end in any case
            record = replace(record, state="failed", error=record.error or str(error))
        del self._tasks[key]
        del self._cancels[key]
        self._remaining_s.pop(key, None)
        self._show(record)

    async def _measure(self, record: CampaignRecord) -> CampaignRecord:
        campaign = await asyncio.to_thread(
            make_campaign, record.kind, record.platform, record.config
        )
        key = record.campaign_id
        scope = _scope(record)
        await self._pools.open(scope, self._cancels[key])

        def progress(status: CampaignStatus) -> None:
            self._remaining_s[key] = status.remaining_s or 0.0
            self._show(
                replace(
                    self._records[key],
                    stage=status.progress.stage,
                    stage_done=status.progress.done,
                    stage_total=status.progress.total,
                    measurements=status.measurements,
                    failures=status.failures,
                )
            )

        return await self._driver.run(campaign, record, progress, self._cancels[key], scope=scope)

    def remaining_ms(self, campaign_id: str) -> float:
        """How long a campaign's present stage still takes, in milliseconds; 0: not known."""
        return 1000.0 * self._remaining_s.get(campaign_id, 0.0)

    async def _train(self, record: CampaignRecord) -> CampaignRecord:
        record = replace(record, state=RUNNING, stage="training", stage_done=0, stage_total=0)
        await asyncio.to_thread(self._store.put_campaign, record)
        self._show(record)
        loop = asyncio.get_running_loop()
        cancel = self._cancels[record.campaign_id]

        def progress(stage: str, done: int, total: int) -> None:
            if cancel.is_set():  # a thread cannot be cancelled, but it reports its progress here
                raise _StoppedError("the training was stopped; the measurements are kept")
            changed = replace(
                record, stage=f"training: {stage}", stage_done=done, stage_total=total
            )
            loop.call_soon_threadsafe(self._show, changed)

        path = bundles.next_path(self._bundles_dir, record.platform)
        predictor = await asyncio.to_thread(
            train,
            self._store,
            record.platform,
            record.campaign_id,
            path,
            on_progress=progress,
            pool_from=self._bundles_dir,
        )
        self._watch.trained(predictor)
        outcome = dict(record.outcome) | {"bundle": str(path), "accuracy": predictor.explain()}
        return replace(self._records[record.campaign_id], state="done", outcome=outcome)

    def _show(self, record: CampaignRecord) -> None:
        self._records[record.campaign_id] = record
        self._notify()

    def _notify(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(tell())
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    async def close(self) -> None:
        """Stop all campaigns where they are; they become interrupted and can be resumed."""
        self._closing = True
        for event in self._cancels.values():
            event.set()
        tasks = list(self._tasks.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)


def _scope(record: CampaignRecord) -> CampaignScope:
    """The platforms, and the board if only one counts, that a campaign measures on."""
    if record.kind not in COMPARING:
        return CampaignScope((record.platform,))
    names = tuple(found["name"] for found in record.config["offers"])
    return CampaignScope(names, record.config["board_id"])
