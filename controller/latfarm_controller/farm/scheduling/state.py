"""What the scheduler remembers of a request, a board and a model, and its settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.farm.scheduling.board_time import Account
from latfarm_controller.farm.scheduling.messages import ModelSpec, Standing, Work, queue_of


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of the scheduler; the defaults are those of the product.

    Attributes:
        depth: most requests at a board at once. One is measured, and the models of the others are
            uploaded meanwhile.
        quiet_depth: the same for a quiet board. It is lower, because models are built only when
            such a board has nothing to measure, and a query waits for its model.
        build_slots: most builds at once.
        batch_models: most models in one build.
        batch_bytes: most bytes of models in one build, unless a single model is larger.
        held_bytes: most bytes of models that are built or being built for requests.
        attempt_limit: a request that failed this often is answered with its last failure.
        kill_limit: a request during which this many boards were lost is answered with a failure.
        build_limit: a model during whose build this many builders died is given up.
        loss_limit: if all builders went away this often during the builds of a model, each further
            time counts like the death of its builder.
        backoff_s: wait after the first failure of a request; it doubles with each failure.
        backoff_cap_s: the longest such wait.
        strike_limit: a board that fails this often in a row is quarantined.
        quarantine_s: time of the first quarantine in a row; it doubles with each quarantine.
        quarantine_cap_s: the longest quarantine.
    """

    depth: int = 3
    quiet_depth: int = 2
    build_slots: int = 2
    batch_models: int = 16
    batch_bytes: int = 64 << 20
    held_bytes: int = 512 << 20
    attempt_limit: int = 5
    kill_limit: int = 3
    build_limit: int = 3
    loss_limit: int = 10
    backoff_s: float = 1.0
    backoff_cap_s: float = 60.0
    strike_limit: int = 3
    quarantine_s: float = 30.0
    quarantine_cap_s: float = 600.0

    def backoff(self, attempt: int) -> float:
        """Seconds to wait after the `attempt`-th failure of a request (1, 2, ...)."""
        return doubling_wait_s(self.backoff_s, self.backoff_cap_s, attempt)

    def quarantine(self, time: int) -> float:
        """Seconds that the `time`-th quarantine in a row lasts (1, 2, ...)."""
        return doubling_wait_s(self.quarantine_s, self.quarantine_cap_s, time)


@dataclass(slots=True)
class ScheduledJob:
    """A request that is not answered yet.

    Attributes:
        work: the request.
        number: the place of the request in the order of submission.
        owners: the campaigns that wait for it, with their priorities. Without owners it is only
            kept until its board has given it back.
        board: id of the board that has it; empty while it is queued.
        withdrawing: whether its board was asked to give it back.
        not_before_s: when it may be tried again.
        attempts: how often it failed for a reason that is not its own.
        kills: how many boards were lost while they measured it.
        tried: ids of the boards where it failed.
        story: what happened to it, a line for each failure.
        charged: the account that is charged for it while a board has it, and the amount in ms.
        tries_ms: how long boards were busy with it without an answer that is used, in ms.
        lost_ms: the part of it in which the answer did not come, by the id of the board.
    """

    work: Work
    number: int
    owners: dict[str, int] = field(default_factory=dict)
    board: str = ""
    withdrawing: bool = False
    not_before_s: float = 0.0
    attempts: int = 0
    kills: int = 0
    tried: set[str] = field(default_factory=set)
    story: list[str] = field(default_factory=list)
    charged: tuple[Account, float] | None = None
    tries_ms: float = 0.0
    lost_ms: dict[str, float] = field(default_factory=dict)

    def lose_try(self, board_id: str, busy_ms: float) -> None:
        """Count the board time of a try whose answer did not come."""
        self.tries_ms += busy_ms
        self.lost_ms[board_id] = self.lost_ms.get(board_id, 0.0) + busy_ms

    def count_try(self, board_id: str, board_ms: float, busy_ms: float) -> None:
        """Count the board time of a try that was answered.

        A board that comes back may answer with what it measured while it was lost. That time was
        counted as lost, and is not counted again.

        Args:
            board_id: the board that answered.
            board_ms: how long it says that it was busy.
            busy_ms: how long it was busy since it was asked last.
        """
        earlier_ms = max(0.0, board_ms - busy_ms)
        self.tries_ms += board_ms - min(earlier_ms, self.lost_ms.pop(board_id, 0.0))

    @property
    def priority(self) -> int:
        """The priority of the most urgent owner."""
        owners = self.owners
        return next(iter(owners.values())) if len(owners) == 1 else max(owners.values(), default=0)

    @property
    def account(self) -> Account:
        """The account that pays for it: that of the most urgent owner, the first of equal ones."""
        owners = self.owners
        owner = max(owners, key=owners.__getitem__) if len(owners) > 1 else next(iter(owners), "")
        return Account(owner, self.work.platform)

    def tell(self) -> str:
        """What happened to the request so far, in one line."""
        return "; ".join(self.story)


