"""Random orders of events against the scheduler: nothing is lost, nothing is doubled."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from latfarm_controller.farm.scheduling.messages import (
    BoardJoined,
    BoardLost,
    Build,
    BuildersChanged,
    BuildFailed,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Dispatch,
    Event,
    ForgetResult,
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
    Tick,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.farm.scheduling.state import Policy
from latfarm_predictors.measurement import Measurement, Outcome

BOARDS = {
    "a1": (("pa",), False),
    "a2": (("pa",), False),
    "ab": (("pa", "pb"), False),
    "q": (("pb", "pq"), True),
}
PLATFORMS = ("pa", "pb", "pq")
CAMPAIGNS = ("c1", "c2", "query")
PINNED = {"pa": "ab", "pb": "ab", "pq": "q"}  # a request for one board alone asks this one
MODEL_BYTES = {"g0": 10, "g1": 10, "g2": 60, "g3": 200}


def answer(request_id: str, outcome: Outcome) -> Measurement:
    return Measurement(
        request_id=request_id,
        graph_hash="",
        platform="",
        purpose="kernel",
        outcome=outcome,
        error_code="" if outcome is Outcome.OK else "BROKEN",
    )


class World(RuleBasedStateMachine):
    """Boards and builders that do as told, in any order; what was wanted and what delivered."""

    @initialize(depth=st.integers(1, 3))
    def start(self, depth: int) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(
            Policy(
                depth=depth, build_slots=2, batch_models=2, batch_bytes=50, held_bytes=100,
                quarantine_s=5.0, attempt_limit=4,
            )
        )  # fmt: skip
        self.online: dict[str, bool] = dict.fromkeys(BOARDS, False)
        self.quarantined: set[str] = set()
        self.probed: set[str] = set()
        self.at: dict[str, list[str]] = {name: [] for name in BOARDS}  # first runs, others wait
        self.withdrawals: list[Withdraw] = []
        self.stale: set[tuple[str, str]] = set()
        self.builds: list[set[ModelSpec]] = []
        self.slots, self.starting = 2, False  # of the builders
        self.ready: set[ModelSpec] = set()
        self.wanted: Counter[tuple[str, str]] = Counter()
        self.works: dict[str, Work] = {}
        self.delivered: Counter[tuple[str, str]] = Counter()
        self.limbo: list[tuple[str, str]] = []  # running at a board that was given up
        for board in BOARDS:
            self.join(board)
        for platform in PLATFORMS:
            self.queue("c1", platform, {"g0", "g2"}, 0)

    def _names(self, where: str) -> list[str]:
        if where == "offline":
            return [name for name, online in self.online.items() if not online]
        if where == "online":
            return [name for name, online in self.online.items() if online]
        return [name for name, queue in self.at.items() if queue]

    def _open(self) -> list[str]:
        return sorted({c for (c, r), n in self.wanted.items() if n > self.delivered[c, r]})

    def send(self, *events: Event) -> None:
        for instruction in self.scheduler.handle(self.now, *events):
            self.take(instruction)

    def take(self, instruction: Instruction) -> None:
        match instruction:
            case Dispatch(board_id, request_id, model):
                work = self.works[request_id]
                assert self.online[board_id]
                assert board_id not in self.quarantined
                assert work.platform in BOARDS[board_id][0]
                assert work.board in ("", board_id)
                assert model == work.model
                assert model in self.ready
                for name, queue in self.at.items():
                    # Elsewhere only what is being stopped, its answer having come late.
                    assert request_id not in queue or (name, request_id) in self.stale
                assert request_id not in self.at[board_id]
                assert any(self.wanted[c, request_id] for c in CAMPAIGNS)
                if BOARDS[board_id][1]:
                    assert not self.builds
                    assert not self.starting
                self.at[board_id].append(request_id)
            case Withdraw():
                if instruction.request_id in self.at[instruction.board_id]:
                    self.withdrawals.append(instruction)
                    if instruction.abort:
                        self.stale.add((instruction.board_id, instruction.request_id))
            case Build(models):
                assert models
                assert len(self.builds) < self.slots
                assert not any(
                    queue and BOARDS[name][1] and self.online[name]
                    for name, queue in self.at.items()
                )
                assert not self.ready.intersection(models)
                assert not any(batch.intersection(models) for batch in self.builds)
                self.builds.append(set(models))
            case Deliver(campaign_id, measurement):
                key = (campaign_id, measurement.request_id)
                self.delivered[key] += 1
                assert self.delivered[key] <= self.wanted[key], f"{key} twice, or unasked"
            case Release(model):
                self.ready.remove(model)
            case Quarantine(board_id, until_s):
                assert until_s > self.now
                self.quarantined.add(board_id)
            case Probe(board_id):
                assert self.online[board_id]
                assert board_id in self.quarantined
                self.probed.add(board_id)
            case RetryAfter(_, at_s):
                assert at_s > self.now
            case ForgetResult():
                pass

    @rule(
        campaign=st.sampled_from(CAMPAIGNS),
        platform=st.sampled_from(PLATFORMS),
        graphs=st.sets(st.sampled_from(sorted(MODEL_BYTES)), min_size=1),
        repeat=st.integers(0, 1),
        pin=st.booleans(),
    )
    def queue(
        self, campaign: str, platform: str, graphs: set[str], repeat: int, *, pin: bool = False
    ) -> None:
        works = []
        board = PINNED[platform] if pin else ""
        for graph in sorted(graphs):
            request_id = f"{platform}/{graph}/{repeat}@{board}"
            key = (campaign, request_id)
            if self.wanted[key] > self.delivered[key]:
                continue  # a driver does not ask again for what is under way
            model = ModelSpec(graph, "onnx", "fp32")
            size = MODEL_BYTES[graph]
            part = self.partition(campaign)
            work = Work(request_id, platform, model, "kernel", size, board=board, partition=part)
            self.works[request_id] = work
            self.wanted[key] += 1
            works.append(work)
        priority = 10 if campaign == "query" else 0
        self.send(RequestsQueued(campaign, tuple(works), priority))

    @precondition(lambda self: self._names("offline"))
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        self.join(data.draw(st.sampled_from(self._names("offline"))))

    def join(self, board: str) -> None:
        self._gone(board)
        self.online[board] = True
        self.send(self.joined(board))

    def joined(self, board: str) -> BoardJoined:
        """How a board joins."""
        platforms, quiet = BOARDS[board]
        return BoardJoined(board, platforms, quiet)

    def partition(self, _campaign: str) -> str:
        """Which boards a campaign may use; empty: all."""
        return ""

    def result(self, board: str, request_id: str, outcome: Outcome) -> None:
        self.send(ResultReceived(board, answer(request_id, outcome)))

    def _gone(self, board: str) -> None:
        if self.at[board]:
            self.limbo.append((board, self.at[board][0]))
        self.at[board] = []
        self.online[board] = False
        self.probed.discard(board)
        self.withdrawals = [w for w in self.withdrawals if w.board_id != board]
        self.stale = {(name, request_id) for name, request_id in self.stale if name != board}

    @precondition(lambda self: self._names("online"))
    @rule(data=st.data(), busy=st.booleans())
    def lose(self, data: st.DataObject, busy: bool) -> None:
        names = (self._names("busy") if busy else []) or self._names("online")
        board = data.draw(st.sampled_from(names))
        running = self.at[board][0] if self.at[board] else ""
        self._gone(board)
        self.send(BoardLost(board, running, "it hung up"))

    def expire(self, board: str) -> None:
        self._gone(board)
        self.send(LeaseExpired(board))

    @precondition(lambda self: self._names("busy"))
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish_one(self, data: st.DataObject, outcome: Outcome) -> None:
        self.finish(data.draw(st.sampled_from(self._names("busy"))), outcome)

    def finish(self, board: str, outcome: Outcome) -> None:
        request_id = self.at[board].pop(0)
        self.stale.discard((board, request_id))
        self.withdrawals = [
            w for w in self.withdrawals if (w.board_id, w.request_id) != (board, request_id)
        ]
        self.result(board, request_id, outcome)

    @precondition(lambda self: self.limbo)
    @rule(data=st.data(), outcome=st.sampled_from(list(Outcome)))
    def finish_late(self, data: st.DataObject, outcome: Outcome) -> None:
        board, request_id = data.draw(st.sampled_from(self.limbo))
        self.limbo.remove((board, request_id))
        if request_id in self.at[board]:
            return  # it came back to the same board: that one's answer counts
        self.result(board, request_id, outcome)

    @precondition(lambda self: self.withdrawals)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(self.withdrawals))
        self.withdrawals.remove(order)
        queue = self.at[order.board_id]
        if order.request_id not in queue or (queue[0] == order.request_id and not order.abort):
            return  # too late: it runs, or it went back already
        queue.remove(order.request_id)
        self.stale.discard((order.board_id, order.request_id))
        self.send(Withdrawn(order.board_id, order.request_id))

    @precondition(lambda self: self.builds)
    @rule(data=st.data(), how=st.sampled_from(["ready", "ready", "failed", "crashed"]))
    def built(self, data: st.DataObject, how: str) -> None:
        batch = data.draw(st.sampled_from(self.builds))
        model = data.draw(st.sampled_from(sorted(batch, key=lambda m: m.graph_hash)))
        batch.discard(model)
        self.builds = [batch for batch in self.builds if batch]
        if how == "ready":
            self.ready.add(model)
            self.send(BuildReady(model, MODEL_BYTES[model.graph_hash]))
        else:
            self.send(BuildFailed(model, "no", retryable=how == "crashed"))

    @precondition(lambda self: self.builds)
    @rule()
    def build_all(self) -> None:
        while self.builds:
            batches, self.builds = self.builds, []
            models = sorted(set().union(*batches), key=lambda model: model.graph_hash)
            self.ready.update(models)
            self.send(*(BuildReady(m, MODEL_BYTES[m.graph_hash]) for m in models))

    @precondition(lambda self: self.slots)
    @rule()
    def builders_go(self) -> None:
        self.slots, self.starting = 0, False
        batches, self.builds = self.builds, []
        models = sorted(set().union(*batches), key=lambda model: model.graph_hash)
        gone = [BuildFailed(model, "gone", retryable=True, lost=True) for model in models]
        self.send(BuildersChanged(0), *gone)

    @precondition(lambda self: not self.slots)
    @rule(slots=st.integers(0, 3))
    def builders_come(self, slots: int) -> None:
        self.slots, self.starting = slots, not slots
        self.send(BuildersChanged(slots, self.starting))

    @precondition(lambda self: len(self.limbo) < 3 and any(self.at.values()))
    @rule()
    def shake(self) -> None:
        """Every busy board goes away in the middle of its work, and comes back."""
        for board in [name for name, queue in self.at.items() if queue]:
            self.expire(board)
            self.join(board)

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        campaign = data.draw(st.sampled_from(self._open()))
        for key in self.wanted:
            if key[0] == campaign:
                self.wanted[key] = self.delivered[key]
        self.send(CampaignCancelled(campaign))

    @precondition(lambda self: self.probed)
    @rule(data=st.data(), healthy=st.booleans())
    def probe(self, data: st.DataObject, healthy: bool) -> None:
        board = data.draw(st.sampled_from(sorted(self.probed)))
        self.probed.discard(board)
        if healthy:
            self.quarantined.discard(board)
        self.send(ProbeAnswered(board, healthy))

    @rule(seconds=st.floats(0.1, 40.0))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.send(Tick())

    @invariant()
    def nothing_is_doubled(self) -> None:
        if hasattr(self, "delivered"):
            assert all(self.delivered[key] <= self.wanted[key] for key in self.delivered)

    def teardown(self) -> None:
        """Who is left is well from now on: all that is wanted arrives, and nothing is kept."""
        if not hasattr(self, "scheduler"):
            return
        self.slots, self.starting = 2, False
        self.send(BuildersChanged(2))
        for board in ("ab", "q"):  # enough for all platforms; the others need not come back
            if not self.online[board]:
                self.join(board)
        for _ in range(2000):
            if (
                self.scheduler.open_requests() == set()
                and not self.builds
                and not any(self.at.values())
            ):
                break
            if self.builds:
                model = min(self.builds[0], key=lambda m: m.graph_hash)
                self.builds[0].discard(model)
                self.builds = [batch for batch in self.builds if batch]
                self.ready.add(model)
                self.send(BuildReady(model, MODEL_BYTES[model.graph_hash]))
                continue
            for board in sorted(self.probed):
                self.probed.discard(board)
                self.quarantined.discard(board)
                self.send(ProbeAnswered(board, True))
            running = [name for name, queue in self.at.items() if queue]
            for board in running:
                if self.at[board]:
                    self.finish(board, Outcome.OK)
            if not running and not self.builds:
                wake_at = self.scheduler.wake_at_s()
                assert wake_at is not None, "work is open and nothing will ever happen"
                self.now = wake_at
                self.send(Tick())
        missing = {key for key in self.wanted if self.wanted[key] != self.delivered[key]}
        assert not missing
        assert self.scheduler.open_requests() == set()
        assert not self.ready, "models that nobody needs are still held"


World.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
TestWorld = World.TestCase
