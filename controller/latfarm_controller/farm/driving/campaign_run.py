"""One run of one campaign: the loop that asks, submits, receives and tells."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import replace

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import ControllerError, FarmError, StoreFullError
from latfarm_controller.farm.driving.answers import CampaignAnswers
from latfarm_controller.farm.driving.priorities import priority_of
from latfarm_controller.farm.driving.run_parts import (
    CampaignStatus,
    CampaignStuckError,
    RunContext,
    RunRequest,
)
from latfarm_controller.farm.driving.run_recorder import RunRecorder
from latfarm_controller.farm.driving.stage_estimate import StageEstimate
from latfarm_controller.farm.driving.waits import CampaignWaits, FarmSight
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.pace import Pace
from latfarm_controller.farm.scheduling.messages import MeasurementsDiscarded
from latfarm_controller.store.base import CampaignRecord

AHEAD_A_BOARD = 8
"""Requests under way for each board: measured, waiting at the board, or being built."""
MIN_AHEAD = 32
"""Requests that are under way at least, however few boards there are."""
HEAR_S = 1.0
"""Longest wait for answers before boards are looked at again, in seconds."""
LOOK_S = 0.5
"""Pause between two looks at whether boards work, in seconds; a look goes over all boards."""
GATHER_A_BOARD_S = 0.0004
"""Pause between two looks at what arrived for each board, in seconds."""
GATHER_LONGEST_S = 0.025
"""Longest such pause, in seconds."""
ENOUGH_A_BOARD = 4
"""With so many requests under way for each board, none of them idles during such a pause."""
NETWORKS = ("network", "query")
"""The purposes of measurements of whole networks."""
NOT_OFFERED = "NOT_OFFERED"
"""Error code of a request for one of several platforms that the board does not offer now.

