"""Measures one campaign to its end, however often it has to wait for its boards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from latfarm_controller.app.pools import Pools
from latfarm_controller.campaigns.kinds import make_campaign
from latfarm_controller.errors import AgentError, FarmError, StoreFullError, UsageError
from latfarm_controller.farm.driving.driver import PATIENCE_S, Driver
from latfarm_controller.farm.driving.recent_rate import RecentRate
from latfarm_controller.farm.driving.run_parts import CampaignStatus
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.driving.waits import RetryPlan
from latfarm_controller.store.base import CampaignRecord, Store

RUNNING = "running"
WAITING = "waiting"
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"
LOOK_S = 0.5
"""Pause between two looks at whether a waiting campaign can go on, in seconds."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PatientParts:
    """What a campaign is measured with.

    `lasting`: it waits without end, because nobody may be there to continue it; otherwise it waits
    for `PATIENCE_S` seconds.
    """

    store: Store
    driver: Driver
    pools: Pools
    lasting: bool


class PatientRun:
    """Runs a campaign, waits while it cannot go on, and runs it again.

    Each run is a new campaign of the same configuration, which is told what the store has. So
    requests that failed by no fault of their own are measured again.

    Args:
        parts: what it works with.
        record: the campaign as it is stored.
        scope: where it measures.
        cancel: ends it.
        show: called with the record whenever it changes.
        resumed: whether the campaign was run before, so that boards may have results for it.
    """

    def __init__(
        self,
        parts: PatientParts,
        record: CampaignRecord,
        scope: CampaignScope,
        cancel: asyncio.Event,
        show: Callable[[CampaignRecord], None],
        *,
        resumed: bool,
    ) -> None:
        self._parts = parts
        self._resumed = resumed
        self._record = record
        self.scope = scope
        self._cancel = cancel
        self._show = show
        self._plan = RetryPlan(math.inf if parts.lasting else PATIENCE_S)
        self._rate = RecentRate()
        self.remaining_s = 0.0
        self.under_way = 0

    async def go(self) -> CampaignRecord:
        """Measure until the campaign is done, failed or cancelled, or patience is at an end.

        Raises:
            UsageError: the configuration is wrong; or, unless it is lasting, no board offers the
                platform.
            FarmError, AgentError: unless it is lasting, the boards cannot be used.
            StoreError: the store cannot be read, or written for another reason than a full disk.
        """
        while True:
            trouble = await self._once()
            if not trouble or self._cancel.is_set():
                return self._record
            now_s, recoveries = time.monotonic(), self._parts.pools.recoveries
            if not self._plan.stop(now_s, self._record.measurements, recoveries):
                return replace(self._record, state=INTERRUPTED, error=trouble)
            await self._wait(trouble)
            if self._cancel.is_set():
                return replace(self._record, state=CANCELLED)

    @property
    def measurements_per_s(self) -> float:
        """How many answers came each second lately."""
        return self._rate.per_s(time.monotonic())

    async def _once(self) -> str:
        """Run the campaign once; why it could not go on, or an empty text."""
        record = self._record
        campaign = await asyncio.to_thread(
            make_campaign, record.kind, record.platform, record.config
        )
        resumed, self._resumed = self._resumed, True
        lasting = self._parts.lasting
        try:
            await self._parts.pools.open(
                self.scope, self._cancel, self._tell, lasting=lasting, settle=resumed
            )
        except (FarmError, AgentError, UsageError) as error:
            if not lasting:
                raise
            return str(error)
        self._record = await self._parts.driver.run(
            campaign,
            record,
            self._progress,
            self._cancel,
            scope=self.scope,
            lasting=lasting,
        )
        self.remaining_s, self.under_way = 0.0, 0
        return self._record.error if self._record.state == INTERRUPTED else ""

    async def _wait(self, reason: str) -> None:
        """Wait until the campaign may be run again, or is cancelled."""
        logger.warning("campaign %s waits: %s", self._record.name, reason)
        waiting = replace(self._record, state=WAITING, waiting_for=reason, error="")
        with contextlib.suppress(StoreFullError):  # it may be what the campaign waits for
            await asyncio.to_thread(self._parts.store.put_campaign, waiting)
        self._show(waiting)
        while not self._cancel.is_set():
            if self._plan.due(time.monotonic(), self._parts.pools.recoveries):
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._cancel.wait()
        self._record = replace(waiting, state=RUNNING, waiting_for="")
        self._show(self._record)

    def _tell(self, reason: str) -> None:
        """Show that the campaign waits for boards, or, with an empty text, waits no more."""
        if not self._parts.lasting or reason == self._record.waiting_for:
            return
        state = WAITING if reason else RUNNING
        self._record = replace(self._record, state=state, waiting_for=reason)
        self._show(self._record)

    def _progress(self, status: CampaignStatus) -> None:
        self.remaining_s = status.remaining_s or 0.0
        self.under_way = status.under_way
        measured = status.measurements + status.failures - status.remembered
        self._rate.note(measured, time.monotonic())
        self._record = replace(
            self._record,
            state=WAITING if status.waiting_for else RUNNING,
            waiting_for=status.waiting_for,
            stage=status.progress.stage,
            stage_done=status.progress.done,
            stage_total=status.progress.total,
            measurements=status.measurements,
            failures=status.failures,
        )
        self._show(self._record)
