"""The driver: asks a campaign, has the farm measure, stores, tells. One for any campaign, any farm.

The store is the only truth. What a campaign asks and the store already answered for it is told from
the store without touching a board: that is all there is to resuming. An answer is acknowledged to
its board after it was stored, so that at every moment it is in at least one of the two places.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.campaigns.base import Campaign, MeasurementRequest, Progress
from latfarm_controller.errors import ControllerError, FarmError
from latfarm_controller.farm.estimate import StageEstimate
from latfarm_controller.farm.farm import Delivery, Farm, PutAside
from latfarm_controller.farm.scheduling.messages import CAMPAIGN_PRIORITY
from latfarm_controller.farm.scope import CampaignScope, Tolerance, Utilisation
from latfarm_controller.farm.watch import FarmWatch
from latfarm_controller.store.base import CampaignRecord, Store

AHEAD_A_BOARD = 8
"""Requests under way for each board: what runs, waits at the board, and is being built."""
MIN_AHEAD = 32
FLUSH_S = 1.0
PATIENCE_S = 600.0
RECENT = 2000
"""Requests that can be asked again when a board is put aside; some 20 lie between sentinels."""
NETWORKS = ("network", "query")
"""What measurements of whole networks are for."""
NOT_OFFERED = "NOT_OFFERED"
"""A compared platform that its board does not offer (any more): the others go on without it."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """A campaign under way. `remaining_s` is of the stage; None while too little is known.

    `remembered` of the answers came from the store: measured before an interruption.
    """

    campaign_id: str
    progress: Progress
    measurements: int
    failures: int
    remembered: int
    elapsed_s: float
    remaining_s: float | None


class CampaignStuckError(ControllerError):
    """A campaign neither asks nor is done: its own fault."""


OnProgress = Callable[[CampaignStatus], None]


class Driver:
    """Runs campaigns on a farm; several at once if asked.

    Args:
        store: where answers and records are kept.
        farm: runs the measurements.
        clock_s: any clock that never goes back.
        patience_s: how long a campaign waits for a working board of its platform before it stops.
        watch: told of what is stored, and of networks.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        watch: FarmWatch | None = None,
    ) -> None:
        self.store = store
        self.farm = farm
        self.clock_s = clock_s
        self.patience_s = patience_s
        self.watch = watch or FarmWatch()

    async def run(
        self,
        campaign: Campaign,
        record: CampaignRecord,
        on_progress: OnProgress | None = None,
        cancel: asyncio.Event | None = None,
        *,
        priority: int = CAMPAIGN_PRIORITY,
        scope: CampaignScope | None = None,
    ) -> CampaignRecord:
        """Run a campaign to its end; gives the record as stored last.

        `scope` where it is not the record's one platform: of several platforms, one that no board
        offers fails its own requests alone.

        The record's state is then `done`, `cancelled`, `failed` with what the campaign raised, or
        `interrupted` when the farm could not go on: run it again with the same record, and a fresh
        campaign of the same configuration, to resume. A cancelled coroutine leaves an `interrupted`
        record behind as well.

        Raises:
            StoreError: the store cannot be read or written.
        """
        scope = scope or CampaignScope((record.platform,))
        run = _Run(self, campaign, record, on_progress, cancel or asyncio.Event(), priority, scope)
        return await run.go()


