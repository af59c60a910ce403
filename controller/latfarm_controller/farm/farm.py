"""The farm: boards on one side, campaigns and queries on the other, the scheduler between them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import PlatformInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.links import (
    BoardAway,
    BoardFound,
    BoardStatus,
    BuiltModel,
    FarmBackend,
    Order,
    Question,
    Shard,
    ShardEvent,
    ShardSettings,
)
from latfarm_controller.farm.boards.roster import Roster
from latfarm_controller.farm.models import Models
from latfarm_controller.farm.scheduling.book import Policy
from latfarm_controller.farm.scheduling.messages import (
    CAMPAIGN_PRIORITY,
    BoardHeld,
    BoardJoined,
    BoardLost,
    Build,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Discard,
    Dispatch,
    Event,
    Instruction,
    LeaseExpired,
    ModelSpec,
    Probe,
    ProbeAnswered,
    Quarantine,
    Release,
    RequestsQueued,
    ResultReceived,
    RetryAfter,
    Standing,
    Tick,
    Withdraw,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.watch import FarmState, FarmWatch, QueueState

FEW_BOARDS = 4
BOARDS_A_SHARD = 32
"""A shard spends about 7 ms of its one core on a measurement, most of it in gRPC."""
RESTART_S = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An answer to a campaign's request, and the board to acknowledge it to once it is stored."""

    measurement: Measurement
    board_id: str = ""


@dataclass(frozen=True, slots=True)
class PutAside:
    """What a board measured after a moment is used no more, and must be asked for again."""

    board_id: str
    since_s: float
    reason: str


