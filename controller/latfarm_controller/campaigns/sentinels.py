"""Sentinels: a reference kernel measured through a campaign, to see a board drift.

A shift of the sentinel voids the measurements around it, which are asked once more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement

T = TypeVar("T")

PURPOSE = "sentinel"
LEAST_SHIFT = 0.03
"""A shift below this share voids nothing, however steady the sentinel is."""


def sentinel_kernel() -> Graph:
    """A 3x3 convolution and its activation: 7 million multiply-adds, some 0.5 MB of tensors."""
    b = GraphBuilder("sentinel")
    return b.build([b.relu(b.conv(b.input((1, 32, 28, 28)), 32, 3))])


@dataclass(frozen=True, slots=True)
class BoardDrift:
    """How one board's sentinel behaved: shares of its median."""

    board_id: str
    count: int
    median_ms: float
    spread: float
    drift: float

    @property
    def limit(self) -> float:
        """The shift above which a window is void."""
        return max(LEAST_SHIFT, 3.0 * self.spread)

    def to_json(self) -> dict[str, Any]:
        """For the campaign's outcome."""
        return {
            "board_id": self.board_id,
            "count": self.count,
            "median_ms": self.median_ms,
            "spread": self.spread,
            "drift": self.drift,
            "limit": self.limit,
        }


def _by_board(measurements: Iterable[Measurement]) -> Mapping[str, list[Measurement]]:
    boards: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        if measurement.ok:
            boards.setdefault(measurement.board_id, []).append(measurement)
    for found in boards.values():
        # By time, then by what was asked first: a simulated board may not keep time.
        found.sort(key=lambda m: m.measured_at_s)
    return dict(sorted(boards.items()))


def drift_of(sentinels: Sequence[Measurement]) -> list[BoardDrift]:
    """Spread and drift of the sentinel on each board.

    Spread is 1.4826 times the median absolute deviation; drift compares the medians of the last and
    the first third.
    """
    found = []
    for board_id, measured in _by_board(sentinels).items():
        times = [m.latency_ms or 0.0 for m in measured]
        middle = median(times)
        spread = 1.4826 * median(abs(t - middle) for t in times) / middle
        third = max(1, len(times) // 3)
        drift = (median(times[-third:]) - median(times[:third])) / middle
        found.append(BoardDrift(board_id, len(times), middle, spread, drift))
    return found


def void_shifts(
    sentinels: Sequence[Measurement], measured: Sequence[Measurement]
) -> dict[str, float]:
    """Request ids of the measurements whose window is void, in the order given, with its shift.

    A window lies between two neighbouring sentinels of a board, and is judged by their mean; the
    ends have one neighbour. Fewer than four sentinels on a board judge nothing.

    Args:
        sentinels: in the order in which they were asked.
        measured: the measurements to judge.
    """
    drifts = {d.board_id: d for d in drift_of(sentinels)}
    boards = _by_board(sentinels)
    times = {board: [m.measured_at_s for m in marks] for board, marks in boards.items()}
    void = {}
    for measurement in measured:
        drift = drifts.get(measurement.board_id)
        if drift is None or drift.count < 4 or not measurement.ok:
            continue
        place = bisect_right(times[measurement.board_id], measurement.measured_at_s)
        marks = boards[measurement.board_id][max(0, place - 1) : place + 1]
        near = [m.latency_ms or 0.0 for m in marks]
        shift = abs(sum(near) / len(near) - drift.median_ms) / drift.median_ms
        if shift > drift.limit:
            void[measurement.request_id] = shift
    return void


def interleave(items: Sequence[T], marks: Iterable[T], every: int) -> list[T]:
    """`items` with a mark before each `every` of them and one at the end."""
    source = iter(marks)
    mixed: list[T] = []
    for index, item in enumerate(items):
        if index % every == 0:
            mixed.append(next(source))
        mixed.append(item)
    if items:
        mixed.append(next(source))
    return mixed
