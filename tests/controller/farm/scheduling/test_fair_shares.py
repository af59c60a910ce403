"""Board time is shared evenly between campaigns of one priority, in simulated time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import pytest
from latfarm_controller.farm.driving.campaign_run import AHEAD_A_BOARD, MIN_AHEAD
from latfarm_controller.farm.scheduling.board_time import CREDIT_MS, Account, BoardTimeShares
from latfarm_controller.farm.scheduling.messages import (
    CALIBRATION_PRIORITY,
    CAMPAIGN_PRIORITY,
    QUERY_PRIORITY,
    BoardJoined,
    Build,
    BuildReady,
    CampaignCancelled,
    Deliver,
    Dispatch,
    Event,
    Instruction,
    ModelSpec,
    RequestsQueued,
    ResultReceived,
    Withdraw,
    Withdrawn,
    Work,
)
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_predictors.measurement import Measurement, Outcome

BUILD_S = 0.05
"""How long it takes to build a batch of models, in seconds."""


@dataclass
class Plan:
    """A campaign: it keeps `window` requests open, each of which takes `took_s` of a board."""

    window: int
    took_s: float
    platform: str = "p"
    begins_s: float = 0.0
    pause_s: float = 0.0
    """Seconds after each answer before the campaign submits the next request."""


@dataclass
class Simulation:
    """Boards, a builder and campaigns around a scheduler, in simulated time."""

    plans: dict[str, Plan]
    boards: Mapping[str, tuple[str, ...]]
    now_s: float = 0.0
    used_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def __post_init__(self) -> None:
        self.scheduler = Scheduler()
        self._numbers = count()
        self._coming: list[tuple[float, int, tuple[Event, ...]]] = []
        self._queues: dict[str, list[tuple[int, int, str]]] = {name: [] for name in self.boards}
        self._busy: set[str] = set()
        for name, platforms in self.boards.items():
            self._at(0.0, BoardJoined(name, platforms))
        for name, plan in self.plans.items():
            self._at(plan.begins_s, *(self._request(name) for _ in range(plan.window)))

    def run(self, until_s: float) -> dict[str, float]:
        """Go on until a time; returns the board time of each campaign since the last call."""
        before = {name: self.used_s[name] for name in self.plans}
        while self._coming and self._coming[0][0] <= until_s:
            self.now_s, _, events = heappop(self._coming)
            for event in events:
                if isinstance(event, ResultReceived):
                    self._busy.discard(event.board_id)
            self._obey(self.scheduler.handle(self.now_s, *events))
            for board in self.boards:
                self._measure(board)
        self.now_s = until_s
        return {name: self.used_s[name] - before[name] for name in self.plans}

    def _request(self, name: str) -> RequestsQueued:
        request_id = f"{name}-{next(self._numbers)}"
        plan = self.plans[name]
        work = Work(request_id, plan.platform, ModelSpec(request_id, "onnx", "fp32"), "kernel", 100)
        return RequestsQueued(name, (work,))

    def _at(self, time_s: float, *events: Event) -> None:
        heappush(self._coming, (time_s, next(self._numbers), events))

    def _obey(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Build(models):
                    self._at(self.now_s + BUILD_S, *(BuildReady(model, 100) for model in models))
                case Dispatch(board, request_id, _, priority):
                    self._queues[board].append((-priority, next(self._numbers), request_id))
                case Withdraw(board, request_id):
                    kept = [item for item in self._queues[board] if item[2] != request_id]
                    if len(kept) < len(self._queues[board]):
                        self._queues[board] = kept
                        self._at(self.now_s, Withdrawn(board, request_id))
                case Deliver(campaign_id):
                    pause_s = self.plans[campaign_id].pause_s
                    self._at(self.now_s + pause_s, self._request(campaign_id))

    def _measure(self, board: str) -> None:
        if board in self._busy or not self._queues[board]:
            return
        item = min(self._queues[board])
        self._queues[board].remove(item)
        name = item[2].partition("-")[0]
        took_s = self.plans[name].took_s
        self.used_s[name] += took_s
        self._busy.add(board)
        done = Measurement(item[2], "", self.plans[name].platform, "kernel", Outcome.OK)
        self._at(self.now_s + took_s, ResultReceived(board, done, 1e3 * took_s))


def boards(number: int, *platforms: str) -> dict[str, tuple[str, ...]]:
    return {f"b{index}": platforms or ("p",) for index in range(number)}


def assert_even(used: Mapping[str, float], number: int, seconds: float) -> None:
    """All campaigns got board time that differs by less than a tenth; no board was idle."""
    assert max(used.values()) - min(used.values()) < 0.1 * max(used.values()), used
    assert sum(used.values()) > 0.95 * number * seconds, "boards were idle"


@pytest.mark.parametrize(("number", "seconds"), [(1, 200.0), (4, 80.0), (16, 30.0)])
@pytest.mark.parametrize(
    "campaigns",
    [
        {"a": (1, 0.2), "b": (1, 1.0)},
        {"a": (1, 0.5), "b": (10, 0.5)},
        {"a": (10, 0.2), "b": (1, 1.0)},
        {"a": (4, 2.0), "b": (2, 0.25)},
        {"a": (1, 0.3), "b": (2, 0.6), "c": (4, 0.9)},
    ],
)
def test_windows_and_durations_do_not_matter(
    campaigns: dict[str, tuple[int, float]], number: int, seconds: float
) -> None:
    window = max(MIN_AHEAD, AHEAD_A_BOARD * number)
    plans = {name: Plan(times * window, took_s) for name, (times, took_s) in campaigns.items()}
    assert_even(Simulation(plans, boards(number)).run(seconds), number, seconds)


def test_a_campaign_that_begins_later_is_not_paid_back_for_the_time_before() -> None:
    plans = {"a": Plan(64, 0.5), "b": Plan(32, 0.3, begins_s=100.0)}
    simulation = Simulation(plans, boards(4))
    assert simulation.run(100.0)["b"] == 0.0
    assert_even(simulation.run(200.0), 4, 100.0)


def test_one_that_asks_for_little_leaves_the_rest_to_others() -> None:
    plans = {"a": Plan(64, 0.5), "b": Plan(4, 0.5, pause_s=20.0)}
    used = Simulation(plans, boards(4)).run(100.0)
    assert used["b"] < used["a"] / 10
    assert sum(used.values()) > 0.95 * 4 * 100.0


def test_one_that_had_nothing_to_run_is_paid_back_no_more_than_its_credit() -> None:
    shares, busy, idle = BoardTimeShares(), Account("busy", "p"), Account("idle", "p")
    shares.correct(idle, shares.charge(idle, ("p",), 2), 100.0)
    for _ in range(1000):
        shares.correct(busy, shares.charge(busy, ("p",), 2), 100.0)
        shares.learn(busy, 100.0)
    level_ms = 99_900.0  # what the last request of the busy one was charged on top of
    assert shares.used_ms(busy) == pytest.approx(level_ms + 100.0)
    shares.charge(idle, ("p",), 2)
    assert shares.used_ms(idle) - shares.cost_ms(idle) == pytest.approx(level_ms - 2 * CREDIT_MS)


def test_boards_with_several_platforms_are_shared_across_them() -> None:
    plans = {"a": Plan(64, 0.2, "p"), "b": Plan(64, 0.8, "q")}
    simulation = Simulation(plans, boards(4, "p", "q"))
    assert_even(simulation.run(150.0), 4, 150.0)


def test_pools_without_a_common_board_do_not_know_each_other() -> None:
    plans = {"a": Plan(64, 0.5, "p"), "b": Plan(64, 0.5, "q"), "c": Plan(64, 0.5, "p", 200.0)}
    pools = {"b0": ("p",), "b1": ("p",), "b2": ("p",), "b3": ("q",)}
    simulation = Simulation(plans, pools)
    simulation.run(200.0)
    used = simulation.run(400.0)
    assert used["b"] > 0.95 * 200.0
    assert abs(used["a"] - used["c"]) < 0.1 * used["a"], used


def test_queries_come_before_calibration_and_that_before_campaigns() -> None:
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("b", ("p",)))
    order = [
        ("campaign", CAMPAIGN_PRIORITY),
        ("calibration", CALIBRATION_PRIORITY),
        ("query", QUERY_PRIORITY),
    ]
    models = {name: ModelSpec(name, "onnx", "fp32") for name, _ in order}
    queued = [RequestsQueued(n, (Work(n, "p", models[n]),), priority) for n, priority in order]
    scheduler.handle(0, *queued)
    placed = scheduler.handle(1, *(BuildReady(model, 10) for model in models.values()))
    asked = [i.request_id for i in placed if isinstance(i, Dispatch)]
    assert asked == ["query", "calibration", "campaign"]


def test_what_a_request_really_took_is_charged() -> None:
    shares, account = BoardTimeShares(), Account("c", "p")
    charged_ms = shares.charge(account, ("p",), 1)
    shares.correct(account, charged_ms, 250.0)
    shares.learn(account, 250.0)
    assert shares.used_ms(account) == pytest.approx(250.0)
    assert shares.cost_ms(account) == 250.0
    assert shares.charge(account, ("p",), 1) == 250.0
    shares.correct(account, 250.0, 0.0)
    assert shares.used_ms(account) == pytest.approx(250.0), "it was given back without a result"


def test_a_campaign_that_ended_is_forgotten() -> None:
    shares, account = BoardTimeShares(), Account("c", "p")
    charged_ms = shares.charge(account, ("p",), 1)
    shares.forget("c")
    shares.correct(account, charged_ms, 99.0)
    shares.learn(account, 99.0)
    assert shares.used_ms(account) == 0.0
    assert not shares._used_ms
    assert not shares._cost_ms
    scheduler = Scheduler()
    scheduler.handle(0, BoardJoined("b", ("p",)), CampaignCancelled("c"))