class Farm:
    """Runs requests on boards. Used from one event loop.

    Args:
        backend: where shards and builders run.
        holder: who we are, for those who find a board leased.
        policy: how the scheduler decides; the number of builds at once is the backend's.
        clock_s: any clock that never goes back.
        watch: told of what happens.
    """

    def __init__(
        self,
        backend: FarmBackend,
        holder: str,
        *,
        policy: Policy | None = None,
        settings: ShardSettings | None = None,
        clock_s: Callable[[], float] = time.monotonic,
        watch: FarmWatch | None = None,
    ) -> None:
        self._backend = backend
        self._settings = settings or ShardSettings(holder, host_boot_id())
        policy = replace(policy or Policy(), build_slots=backend.build_slots)
        self._scheduler = Scheduler(policy)
        self._clock_s = clock_s
        self._watch = watch or FarmWatch()
        self._asked_s: dict[str, float] = {}
        self._shards: list[Shard] = []
        self._roster = Roster()
        self._models = Models(backend, self._watch, clock_s)
        self._requests: dict[str, MeasurementRequest] = {}
        self._inboxes: dict[str, asyncio.Queue[Delivery | PutAside]] = {}
        self._holds: dict[str, tuple[Standing, bool]] = {}
        self.on_measured: Callable[[str, Measurement], None] | None = None
        """Told of each answer of a board, by the board's name."""
        self.on_taken_back: Callable[[str], None] | None = None
        """Told of a board by its name when its failures' quarantine ends: it answered its probe."""
        self.stopped = False
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._placing = asyncio.Lock()
        self._failure: BaseException | None = None

    async def start(self, boards: Sequence[BoardEntry] = ()) -> None:
        """Start backend and shards, and begin to connect to the boards; does not wait for them.

        Raises:
            FarmError: the backend cannot be started.
        """
        await self._backend.start()
        self._spawn(self._decide())
        await self.add_boards(boards)

    async def stop(self) -> None:
        """Give all boards back and end everything; undelivered requests are forgotten."""
        self.stopped = True
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shards, self._shards = self._shards, []
        await asyncio.gather(*(shard.close() for shard in shards), return_exceptions=True)
        await self._backend.close()

    async def add_boards(self, boards: Sequence[BoardEntry]) -> None:
        """Connect to more boards; those that are known by name are left alone."""
        for entry in self._roster.add(boards):
            async with self._placing:  # else each of several campaigns would start a shard
                index = self._roster.named(entry.name).shard = await self._shard_with_room()
            await self._shards[index].open([entry])

    async def wait_for(self, platform: str, timeout_s: float) -> PlatformInfo:
        """Wait until a board that offers the platform has joined, or until none will.

        Raises:
            FarmError: none did in time, or all boards answered and none offers it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._roster.settled(platform))
        return self.platform(platform)

    def platform(self, name: str) -> PlatformInfo:
        """A platform that some board offers or offered.

        Raises:
            FarmError: no board did so far; lists what they offer, and who is away and why.
        """
        return self._roster.platform(name)

    def offers(self, platform: str) -> bool:
        """Whether some board offers or offered a platform."""
        return self._roster.offers(platform)

    def boards(self) -> list[BoardStatus]:
        """All boards as last heard; copies."""
        return [replace(status) for status in self._roster]

    def pool(self, platform: str, board_id: str = "") -> list[BoardStatus]:
        """The connected boards that offer a platform, or the one of them meant; copies."""
        return self._roster.pool(platform, board_id)

    def healthy(self, platform: str, board_id: str = "") -> bool:
        """Whether a connected board of the pool works: not quarantined, nor on probation."""
        boards = (self._scheduler.board(name) for name in self._scheduler.usable_boards(platform))
        return any(
            board is not None and not board.quarantines and board_id in ("", board.board_id)
            for board in boards
        )

    def quiet(self, platform: str) -> bool:
        """Whether a board of the pool needs this host quiet while it times."""
        return any(status.quiet for status in self.pool(platform))

    def board_id(self, name: str) -> str:
        """The id of a board that was connected; empty: it never was."""
        return self._roster.board_id(name)

    def hold(self, name: str, standing: Standing, *, checking: bool = False) -> None:
        """Obey a decision over a board, now and whenever it joins."""
        self._holds[name] = (standing, checking)
        board_id = self.board_id(name)
        if board_id:
            self._events.put_nowait(BoardHeld(board_id, standing, checking))
        if standing is Standing.QUARANTINED and not checking:
            self._watch.quarantined(name)

    def under_way(self, name: str) -> int:
        """How many requests a board has now."""
        board = self._scheduler.board(self.board_id(name))
        return 0 if board is None or not board.online else len(board.assigned)

    def put_aside(self, board_id: str, since_s: float, reason: str) -> None:
        """Tell all campaigns that run: what is not stored yet is theirs to put aside."""
        for inbox in self._inboxes.values():
            inbox.put_nowait(PutAside(board_id, since_s, reason))

    def timing_here(self) -> bool:
        """Whether a board that needs this host quiet has something to measure."""
        boards = (
            self._scheduler.board(status.info.board_id)
            for status in self._roster
            if status.quiet and status.online and status.info is not None
        )
        return any(board is not None and board.assigned for board in boards)

    def state(self) -> FarmState:
        """Queues and boards now. Looks at every open request: not for the hot path."""
        now_s = self._clock_s()
        counts: dict[str, list[float]] = {}
        for request_id, request in self._requests.items():
            found = counts.setdefault(request.platform, [0, 0, now_s])
            found[self._scheduler.at_board(request_id)] += 1
            found[2] = min(found[2], self._asked_s.get(request_id, now_s))
        return FarmState(
            {name: QueueState(int(w), int(a), now_s - s) for name, (w, a, s) in counts.items()},
            {status.name: self._board_state(status) for status in self._roster},
        )

    def _board_state(self, status: BoardStatus) -> str:
        board = status.info and self._scheduler.board(status.info.board_id)
        if not board or not status.online:
            return "away"
        if board.until_s is not None or board.standing is Standing.QUARANTINED:
            return "quarantined"
        if board.standing is Standing.DRAINING:
            return "draining"
        return "probation" if board.quarantines else "ready"

    # Requests

    def listen(self, campaign_id: str) -> asyncio.Queue[Delivery | PutAside]:
        """Where a campaign's answers arrive from now on."""
        return self._inboxes.setdefault(campaign_id, asyncio.Queue())

    def submit(
        self,
        campaign_id: str,
        requests: Sequence[MeasurementRequest],
        priority: int = CAMPAIGN_PRIORITY,
    ) -> None:
        """Have requests measured; each is answered once to each campaign that submitted it.

        Raises:
            FarmError: no board ever offered the platform, or the farm broke.
        """
        self.check()
        works = []
        for request in requests:
            info = self.platform(request.platform)
            model = ModelSpec(hash_of(request.graph), info.model_format, info.dtype)
            self._requests[request.request_id] = request
            self._asked_s.setdefault(request.request_id, self._clock_s())
            self._models.need(model, request.graph)
            works.append(
                Work(
                    request.request_id,
                    request.platform,
                    model,
                    request.purpose,
                    weight_bytes(request.graph),
                    request.settings,
                    request.board,
                )
            )
        self._events.put_nowait(RequestsQueued(campaign_id, tuple(works), priority))

    def check(self) -> None:
        """Whether the farm still works.

        Raises:
            FarmError: it does not; nothing more will be delivered.
        """
        if self._failure is not None:
            raise FarmError(f"the farm broke: {self._failure!r}") from self._failure

    def cancel(self, campaign_id: str) -> None:
        """Forget a campaign and what it still waits for."""
        if self._inboxes.pop(campaign_id, None) is not None:
            self._events.put_nowait(CampaignCancelled(campaign_id))

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """These answers are stored: their boards may forget them."""
        by_board: dict[str, list[str]] = {}
        for delivery in deliveries:
            if delivery.board_id:
                by_board.setdefault(delivery.board_id, []).append(delivery.measurement.request_id)
        for board_id, request_ids in by_board.items():
            self._spawn(self._shard_of(board_id).acknowledge(board_id, request_ids))

    # Deciding

    async def _decide(self) -> None:
        """The one place where the scheduler is called."""
        while True:
            wake_at_s = self._scheduler.wake_at_s()
            events: list[Event] = []
            timeout_s = None if wake_at_s is None else max(0.0, wake_at_s - self._clock_s())
            with contextlib.suppress(TimeoutError):
                # Not wait_for: in Python 3.11 it may swallow our cancellation.
                async with asyncio.timeout(timeout_s):
                    events.append(await self._events.get())
            while not self._events.empty():
                events.append(self._events.get_nowait())
            self._carry_out(self._scheduler.handle(self._clock_s(), *(events or [Tick()])))
            if any(isinstance(event, CampaignCancelled) for event in events):
                self._forget_closed(list(self._requests))

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        orders: dict[int, list[Order]] = {}
        delivered: list[str] = []
        for instruction in instructions:
            match instruction:
                case Build(models):
                    self._spawn(self._build(models))
                case Dispatch(board_id, request_id, model, priority):
                    built = self._models.built(model)
                    question = Question.of(self._requests[request_id])
                    waited_s = self._clock_s() - self._asked_s[request_id]
                    self._watch.dispatched(question.platform, waited_s)
                    order = Order(board_id, question, built.sha256, built.handle, priority)
                    orders.setdefault(self._roster.status(board_id).shard, []).append(order)
                case Deliver(campaign_id, measurement, board_id):
                    delivered.append(measurement.request_id)
                    self._watch.delivered(campaign_id, measurement)
                    if campaign_id in self._inboxes:
                        self._inboxes[campaign_id].put_nowait(Delivery(measurement, board_id))
                case Withdraw(board_id, request_id, abort):
                    self._spawn(self._shard_of(board_id).withdraw(board_id, request_id, abort))
                case Discard(board_id, request_id):
                    self._spawn(self._shard_of(board_id).acknowledge(board_id, [request_id]))
                case Probe(board_id):
                    self._spawn(self._shard_of(board_id).probe(board_id))
                case Release(model):
                    self._models.release(model)
                case Quarantine(board_id, _, reason):
                    logger.warning("board %s is quarantined: %s", board_id, reason)
                    self._roster.status(board_id).reason = f"quarantined: {reason}"
                    self._watch.quarantined(self._roster.status(board_id).name)
                case RetryAfter(request_id, _, attempt, reason):
                    logger.info("request %s, attempt %d follows: %s", request_id, attempt, reason)
                    if request_id in self._requests:
                        self._watch.retried(self._requests[request_id].platform)
        for index, some in orders.items():
            self._spawn(self._shards[index].dispatch(some))
        self._forget_closed(delivered)

    def _forget_closed(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            if not self._scheduler.is_open(request_id):
                self._requests.pop(request_id, None)
                self._asked_s.pop(request_id, None)
        if request_ids:
            self._models.forget_graphs(self._scheduler.models())

    async def _build(self, models: Sequence[ModelSpec]) -> None:
        for answer in await self._models.build(models):
            if isinstance(answer, BuiltModel):
                self._events.put_nowait(BuildReady(answer.model, answer.size_bytes))
            else:
                event = BuildFailed(answer.model, answer.message, answer.retryable)
                self._events.put_nowait(event)

    # Shards

    async def _shard_with_room(self) -> int:
        """The emptiest shard; a new one while boards are many and cores are free."""
        sizes = self._roster.sizes(len(self._shards))
        crowded = FEW_BOARDS if len(sizes) < self._backend.shard_slots else BOARDS_A_SHARD
        if sizes and min(sizes) < crowded:
            return sizes.index(min(sizes))
        self._shards.append(await self._backend.shard(self._settings))
        self._spawn(self._attend(len(self._shards) - 1))
        return len(self._shards) - 1

    async def _attend(self, index: int) -> None:
        """Take a shard's events; when it dies, lose its boards and start another."""
        while True:
            try:
                events = await self._shards[index].events()
            except FarmError as error:
                logger.warning("%s; it is started again", error)
                await self._replace(index, str(error))
                continue
            for event in events:
                self._heard(index, event)
            async with self._changed:
                self._changed.notify_all()

    async def _replace(self, index: int, reason: str) -> None:
        mine = self._roster.on_shard(index)
        for status in mine:
            status.online, status.reason = False, reason
            if status.info is not None:
                self._events.put_nowait(LeaseExpired(status.info.board_id, "", reason))
        await asyncio.sleep(RESTART_S)
        self._shards[index] = await self._backend.shard(self._settings)
        await self._shards[index].open(self._roster.entries(s.name for s in mine))

    def _heard(self, index: int, event: ShardEvent) -> None:
        match event:
            case BoardFound(name, info, quiet):
                self._roster.joined(index, event)
                names = tuple(platform.name for platform in info.platforms)
                self._events.put_nowait(BoardJoined(info.board_id, names, quiet))
                if name in self._holds:
                    self._events.put_nowait(BoardHeld(info.board_id, *self._holds[name]))
                return
            case BoardAway(name, reason, refused):
                self._roster.named(name).reason = reason
                if refused:
                    logger.warning("board %s was refused: %s", name, reason)
                return
            case BoardLost(board_id, _, reason) | LeaseExpired(board_id, _, reason):
                status = self._roster.status(board_id)
                status.online, status.reason = False, reason
            case ProbeAnswered(board_id, True):
                if self.on_taken_back is not None:
                    self.on_taken_back(self._roster.status(board_id).name)
            case ResultReceived(board_id, measurement, busy_ms):
                status = self._roster.status(board_id)
                status.busy_ms += busy_ms
                self._watch.measured(status.name, measurement, busy_ms / 1e3)
                if measurement.ok:
                    status.measured += 1
                    status.reason = ""
                if self.on_measured is not None:
                    self.on_measured(status.name, measurement)
        self._events.put_nowait(event)

    def _shard_of(self, board_id: str) -> Shard:
        return self._shards[self._roster.status(board_id).shard]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, FarmError):  # an order to a shard that died: it is being replaced
            logger.warning("%s", error)
            return
        logger.error("the farm broke", exc_info=error)
        self._failure = error


def weight_bytes(graph: Graph) -> int:
    """About how large the built model will be: its weights."""
    return sum(weight.type.size_bytes for weight in graph.weights.values())


def host_boot_id() -> str:
    """Identity of this host's present boot; empty where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