@dataclass(slots=True)
class ScheduledBoard:
    """A board that is connected, or was.

    Attributes:
        board_id: its id.
        number: its place in the order in which boards became known.
        platforms: names of the platforms that it offers.
        queues: names of the queues that it serves: those of its platforms, for all boards and for
            each of its partitions. Set both with `offer`.
        quiet: whether the controller's host must be idle while it measures.
        online: whether it is connected and leased.
        assigned: ids of the requests that it has, in the order of dispatch.
        strikes: its failures in a row.
        quarantines: its quarantines in a row for such failures; 0 once a request succeeds.
        until_s: when it is to be probed, if it is quarantined for its failures; else None.
        probing: whether it was asked whether it works, and has not answered.
        standing: what was decided about it, by people or because its sentinel drifted; or that it
            must pass its health check first.
        checking: whether it may run check measurements although it does not work.
        connection: names its connection; orders that were meant for an earlier one are dropped.
        left: how many requests it had when it was lost; it may measure them until its lease ends.
        leased_until_s: when the lease of a board that was lost ends at the latest.
    """

    board_id: str
    number: int
    platforms: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    quiet: bool = False
    online: bool = False
    assigned: list[str] = field(default_factory=list)
    strikes: int = 0
    quarantines: int = 0
    until_s: float | None = None
    probing: bool = False
    standing: Standing = Standing.WORKING
    checking: bool = False
    connection: str = ""
    left: int = 0
    leased_until_s: float = 0.0

    def offer(self, platforms: tuple[str, ...], partitions: tuple[str, ...]) -> None:
        """Note which platforms the board offers, and to which partitions it belongs."""
        self.platforms = platforms
        limited = (queue_of(name, part) for part in partitions for name in platforms)
        self.queues = (*platforms, *limited)

    def join(self, connection: str) -> None:
        """Note that the board is connected and leased; an earlier lease has ended with that."""
        self.online, self.connection, self.left = True, connection, 0

    def leave(self, leased_until_s: float) -> None:
        """Note that the board is away, and until when it may still measure what it has."""
        self.online = self.probing = False
        self.left, self.leased_until_s = len(self.assigned), leased_until_s

    def under_way(self, now_s: float) -> int:
        """How many requests the board has, or may still measure because its lease has not ended."""
        if self.online:
            return len(self.assigned)
        return self.left if now_s < self.leased_until_s else 0

    @property
    def held(self) -> bool:
        """Whether the board gets no work: it is unproven, drained or quarantined."""
        return self.standing is not Standing.WORKING

    @property
    def usable(self) -> bool:
        """Whether it may get requests; a board that is held and `checking` gets only checks."""
        return self.online and self.until_s is None and (self.checking or not self.held)

    def depth(self, policy: Policy) -> int:
        """Most requests that it may have at once; only one on probation after a quarantine."""
        if self.quarantines:
            return 1
        return policy.quiet_depth if self.quiet else policy.depth


@dataclass(slots=True)
class ScheduledModel:
    """A model that open requests need.

    Attributes:
        spec: names the model.
        size_bytes: its size; an estimate until it is built.
        jobs: ids of the requests that need it.
        building: whether it is being built.
        ready: whether it is built.
        failures: how often its build failed.
        losses: how often all builders went away during its build.
        not_before_s: when its build may be tried again.
    """

    spec: ModelSpec
    size_bytes: int
    jobs: set[str] = field(default_factory=set)
    building: bool = False
    ready: bool = False
    failures: int = 0
    losses: int = 0
    not_before_s: float = 0.0

    @property
    def held(self) -> bool:
        """Whether its bytes are kept, or will be: it is built or being built."""
        return self.ready or self.building
