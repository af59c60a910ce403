"""Sentinels: a reference kernel that is measured again and again, to notice that a board drifts.

Where the sentinel shifts, the measurements around it become void and are asked for once more.
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
"""The purpose, in the store, of the sentinel's measurements."""
LEAST_SHIFT = 0.03
"""A shift below this share of the median makes nothing void, however steady the sentinel is."""
_SPREADS = 3.0
"""A shift above so many spreads makes measurements void."""
_NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_LEAST_COUNT = 4
"""Number of sentinels on a board from which its measurements are judged."""


def sentinel_kernel() -> Graph:
    """The sentinel: a 3x3 convolution with its activation, 7 million multiply-adds, 0.5 MB."""
    b = GraphBuilder("sentinel")
    return b.build([b.relu(b.conv(b.input((1, 32, 28, 28)), 32, 3))])


@dataclass(frozen=True, slots=True)
class BoardDrift:
    """How the sentinel behaved on one board.

    Attributes:
        board_id: the board.
        count: number of good measurements.
        median_ms: their median.
        spread: 1.4826 times their median absolute deviation, as a share of the median.
        drift: change from the first to the last third, as a share of the median.
    """

    board_id: str
    count: int
    median_ms: float
    spread: float
    drift: float

    @property
    def limit(self) -> float:
        """The shift above which a window is void, as a share of the median."""
        return max(LEAST_SHIFT, _SPREADS * self.spread)

    def to_json(self) -> dict[str, Any]:
        """The drift as plain JSON types, for the campaign's outcome."""
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
        # Sorting keeps the order of requests at equal times: a simulated board may have no clock.
        found.sort(key=lambda m: m.told_at_s)
    return dict(sorted(boards.items()))


def drift_of(sentinels: Sequence[Measurement]) -> list[BoardDrift]:
    """The spread and the drift of the sentinel on each board.

    Args:
        sentinels: all measurements of the sentinel, in the order in which they were asked.
    """
    found = []
    for board_id, measured in _by_board(sentinels).items():
        times = [m.latency_ms or 0.0 for m in measured]
        middle = median(times)
        spread = _NORMAL_MAD * median(abs(t - middle) for t in times) / middle
        third = max(1, len(times) // 3)
        drift = (median(times[-third:]) - median(times[:third])) / middle
        found.append(BoardDrift(board_id, len(times), middle, spread, drift))
    return found


def void_shifts(
    sentinels: Sequence[Measurement], measured: Sequence[Measurement]
) -> dict[str, float]:
    """The request ids of the measurements in void windows, each with the shift of its window.

    A window lies between two neighbouring sentinels of a board and is judged by their mean; the
    first and the last window have one neighbour only. Boards with fewer than four sentinels are not
    judged. The ids are in the order of `measured`.

    Args:
        sentinels: measurements of the sentinel, in the order in which they were asked.
        measured: the measurements to judge.
    """
    drifts = {d.board_id: d for d in drift_of(sentinels)}
    boards = _by_board(sentinels)
    times = {board: [m.told_at_s for m in marks] for board, marks in boards.items()}
    void = {}
    for measurement in measured:
        drift = drifts.get(measurement.board_id)
        if drift is None or drift.count < _LEAST_COUNT or not measurement.ok:
            continue
        place = bisect_right(times[measurement.board_id], measurement.told_at_s)
        marks = boards[measurement.board_id][max(0, place - 1) : place + 1]
        near = [m.latency_ms or 0.0 for m in marks]
        shift = abs(sum(near) / len(near) - drift.median_ms) / drift.median_ms
        if shift > drift.limit:
            void[measurement.request_id] = shift
    return void


def marks_among(count: int, every: int) -> int:
    """How many marks `interleave` puts among `count` items."""
    return -(-count // every) + 1 if count > 0 else 0


def interleave(items: Sequence[T], marks: Iterable[T], every: int) -> list[T]:
    """`items` with a mark before each group of `every` items, and one at the end."""
    source = iter(marks)
    mixed: list[T] = []
    for index, item in enumerate(items):
        if index % every == 0:
            mixed.append(next(source))
        mixed.append(item)
    if items:
        mixed.append(next(source))
    return mixed
