"""The farm: requests of campaigns come in, measurements of boards go out.

`Farm` puts the parts together and is the door to them. It decides little itself: the scheduler
plans, and the `SchedulingLoop` carries that out; the `ShardPool` places boards, the `ModelCache`
keeps built models, `OpenRequests` remembers who waits for what, and the `BoardMonitor` takes what
boards report.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.agents.board import PlatformInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm import board_views
from latfarm_controller.farm.backend_state import BackendState
from latfarm_controller.farm.background import BackgroundTasks
from latfarm_controller.farm.board_monitor import BoardListener, BoardMonitor, board_state
from latfarm_controller.farm.boards.interfaces import BoardStatus, FarmBackend, ShardSettings
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.boards.model_builder import BuilderState
from latfarm_controller.farm.boards.shard_pool import ShardPool
from latfarm_controller.farm.event_queue import EventQueue
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.kept_answers import KeptAnswers, Unstored
from latfarm_controller.farm.model_cache import ModelCache
from latfarm_controller.farm.observer import FarmObserver, FarmState
from latfarm_controller.farm.open_requests import (
    Delivery,
    OpenRequests,
    by_board,
    work_of,
)
from latfarm_controller.farm.partitions import EVERY_BOARD, BoardChoice, Partitions
from latfarm_controller.farm.scheduling.messages import (
    CAMPAIGN_PRIORITY,
    BuildersChanged,
    CampaignCancelled,
    MeasurementsDiscarded,
    ModelSpec,
    RequestsQueued,
    Standing,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_controller.farm.scheduling_loop import LoopParts, SchedulingLoop
from latfarm_controller.farm.spooled_answers import SpooledAnswers


class Farm:
    """Runs requests on boards. Use it from one event loop.

    Args:
        backend: where shards and builders run.
        holder: the name that boards show to others while this farm has leased them.
        policy: how the scheduler decides; its number of builds at once follows `backend`.
        settings: how shards treat their boards.
        clock_s: any clock that never goes back, in seconds.
        observer: told of what happens.
    """

    def __init__(
        self,
        backend: FarmBackend,
        holder: str,
        *,
        policy: Policy | None = None,
        settings: ShardSettings | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        observer: FarmObserver | None = None,
    ) -> None:
        self._backend = backend
        self._clock_s = clock_s
        self._observer = observer or FarmObserver()
        policy = replace(policy or Policy(), build_slots=backend.builders.slots)
        self._scheduler = Scheduler(policy)
        self._events = EventQueue()
        self._tasks = BackgroundTasks()
        self._boards = KnownBoards()
        self.partitions = Partitions(self._boards.board_id, self._events.put)
        self.monitor = BoardMonitor(
            self._boards, self._observer, self._events.put, self.partitions.joined
        )
        self.settings = settings or ShardSettings(holder, host_boot_id())
        self._shards = ShardPool(
            backend,
            self.settings,
            self._boards,
            self._tasks,
            self.monitor.take,
        )
        self._models = ModelCache(backend, self._observer, clock_s)
        self._requests = OpenRequests()
        self._loop = self._new_loop()
        self.backend_state = BackendState()
        backend.watch(self._builders_changed)
        self.spools = SpooledAnswers(self._boards, self._requests, self._events.put)
        self.monitor.spools = self.spools
        self.kept = KeptAnswers()
        self.stopped = False

    def _new_loop(self) -> SchedulingLoop:
        """The loop that calls the scheduler of this farm, over its parts."""
        return SchedulingLoop(
            LoopParts(
                self._scheduler,
                self._events,
                self._boards,
                self._shards,
                self._models,
                self._requests,
                self.monitor.failed_work,
                self._observer,
                self._tasks,
                self._clock_s,
            )
        )

    async def start(self, boards: Sequence[BoardEntry] = ()) -> None:
        """Begin to start the backend and to connect to the boards; does not wait for them.

        Raises:
            FarmError: the backend can never be started.
        """
        await self._backend.start()
        self._tasks.start(self._loop.run())
        await self.add_boards(boards)

    @property
    def builders(self) -> BuilderState:
        """Whether models can be built now; if not, requests that need a build wait."""
        return self._backend.builders

    async def stop(self) -> None:
        """Give all boards back and end everything; unanswered requests are forgotten."""
        self.stopped = True
        await self._tasks.stop()
        await self._shards.close()
        await self._backend.close()

    # Boards

    async def add_boards(self, boards: Sequence[BoardEntry]) -> None:
        """Connect to more boards; boards whose name is known are left alone."""
        for entry in self._boards.add(boards):
            await self._shards.open(entry)

    async def remove_board(self, name: str) -> None:
        """Give a board back and forget it; what it had goes to other boards."""
        if self._boards.remove(name):
            await self._shards.drop(name)

    def entries(self) -> dict[str, BoardEntry]:
        """The inventory entries of the boards that were added, by their names."""
        return self._boards.all_entries()

    @property
    def recoveries(self) -> int:
        """How often something came back: a board, or the processes behind the farm."""
        return self.monitor.recoveries + self.backend_state.returns

    async def wait_for(self, platform: str, timeout_s: float) -> PlatformInfo:
        """Wait until a board that offers the platform has joined, or until none can any more.

        Raises:
            FarmError: none joined in time, or all boards answered and none offers the platform.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._shards.wait_until(lambda: self._boards.settled(platform))
        return self.platform(platform)

    def platform(self, name: str) -> PlatformInfo:
        """A platform that some board offers, or offered earlier.

        Raises:
            FarmError: no board did so far; lists what boards offer, and which are offline and why.
        """
        return self._boards.platform(name)

    def offers(self, platform: str) -> bool:
        """Whether some board offers a platform, or offered it earlier."""
        return self._boards.offers(platform)

    def boards(self) -> list[BoardStatus]:
        """Copies of the status of all boards."""
        return [replace(status) for status in self._boards]

    def pool(
        self, platform: str, board_id: str = "", choice: BoardChoice = EVERY_BOARD
    ) -> list[BoardStatus]:
        """Status of the boards of a choice, of one id unless it is empty, with a platform now."""
        return self.partitions.chosen(self._boards.pool(platform, board_id), choice)

    def pool_size(
        self, platforms: Iterable[str], board_id: str = "", choice: BoardChoice = EVERY_BOARD
    ) -> int:
        """How many boards `pool` has for some platforms together."""
        return board_views.pool_size(self._boards, self.partitions, platforms, board_id, choice)

    def healthy(self, platform: str, board_id: str = "", choice: BoardChoice = EVERY_BOARD) -> bool:
        """Whether a connected board of a pool works, neither quarantined nor on probation."""
        partition = self.partitions.use(choice)
        return board_views.healthy(self._scheduler, platform, board_id, partition)

    def story(self, choice: BoardChoice = EVERY_BOARD) -> str:
        """Why boards of a choice do not work, for people; or why no board belongs to it."""
        return board_views.story(self._boards, self.monitor, self.partitions, choice)

    def quiet(self, platform: str) -> bool:
        """Whether a board of the pool runs on this host and needs it idle while it measures."""
        return self._boards.quiet(platform)

    def board_id(self, name: str) -> str:
        """The id of a board by its name; empty if the board has never been connected."""
        return self._boards.board_id(name)

    def hold(self, name: str, standing: Standing, *, checking: bool = False, why: str = "") -> None:
        """Obey a decision about a board, now and each time it joins; see `BoardMonitor.hold`."""
        self.monitor.hold(name, standing, checking, why=why)

    def restart(self, name: str, part: str) -> None:
        """Have the agent of a board restart a part; `BoardCarer.restarted` is told how it went."""
        self._tasks.start(self._shards.restart(name, part))

    def listen_to_boards(self, listener: BoardListener) -> None:
        """Have a listener told what boards do; it takes the place of an earlier one."""
        self.monitor.listener = listener

    def under_way(self, name: str) -> int:
        """How many requests a board has now.

        A board that was lost may measure what it had until its lease has ended.
        """
        board = self._scheduler.board(self.board_id(name))
        return 0 if board is None else board.under_way(self._clock_s())

    def within_reach(self, name: str) -> int:
        """How many requests a connected board has now; 0 if it is away."""
        board = self._scheduler.board(self.board_id(name))
        return 0 if board is None or not board.online else len(board.assigned)

    def discard_measurements(self, board_id: str, since_s: float, reason: str) -> None:
        """Tell running campaigns to discard what a board measured since then and is not stored.

        They are told after all answers that the board has given so far.
        """
        self.spools.forget_board(board_id)
        notice = MeasurementsDiscarded(board_id, since_s, reason)
        self._requests.note(notice)
        self._forget_kept(notice)
        self._events.put(notice)

    def timing_here(self) -> bool:
        """Whether a board that needs this host idle has something to measure."""
        return board_views.timing_here(self._boards, self._scheduler)

    def board_states(
        self, platforms: Collection[str], board_id: str = "", choice: BoardChoice = EVERY_BOARD
    ) -> list[str]:
        """The state of each board that offers or offered a platform (`observer.BOARD_STATES`)."""
        boards = self.partitions.chosen(self._boards, choice)
        return board_views.states(boards, self._scheduler, platforms, board_id)

    def state(self) -> FarmState:
        """The queues and boards now. It looks at every open request: do not call it often."""
        return FarmState(
            self._requests.queues(self._scheduler.at_board, self._clock_s()),
            {
                status.name: board_state(status, self._scheduler.board(self.board_id(status.name)))
                for status in self._boards
            },
        )

    # Requests

    def listen(self, campaign_id: str) -> asyncio.Queue[Delivery | MeasurementsDiscarded]:
        """Where a campaign's answers arrive from now on."""
        return self._requests.inbox(campaign_id)

    def submit(
        self,
        campaign_id: str,
        requests: Sequence[MeasurementRequest],
        priority: int = CAMPAIGN_PRIORITY,
        choice: BoardChoice = EVERY_BOARD,
    ) -> None:
        """Have requests measured; each is answered once to each campaign that submitted it.

        Only boards that belong to the choice measure them.

        Raises:
            FarmError: no board ever offered the platform, or the farm broke.
        """
        self.check()
        works = []
        partition = self.partitions.use(choice)
        for request in requests:
            info = self.platform(request.platform)
            model = ModelSpec(hash_of(request.graph), info.model_format, info.dtype)
            self._requests.add(request, self._clock_s())
            size_bytes = self._models.need(model, request.graph)
            works.append(work_of(request, model, size_bytes, partition))
        self._events.put(RequestsQueued(campaign_id, tuple(works), priority))
        # The scheduler takes the answers that were found before it gives a request to a board.
        self.spools.answer(requests)

    def check(self) -> None:
        """Raise if the farm is broken.

        Raises:
            FarmError: one of its tasks failed; nothing more will be delivered.
        """
        self._tasks.check()

    def cancel(self, campaign_id: str) -> None:
        """Deliver nothing more to a campaign, and forget what it still waits for."""
        if self._requests.close_inbox(campaign_id):
            self._events.put(CampaignCancelled(campaign_id))

    def forget_campaign(self, campaign_id: str) -> list[MeasurementsDiscarded]:
        """Forget a campaign, once its answers are stored.

        Returns:
            All that was discarded since `listen`, also what came too late for the campaign's inbox.
        """
        return self._requests.forget_campaign(campaign_id)

    def forget_results(self, board_id: str, request_ids: Sequence[str]) -> None:
        """Let a board forget results in its spool, because they are kept here or of no use."""
        self._tasks.start(self._shards.shard_of(board_id).acknowledge(board_id, request_ids))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Let boards forget these answers, because they are stored."""
        self.spools.stored([delivery.measurement.request_id for delivery in deliveries])
        for board_id, request_ids in by_board(deliveries).items():
            self.forget_results(board_id, request_ids)

    def keep(
        self,
        campaign_id: str,
        answers: Sequence[Unstored],
        notices: Sequence[MeasurementsDiscarded] = (),
    ) -> None:
        """Keep answers that could not be stored, for the campaign's next run.

        Args:
            campaign_id: of the campaign.
            answers: what the campaign could not store.
            notices: what of it is discarded already.
        """
        self.kept.keep(campaign_id, answers)
        for notice in notices:
            self._forget_kept(notice)

    def _forget_kept(self, notice: MeasurementsDiscarded) -> None:
        """Keep no answer that is discarded, nor let its board give it again."""
        gone = self.kept.discard(notice)
        if gone and not self.stopped:
            self.forget_results(notice.board_id, gone)

    def _builders_changed(self, state: BuilderState) -> None:
        self._events.put(BuildersChanged(state.slots, state.starting))
        self.backend_state.note_builders(state.away, starting=state.starting)
