"""What a call costs before any op: the latency of a model with a single tiny op.

Fusion detection measures it with purpose "fusion". Surveys that run without fusion detection ask
the very same requests, so that the answer comes from the store if it is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.plans import Asker

PURPOSE = "fusion"
"""The purpose of these requests in the store: that of fusion detection."""
SETTINGS = Settings(
    sessions=1, warmup_runs=3, warmup_ms=5.0, min_runs=10, max_runs=100, max_ms=40.0, precision=0.01
)
"""How models of a few ops are measured: one short session, ended early when it is precise."""
REPEATS = 5
"""How often the empty model is measured."""


def empty_model() -> Graph:
    """One op on four numbers: its time is the cost of a call."""
    b = GraphBuilder("empty")
    return b.build([b.relu(b.input((1, 4, 1, 1)))])


def overhead_requests(asker: Asker) -> list[MeasurementRequest]:
    """The empty model, `REPEATS` times."""
    empty = empty_model()
    return [asker.request(empty, PURPOSE, SETTINGS, label="empty") for _ in range(REPEATS)]


def overhead_ms(answers: Iterable[Measurement]) -> float:
    """The median latency of the empty model; 0 where no measurement succeeded."""
    times = [m.latency_ms for m in answers if m.latency_ms is not None and m.ok]
    return median(times) if times else 0.0