class _Run:
    """One campaign's run."""

    def __init__(
        self,
        driver: Driver,
        campaign: Campaign,
        record: CampaignRecord,
        on_progress: OnProgress | None,
        cancel: asyncio.Event,
        priority: int,
        scope: CampaignScope,
    ) -> None:
        self._scope = scope
        self._store, self._farm = driver.store, driver.farm
        self._clock_s = driver.clock_s
        self._watch = driver.watch
        self._campaign = campaign
        self._before = record
        self._record = replace(record, started_at_s=record.started_at_s or time.time(), error="")
        self._on_progress = on_progress
        self._cancel = cancel
        self._priority = priority
        self._answers: dict[str, Measurement] = {}
        self._under_way: dict[str, MeasurementRequest] = {}
        self._untold: list[Measurement] = []
        self._unstored: list[tuple[Delivery, MeasurementRequest]] = []
        self._started_s = self._clock_s()
        self._flushed_s = self._started_s
        self._tolerance = Tolerance(self._farm, scope, driver.patience_s, driver.clock_s)
        self._utilisation = Utilisation(self._farm, scope, record.outcome.get("boards", {}))
        self._estimate = StageEstimate()
        self._remembered = 0
        self._inbox = self._farm.listen(record.campaign_id)
        self._recent: OrderedDict[str, MeasurementRequest] = OrderedDict()
        self._again: set[str] = set()  # told before, and put aside since

    async def go(self) -> CampaignRecord:
        state, error = "interrupted", ""
        try:
            await self._write(state="running")
            self._answers = {
                request_id: measurement
                for request_id, measurement in (
                    await asyncio.to_thread(
                        self._store.campaign_measurements, self._record.campaign_id
                    )
                ).items()
                # The farm's failure is no answer: try again.
                if measurement.outcome is not Outcome.INFRASTRUCTURE_ERROR
            }
            state = await self._drive()
        except FarmError as problem:
            error = str(problem)
        except ControllerError as problem:
            state, error = "failed", str(problem)
        except Exception as problem:
            logger.exception("campaign %s failed", self._record.campaign_id)
            state, error = "failed", f"{type(problem).__name__}: {problem}"
        finally:
            self._farm.cancel(self._record.campaign_id)  # nothing more arrives
            asides = self._take_late()
            await self._write(state=state, error=error, final=True)
            for aside in asides:
                await self._put_aside(aside)
        return self._record

    async def _drive(self) -> str:
        """Until the campaign is done or cancelled; gives the final state."""
        while not self._cancel.is_set():
            if self._campaign.done and not self._again:
                return "done"
            asked = await self._ask()
            if self._untold and not self._must_wait():
                await self._tell()
                continue
            if not self._under_way:
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
        """Whether the campaign must not compute now: a board on this host may be timing."""
        return bool(self._under_way) and any(map(self._farm.quiet, self._scope.platforms))

    async def _ask(self) -> list[MeasurementRequest]:
        if self._must_wait():
            return []
        pools = (self._farm.pool(p, self._scope.board_id) for p in self._scope.platforms)
        boards = len({status.name for pool in pools for status in pool})
        room = max(MIN_AHEAD, AHEAD_A_BOARD * boards) - len(self._under_way)
        if room <= 0:
            return []
        asked = await asyncio.to_thread(self._campaign.ask, room)
        fresh = []
        for request in asked:
            known = self._answers.get(request.request_id)
            if known is not None:
                self._untold.append(known)
                self._remembered += 1
            elif len(self._scope.platforms) > 1 and not self._farm.offers(request.platform):
                self._untold.append(_not_offered(request))
            elif request.request_id not in self._under_way:
                self._under_way[request.request_id] = request
                fresh.append(request)
        if fresh:
            self._farm.submit(self._record.campaign_id, fresh, self._priority)
        return asked

    async def _receive(self) -> None:
        """Take what arrived; store it at least each second."""
        heard: list[Delivery | PutAside] = []
        timeout_s = max(0.0, self._flushed_s + FLUSH_S - self._clock_s())
        cancelled = asyncio.create_task(self._cancel.wait())
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
        while not self._inbox.empty():
            heard.append(self._inbox.get_nowait())
        deliveries = [item for item in heard if isinstance(item, Delivery)]
        for delivery in deliveries:
            self._take(delivery)
            self._tolerance.judge(delivery.measurement)
        if deliveries:
            self._show()
        for item in heard:
            if isinstance(item, PutAside):
                await self._ask_again(item)
        self._tolerance.look_for_boards({r.platform for r in self._under_way.values()})
        if self._clock_s() - self._flushed_s >= FLUSH_S:
            await self._write()

    def _take(self, delivery: Delivery) -> None:
        measurement = delivery.measurement
        request = self._under_way.pop(measurement.request_id)
        self._remember(request)
        self._unstored.append((delivery, request))
        if measurement.request_id not in self._again:
            self._untold.append(measurement)
        self._again.discard(measurement.request_id)
        self._answers[measurement.request_id] = measurement
        if measurement.purpose in NETWORKS:
            self._watch.network_measured(request.graph, measurement)

    def _remember(self, request: MeasurementRequest) -> None:
        self._recent[request.request_id] = request
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    async def _ask_again(self, aside: PutAside) -> None:
        """Have what a board measured too long after its last good sentinel measured once more.

        The campaign was told the old answers and goes on with them; the new ones replace them in
        the store, which is what predictors are trained from.
        """
        await self._write()  # what arrived but is not stored yet is put aside as well
        await self._put_aside(aside)
        again = [
            self._recent[name]
            for name, answer in self._answers.items()
            if answer.ok
            and answer.board_id == aside.board_id
            and answer.measured_at_s > aside.since_s
            and name in self._recent
            and name not in self._under_way
        ]
        for request in again:
            self._under_way[request.request_id] = request
            self._again.add(request.request_id)
        if again:
            logger.info("%d requests are asked again", len(again))
            self._farm.submit(self._record.campaign_id, again, self._priority)

    async def _put_aside(self, aside: PutAside) -> None:
        await asyncio.to_thread(self._store.put_aside, aside.board_id, aside.since_s, aside.reason)

    def _take_late(self) -> list[PutAside]:
        """What arrived when the campaign ended is kept; what to put aside nobody asks again."""
        asides: list[PutAside] = []
        while not self._inbox.empty():
            item = self._inbox.get_nowait()
            if isinstance(item, PutAside):
                asides.append(item)
            else:
                self._take(item)
        return asides

    async def _tell(self) -> None:
        untold, self._untold = self._untold, []
        if untold:
            await asyncio.to_thread(self._campaign.tell, untold)
            self._show()

    def _show(self) -> None:
        now_s = self._clock_s()
        progress = self._campaign.progress()
        # What arrived but waits to be told has been measured all the same.
        done = max(progress.done, min(progress.total, progress.done + len(self._untold)))
        progress = replace(progress, done=done)
        self._estimate.update(progress.stage, progress.done, now_s)
        if self._on_progress is None:
            return
        good = sum(answer.ok for answer in self._answers.values())
        self._on_progress(
            CampaignStatus(
                self._record.campaign_id,
                progress,
                good,
                len(self._answers) - good,
                self._remembered,
                now_s - self._started_s,
                self._estimate.remaining_s(progress.total, now_s),
            )
        )

    async def _write(self, *, state: str = "running", error: str = "", final: bool = False) -> None:
        """Store answers, then let their boards forget them; bring the record up to date."""
        unstored, self._unstored = self._unstored, []
        if unstored:
            rows = [(delivery.measurement, request.graph) for delivery, request in unstored]
            begun_s = self._clock_s()
            await asyncio.to_thread(self._store.add_measurements, self._record.campaign_id, rows)
            self._watch.stored(len(rows), self._clock_s() - begun_s)
            self._farm.acknowledge([delivery for delivery, _ in unstored])
        progress = self._campaign.progress()
        answers = self._answers.values()
        good = sum(answer.ok for answer in answers)
        wall_ms = 1e3 * (self._clock_s() - self._started_s)
        self._record = replace(
            self._record,
            state=state,
            error=error,
            stage=progress.stage,
            stage_done=progress.done,
            stage_total=progress.total,
            measurements=good,
            failures=len(answers) - good,
            board_ms=sum(answer.board_ms for answer in answers),
            wall_ms=self._before.wall_ms + wall_ms,
        )
        if final:
            self._record = replace(
                self._record,
                finished_at_s=time.time(),
                outcome={**self._outcome(), "boards": self._utilisation.boards(wall_ms)},
            )
        await asyncio.to_thread(self._store.put_campaign, self._record)
        self._flushed_s = self._clock_s()

    def _outcome(self) -> Mapping[str, Any]:
        try:
            return self._campaign.outcome()
        except Exception:
            # The record must be written, above all when the campaign is broken.
            logger.exception("campaign %s has no outcome", self._record.campaign_id)
            return {}


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