The campaign goes on with the other platforms.
"""

logger = logging.getLogger(__name__)


class CampaignRun:
    """Runs a campaign once, from its start or from where an earlier run stopped."""

    def __init__(self, context: RunContext, request: RunRequest) -> None:
        record = request.record
        self._request = request
        self._campaign, self._scope = request.campaign, request.scope
        self._store, self._farm = context.store, context.farm
        self._clock_s, self._observer = context.clock_s, context.observer
        self._answers = CampaignAnswers()
        self._recorder = RunRecorder(context, request, self._answers)
        self._campaign_id = record.campaign_id
        self._waits = CampaignWaits(math.inf if request.lasting else context.patience_s)
        self._looked_s = -math.inf
        self._shown = False
        self._estimate = StageEstimate()
        self._pace = Pace(GATHER_A_BOARD_S, GATHER_LONGEST_S)
        self._boards = 0  # as of the last question
        self._discarded: list[MeasurementsDiscarded] = []  # what was put aside in the store
        self._inbox = self._farm.listen(record.campaign_id)

    async def go(self) -> CampaignRecord:
        """Run to the end; returns the record as it was stored last.

        Raises:
            StoreError: the store cannot be read or written.
        """
        state, error = "interrupted", ""
        self._answers.take_kept(self._farm.kept.take(self._campaign_id))
        try:
            await self._recorder.write()
            self._answers.restore(
                await asyncio.to_thread(self._store.campaign_measurements, self._campaign_id)
            )
            state = await self._drive()
        except (FarmError, StoreFullError) as problem:  # it can go on later
            error = str(problem)
        except ControllerError as problem:
            state, error = "failed", str(problem)
        except Exception as problem:
            logger.exception("campaign %s failed", self._campaign_id)
            state, error = "failed", f"{type(problem).__name__}: {problem}"
        finally:
            self._farm.cancel(self._campaign_id)  # nothing more arrives
            self._take_late()
            await self._end(state, error)
        return self._recorder.record

    async def _end(self, state: str, error: str) -> None:
        """Store what is left, and put aside what quarantines have discarded meanwhile.

        What does not fit on the disk is kept for the next run.
        """
        try:
            await self._recorder.end(state, error)
        finally:
            told = self._farm.forget_campaign(self._campaign_id)
        notices = [
            notice for notice in told if not any(notice is known for known in self._discarded)
        ]
        self._farm.keep(self._campaign_id, self._answers.unstored, notices)
        for notice in notices:
            await self._discard(notice)

    async def _drive(self) -> str:
        """Run until the campaign is done or cancelled; returns the final state."""
        while not self._request.cancel.is_set():
            if self._campaign.done and not self._answers.repeating:
                return "done"
            asked = await self._ask()
            if self._answers.untold and not self._must_wait():
                await self._tell()
                continue
            if not self._answers.under_way:
                if not asked:
                    raise CampaignStuckError(
                        "the campaign was told everything, asks nothing, and is not done"
                    )
                continue
            await self._receive()
            if not self._must_wait():
                await self._tell()
        return "cancelled"

    def _must_wait(self) -> bool:
        """Whether the campaign must not compute now, because a board may be measuring here."""
        return bool(self._answers.under_way) and any(map(self._farm.quiet, self._scope.platforms))

    async def _ask(self) -> list[MeasurementRequest]:
        """Ask the campaign for requests and submit those that are not answered already."""
        if self._must_wait():
            return []
        scope = self._scope
        self._boards = self._farm.pool_size(scope.platforms, scope.board_id, scope.choice)
        room = max(MIN_AHEAD, AHEAD_A_BOARD * self._boards) - len(self._answers.under_way)
        if room <= 0:
            return []
        asked = await asyncio.to_thread(self._campaign.ask, room)
        fresh = []
        for request in asked:
            if self._answers.answer_from_store(request):
                continue
            if len(self._scope.platforms) > 1 and not self._farm.offers(request.platform):
                self._answers.untold.append(_not_offered(request))
            elif request.request_id not in self._answers.under_way:
                self._answers.under_way[request.request_id] = request
                fresh.append(request)
        if fresh:
            self._submit(fresh)
            if not self._shown:
                self._show()
        return asked

    def _submit(self, requests: Sequence[MeasurementRequest]) -> None:
        """Have requests measured, each with its priority."""
        by_priority: dict[int, list[MeasurementRequest]] = {}
        for request in requests:
            priority = priority_of(request, self._request.record.kind, self._request.priority)
            by_priority.setdefault(priority, []).append(request)
        for priority, some in by_priority.items():
            self._farm.submit(self._campaign_id, some, priority, self._scope.choice)

    async def _receive(self) -> None:
        """Take what arrived, and store it when it is time to."""
        heard = await self._heard()
        deliveries = [item for item in heard if isinstance(item, Delivery)]
        for delivery in deliveries:
            self._take(delivery)
            self._waits.judge(delivery.measurement)
        if deliveries:
            self._show()
        for item in heard:
            if isinstance(item, MeasurementsDiscarded):
                await self._ask_again(item)
        await self._look()
        if not self._recorder.due_in_s:
            await self._recorder.write(self._waits.reason)

    async def _look(self) -> None:
        """Look whether something can be measured; if that has changed, tell and store it.

        Raises:
            FarmError: nothing could be measured for too long, or the farm broke.
        """
        self._farm.check()
        now_s = self._clock_s()
        if now_s - self._looked_s < LOOK_S:
            return
        self._looked_s = now_s
        working = {
            platform: self._farm.healthy(platform, self._scope.board_id, self._scope.choice)
            for platform in self._answers.platforms_under_way()
        }
        story = "" if any(working.values()) else self._farm.story(self._scope.choice)
        before = self._waits.reason
        self._waits.look(FarmSight(self._farm.backend_state.away, working, story), now_s)
        if self._waits.reason != before:
            self._show()
            await self._recorder.write(self._waits.reason)

    async def _heard(self) -> list[Delivery | MeasurementsDiscarded]:
        """Wait until something arrives, the run is cancelled, or it is time to store."""
        heard: list[Delivery | MeasurementsDiscarded] = []
        timeout_s = min(HEAR_S, self._recorder.due_in_s)
        cancelled = asyncio.create_task(self._request.cancel.wait())
        getting = asyncio.create_task(self._inbox.get())
        try:
            await asyncio.wait(
                {cancelled, getting}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            cancelled.cancel()
            if getting.done() and not getting.cancelled():
                heard.append(getting.result())
            getting.cancel()
        if heard and len(self._answers.under_way) >= ENOUGH_A_BOARD * self._boards:
            await self._pace.wait(self._boards)
        while not self._inbox.empty():
            heard.append(self._inbox.get_nowait())
        return heard

    def _take(self, delivery: Delivery) -> None:
        request = self._answers.take(delivery)
        if delivery.measurement.purpose in NETWORKS:
            self._observer.network_measured(request.graph, delivery.measurement)

    async def _ask_again(self, notice: MeasurementsDiscarded) -> None:
        """Have what a quarantined board measured after its last good sentinel measured again.

        The campaign was told the old answers and goes on with them. The new answers replace them in
        the store, from which predictors are trained.
        """
        # Answers that are not stored yet are discarded in the store as well.
        await self._recorder.write(self._waits.reason)
        await self._discard(notice)
        again = self._answers.repeat_discarded(notice)
        if again:
            logger.info("%d requests are asked again", len(again))
            self._submit(again)

    async def _discard(self, notice: MeasurementsDiscarded) -> None:
        await asyncio.to_thread(
            self._store.discard_measurements, notice.board_id, notice.since_s, notice.reason
        )
        self._discarded.append(notice)

    def _take_late(self) -> None:
        """Take the answers that arrived while the run ended; the farm remembers the notices."""
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if isinstance(item, Delivery):
                self._take(item)

    async def _tell(self) -> None:
        untold, self._answers.untold = self._answers.untold, []
        if untold:
            await asyncio.to_thread(self._campaign.tell, untold)
            self._show()

    def _show(self) -> None:
        """Report the progress to whoever asked for it."""
        self._shown = True
        now_s = self._clock_s()
        progress = self._campaign.progress()
        # Answers that the campaign has not been told yet are measured all the same.
        done = max(progress.done, min(progress.total, progress.done + len(self._answers.untold)))
        progress = replace(progress, done=done)
        self._estimate.update(progress.stage, progress.done, now_s)
        if self._request.on_progress is None:
            return
        good, bad = self._answers.counts()
        remaining_s = self._estimate.remaining_s(progress.total, now_s)
        self._request.on_progress(
            CampaignStatus(
                self._campaign_id,
                progress,
                good,
                bad,
                self._answers.remembered,
                remaining_s,
                self._waits.reason,
                len(self._answers.under_way),
            )
        )


def _not_offered(request: MeasurementRequest) -> Measurement:
    return Measurement(
        request_id=request.request_id,
        graph_hash=hash_of(request.graph),
        platform=request.platform,
        purpose=request.purpose,
        outcome=Outcome.INFRASTRUCTURE_ERROR,
        board_id=request.board,
        error_code=NOT_OFFERED,
        error_message=f"the board does not offer {request.platform} now; see latfarm platforms",
        settings=request.settings,
    )
