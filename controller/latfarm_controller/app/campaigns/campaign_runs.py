"""Runs campaigns of all kinds: starts, watches, pauses and resumes them, and trains bundles."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.app.bundle_training import TrainingStoppedError, trained_bundle
from latfarm_controller.app.campaigns import campaign_names, comparison
from latfarm_controller.app.campaigns.campaign_records import CampaignRecords
from latfarm_controller.app.campaigns.patient_run import (
    CANCELLED,
    INTERRUPTED,
    RUNNING,
    WAITING,
    PatientParts,
    PatientRun,
)
from latfarm_controller.app.pools import Pools
from latfarm_controller.app.summaries import CampaignFigures
from latfarm_controller.campaigns.kinds import COMPARING, STARTED_BY, TRAINED, make_campaign
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.supervision.spool_keeper import SpoolKeeper
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training import bundles

logger = logging.getLogger(__name__)
WATCH_S = 5.0
"""Longest time without a message to those who watch a campaign, in seconds.

What its boards do changes without a change of its record.
"""
CLOSE_S = 30.0
"""Longest wait for campaigns to stop when the controller stops, in seconds."""


class CampaignRuns:
    """Runs campaigns on boards and keeps what they find.

    All its methods belong to one event loop: call them there alone.

    Args:
        store: holds records and measurements.
        fleet: the boards of the inventory.
        driver: runs one campaign.
        pools: connects the farm to a campaign's boards.
        spools: is told for which platforms finished results in the spools of boards are kept.
        bundles_dir: the folder of all bundles.
        watch: is told about each predictor that is trained; None: nobody is told.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        driver: Driver,
        pools: Pools,
        spools: SpoolKeeper,
        bundles_dir: Path,
        watch: FarmObserver | None = None,
    ) -> None:
        self._watch = watch or FarmObserver()
        self._store = store
        self._fleet = fleet
        self._driver = driver
        self._pools = pools
        self._bundles_dir = bundles_dir
        self._spools = spools
        self._unattended = False
        self._records = CampaignRecords(store)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._runs: dict[str, PatientRun] = {}
        self._cancels: dict[str, asyncio.Event] = {}
        self._ends: dict[str, str] = {}  # the states that people asked for
        self._platforms: dict[str, tuple[str, ...]] = {}  # of the campaigns that are not finished
        self._closing = False
        for known in store.campaigns(brief=True):
            if known.state not in campaign_names.UNFINISHED:
                continue
            record = store.get_campaign(known.campaign_id) or known
            # The process that ran it is gone, because this one holds the lock.
            if record.state in (RUNNING, WAITING):
                why = record.error or record.waiting_for
                record = replace(record, state=INTERRUPTED, error=why, waiting_for="")
                store.put_campaign(record)
            self._note_unfinished(record)
        self._spools.want({name for names in self._platforms.values() for name in names})

    async def continue_unattended(self) -> list[str]:
        """Run campaigns unattended from now on, and continue those that an earlier process left.

        These are the campaigns that ran or waited when a controller that runs campaigns unattended
        was stopped or killed.

        Returns:
            their names.
        """
        self._unattended = True
        left = [r for r in await self.all() if r.state == INTERRUPTED and r.unattended]
        records = [await self.get(record.campaign_id) for record in reversed(left)]
        return [self._launch(record).name for record in records]

    async def start(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str, user: str = ""
    ) -> CampaignRecord:
        """Start a campaign, or continue the same one; a finished one is returned as it is.

        Only boards measure for it that its tags choose, and whose access groups admit its user:
        whoever has started it first.

        Raises:
            UsageError: the kind or platform is not known, the configuration is wrong, or no board
                may be used.
        """
        config = campaign_names.asked_config(config)
        await asyncio.to_thread(make_campaign, kind, platform, config)  # raises an error early
        key = campaign_names.campaign_id(kind, platform, config, name)
        known = self._records.find(key)
        owner = user if known is None else known.config.get(STARTED_BY, user)
        config = {**config, STARTED_BY: owner}
        choice = campaign_names.choice_of(config)
        if kind in COMPARING:
            views = self._pools.admitted(choice, await self._fleet.views(), platform)
            config = comparison.compared(platform, config, views)
        else:
            self._pools.admitted(choice, await self._fleet.offering(platform), platform)
        known = self._records.find(key)  # it may have been started meanwhile
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
        return self._launch(record, resumed=False)

    async def all(self) -> list[CampaignRecord]:
        """All campaigns as `CampaignRecords.all` tells them, newest first."""
        return await self._records.all()

    async def get(self, name: str) -> CampaignRecord:
        """One campaign by id or name.

        Raises:
            UsageError: there is none; the message names the newest ones.
        """
        return await self._records.get(name)

    async def watch(self, name: str) -> AsyncIterator[CampaignRecord]:
        """The campaign now, at each change and every `WATCH_S` seconds, until it ends.

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
        await self._records.wait(
            WATCH_S, lambda: self._records.find(key) != seen or key not in self._tasks
        )

    async def resume(self, name: str) -> CampaignRecord:
        """Continue a campaign that was stopped.

        Raises:
            UsageError: there is no such campaign, or no board offers its platform.
        """
        record = await self.get(name)
        if record.state == "done":
            return record
        await self._pools.boards_of(campaign_names.scope_of(record))
        return self._launch(record)

    async def cancel(self, name: str) -> CampaignRecord:
        """Stop a campaign after the measurement that is running.

        Raises:
            UsageError: there is no such campaign.
        """
        return await self._end(await self.get(name), CANCELLED)

    async def pause(self, name: str) -> CampaignRecord:
        """Stop a campaign until somebody resumes it; a restart of the controller does not.

        A campaign that is done, failed or cancelled stays so.

        Raises:
            UsageError: there is no such campaign.
        """
        record = await self.get(name)
        running = record.campaign_id in self._tasks
        return (
            await self._end(record, campaign_names.PAUSED)
            if running or record.state in campaign_names.UNFINISHED
            else record
        )

    async def _end(self, record: CampaignRecord, state: str) -> CampaignRecord:
        """Stop a campaign as somebody asked for, unless it is done."""
        key = record.campaign_id
        task = self._tasks.get(key)
        if task is not None:
            self._ends[key] = state
            self._cancels[key].set()
            await asyncio.wait([task])
        elif record.state != "done":
            record = replace(record, state=state, waiting_for="")
            await asyncio.to_thread(self._store.put_campaign, record)
            self._records.show(record)
            self._note_unfinished(record, tell=True)
        return await self.get(key)

    def _note_unfinished(self, record: CampaignRecord, *, tell: bool = False) -> None:
        """Note whether results of a campaign's platforms may still be asked for."""
        if record.state in campaign_names.UNFINISHED and record.kind not in campaign_names.HIDDEN:
            self._platforms[record.campaign_id] = campaign_names.scope_of(record).platforms
        else:
            self._platforms.pop(record.campaign_id, None)
        if tell:
            self._spools.want({name for names in self._platforms.values() for name in names})

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
        record = replace(record, state=campaign_names.REMOVED)
        await asyncio.to_thread(self._store.put_campaign, record)
        self._records.show(record)
        self._note_unfinished(record, tell=True)
        return record

    def _launch(self, record: CampaignRecord, *, resumed: bool = True) -> CampaignRecord:
        """Start a campaign unless it runs. Nothing is awaited in between, so it starts once."""
        key = record.campaign_id
        if key in self._tasks:
            return self._records.now(key)
        if self._closing:
            raise ControllerError("the controller is stopping; start the campaign again later")
        record = replace(
            record,
            state=RUNNING,
            error="",
            waiting_for="",
            finished_at_s=0.0,
            unattended=self._unattended,
        )
        self._records.show(record)
        self._note_unfinished(record, tell=True)
        self._cancels[key] = asyncio.Event()
        self._tasks[key] = asyncio.create_task(self._run(record, resumed), name=key)
        return record

    async def _run(self, record: CampaignRecord, resumed: bool) -> None:
        key = record.campaign_id
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
            parts = PatientParts(self._store, self._driver, self._pools, record.unattended)
            cancel = self._cancels[key]
            run = PatientRun(
                parts,
                record,
                campaign_names.scope_of(record),
                cancel,
                self._records.show,
                resumed=resumed,
            )
            self._runs[key] = run
            record = await run.go()
            if record.kind in TRAINED and record.state == "done":
                record = await self._train(record)
        except asyncio.CancelledError:
            record = replace(self._records.now(key), state=INTERRUPTED)
        except Exception as error:
            expected = isinstance(error, (ControllerError, PredictorsError, OSError))
            if not expected:
                logger.exception("campaign %s failed", key)
            state = CANCELLED if isinstance(error, TrainingStoppedError) else "failed"
            text = str(error) or type(error).__name__
            record = replace(self._records.now(key), state=state, error=text)
        if record.state == CANCELLED:
            state = INTERRUPTED if self._closing else CANCELLED
            record = replace(record, state=self._ends.get(key, state))
        record = replace(record, waiting_for="", finished_at_s=time.time())
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
        except ControllerError as error:  # those who watch must be told about the end in any case
            record = replace(record, state="failed", error=record.error or str(error))
        del self._tasks[key]
        del self._cancels[key]
        self._runs.pop(key, None)
        self._ends.pop(key, None)
        self._records.show(record)
        self._note_unfinished(record, tell=True)

    def figures(self, campaign_id: str) -> CampaignFigures:
        """How fast a campaign goes, and what its boards do."""
        run = self._runs.get(campaign_id)
        if run is None:
            return CampaignFigures()
        return CampaignFigures(
            1000.0 * run.remaining_s,
            self._pools.board_states(run.scope),
            run.measurements_per_s,
            run.under_way,
        )

    async def _train(self, record: CampaignRecord) -> CampaignRecord:
        record = replace(record, state=RUNNING, stage="training", stage_done=0, stage_total=0)
        await asyncio.to_thread(self._store.put_campaign, record)
        self._records.show(record)

        def progress(stage: str, done: int, total: int) -> None:
            self._records.show(
                replace(record, stage=f"training: {stage}", stage_done=done, stage_total=total)
            )

        stop = self._cancels[record.campaign_id]
        entered = await trained_bundle(self._store, self._bundles_dir, record, progress, stop)
        predictor = await asyncio.to_thread(bundles.load, entered.path)
        self._watch.trained(predictor)
        outcome = dict(record.outcome) | {
            "bundle": str(entered.path),
            "accuracy": predictor.explain(),
            "model": entered.to_json(),
        }
        return replace(self._records.now(record.campaign_id), state="done", outcome=outcome)

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
