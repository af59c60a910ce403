"""What a run of a campaign leaves in the store: its answers, and the campaign's record."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from latfarm_controller.errors import StoreFullError
from latfarm_controller.farm.driving.answers import CampaignAnswers
from latfarm_controller.farm.driving.board_use import BoardUsage
from latfarm_controller.farm.driving.run_parts import RunContext, RunRequest

FLUSH_S = 2.0
"""Answers are stored at least this often, in seconds. Each time costs 15 ms of CPU time, however
few answers there are."""

logger = logging.getLogger(__name__)


class RunRecorder:
    """Stores the answers of a run, and what the campaign is.

    A board is told to forget an answer only after it was stored. Answers that could not be stored
    are kept, and are stored with the next ones.

    Args:
        context: has the store, the farm, the clock and the observer.
        request: what is run.
        answers: the answers of the run; those that are not stored yet are taken from it.

    Attributes:
        record: the campaign's record, as it was stored last.
    """

    def __init__(self, context: RunContext, request: RunRequest, answers: CampaignAnswers) -> None:
        record = request.record
        self._campaign = request.campaign
        self._store, self._farm = context.store, context.farm
        self._clock_s, self._observer = context.clock_s, context.observer
        self._answers = answers
        self._wall_before_ms = record.wall_ms
        self._started_s = self._stored_s = self._clock_s()
        self._usage = BoardUsage(self._farm, request.scope, record.outcome.get("boards", {}))
        self.record = replace(record, started_at_s=record.started_at_s or time.time(), error="")

    @property
    def due_in_s(self) -> float:
        """In how many seconds something is to be stored again; 0: now."""
        return max(0.0, self._stored_s + FLUSH_S - self._clock_s())

    async def write(self, waiting_for: str = "") -> None:
        """Store answers and the campaign's record.

        Args:
            waiting_for: why nothing can be measured now; empty: the campaign runs.

        Raises:
            StoreError: the store cannot be written.
        """
        await self._store_answers()
        await self._store_record("waiting" if waiting_for else "running", waiting_for=waiting_for)

    async def end(self, state: str, error: str) -> None:
        """Store what is left, and how the campaign ended.

        If the disk is full, what could not be stored stays among the unstored answers, and the
        boards keep it, too. The record may be stored no more: then the one in memory tells that the
        campaign was interrupted.

        Args:
            state: what the campaign is from now on.
            error: why it ended.

        Raises:
            StoreError: the store cannot be written for another reason than a full disk.
        """
        try:
            await self._store_answers()
        except StoreFullError as problem:
            state, error = "interrupted", str(problem)
        try:
            await self._store_record(state, error=error, final=True)
        except StoreFullError as problem:
            self.record = replace(self.record, state="interrupted", error=str(problem))

    async def _store_answers(self) -> None:
        """Store answers, and let their boards forget them."""
        unstored, self._answers.unstored = self._answers.unstored, []
        if not unstored:
            return
        rows = [(delivery.measurement, request.graph) for delivery, request in unstored]
        begun_s = self._clock_s()
        try:
            await asyncio.to_thread(self._store.add_measurements, self.record.campaign_id, rows)
        except BaseException:
            self._answers.unstored = unstored + self._answers.unstored
            raise
        self._observer.stored(len(rows), self._clock_s() - begun_s)
        self._farm.acknowledge([delivery for delivery, _ in unstored])

    async def _store_record(
        self, state: str, *, error: str = "", waiting_for: str = "", final: bool = False
    ) -> None:
        """Store the campaign's record.

        Args:
            state: what the campaign is now.
            error: why it ended.
            waiting_for: why nothing can be measured now.
            final: whether it ends now.
        """
        progress = self._campaign.progress()
        good, bad = self._answers.counts()
        wall_ms = 1e3 * (self._clock_s() - self._started_s)
        self.record = replace(
            self.record,
            state=state,
            error=error,
            waiting_for=waiting_for,
            stage=progress.stage,
            stage_done=progress.done,
            stage_total=progress.total,
            measurements=good,
            failures=bad,
            board_ms=self._answers.board_ms,
            wall_ms=self._wall_before_ms + wall_ms,
        )
        if final:
            self.record = replace(
                self.record,
                finished_at_s=time.time(),
                outcome={**self._outcome(), "boards": self._usage.boards(wall_ms)},
            )
        await asyncio.to_thread(self._store.put_campaign, self.record)
        self._stored_s = self._clock_s()

    def _outcome(self) -> Mapping[str, Any]:
        try:
            return self._campaign.outcome()
        except Exception:
            # The record must be written, above all when the campaign is broken.
            logger.exception("campaign %s has no outcome", self.record.campaign_id)
            return {}
