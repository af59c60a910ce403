"""What Prometheus may know of the controller: counted as it happens, read when it is scraped.

Counting costs microseconds an event and is always on; a port is opened by `latfarm serve
--metrics-port` alone. Names follow Prometheus' conventions: seconds and bytes, where the project's
own interfaces speak of milliseconds. Labels are bounded: what comes from outside, as platforms,
boards and error codes, has a series of its own up to a limit and is `other` beyond it.
"""

from __future__ import annotations

import platform as host
from collections import OrderedDict, deque
from importlib.metadata import version
from statistics import median
from typing import TYPE_CHECKING

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.metrics.accuracy import Accuracy
from latfarm_controller.metrics.births import Births
from latfarm_controller.metrics.labels import OTHER, Few
from latfarm_controller.metrics.state import FarmCollector

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

STAGES = ("queue", "build", "board", "store")
STAGE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
MOST_SENTINELS = 200
MOST_CAMPAIGNS = 20
"""The newest ones; an older one's series ends, as a campaign does."""
QUERY = "query"
SENTINELS = ("sentinel", "check")
"""Purposes: of a campaign's, and of those by which a board that was put aside proves itself."""
FIRST_SENTINELS = 5
LAST_SENTINELS = 3
"""Of a board's sentinels: the first ones are what the median of the last ones is compared with."""


class ControllerMetrics(FarmObserver):
    """The metrics of one controller, in a registry of their own.

    One event loop counts; any thread may read.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._platform, self._board, self._code = Few(), Few(), Few()
        self._campaigns: OrderedDict[str, set[tuple[str, str]]] = OrderedDict()
        info = self._gauge("build_info", "Always 1; the labels tell versions.", "version", "python")
        info.labels(version("latfarm-controller"), host.python_version()).set(1)
        self._measurements = self._counter(
            "measurements",
            "Answers of boards by platform, outcome and error code.",
            *("platform", "outcome", "error_code"),
        )
        self._campaign = self._counter(
            "campaign_measurements",
            "Answers told to campaigns; all questions to boards are the campaign `query`.",
            *("campaign", "platform", "outcome"),
        )
        self._busy = self._counter(
            "board_busy_seconds", "Seconds in which a measurement had the board.", "board"
        )
        self._stages = Histogram(
            "latfarm_controller_stage_seconds",
            "How long a request waited for a board (queue), models were built (build), a board "
            "took for an answer (board), and answers took to be written (store).",
            ["stage"],
            buckets=STAGE_BUCKETS_S,
            registry=self.registry,
        )
        for stage in STAGES:
            self._stages.labels(stage)
        self._models = self._counter("models_built", "Models built, or not.", "outcome")
        self._stored = Counter(
            "latfarm_controller_measurements_stored",
            "Answers written to the store.",
            registry=self.registry,
        )
        self._retries = self._counter(
            "retries", "Requests that come again, as their failure was not their own.", "platform"
        )
        self._quarantines = self._counter("quarantines", "Times a board was put aside.", "board")
        self._predictions = self._counter(
            "predictions", "Predictions that were asked for.", "platform", "outcome"
        )
        self._shift = self._gauge(
            "sentinel_shift_ratio",
            "How much slower a board's sentinel is than at first, as a share; below 0: faster.",
            *("platform", "board"),
        )
        self._sentinels: dict[tuple[str, ...], tuple[list[float], deque[float]]] = {}
        self.farm = FarmCollector()
        self.registry.register(self.farm)
        self.accuracy = Accuracy(self.registry, self._platform)

    def _counter(self, name: str, text: str, *labels: str) -> Births:
        return Births(self.registry, f"latfarm_controller_{name}", text, labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"latfarm_controller_{name}", text, labels, registry=self.registry)

    def text(self) -> str:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry).decode()

    # What the farm tells

    def built(self, models: int, failed: int, took_s: float) -> None:
        """A task built so many models."""
        self._stages.labels("build").observe(took_s)
        self._models.inc("ok", by=models - failed)
        self._models.inc("failed", by=failed)

    def dispatched(self, platform: str, waited_s: float) -> None:
        """A request went to a board."""
        del platform
        self._stages.labels("queue").observe(waited_s)

    def measured(self, board: str, measurement: Measurement, busy_s: float) -> None:
        """A board answered."""
        name = self._platform(measurement.platform)
        board = self._board(board)
        code = self._code(measurement.error_code)
        self._measurements.inc(name, measurement.outcome.value, code)
        self._busy.inc(board, by=max(0.0, busy_s))
        self._stages.labels("board").observe(busy_s)
        self.accuracy.expect(measurement.platform)
        if measurement.purpose in SENTINELS and measurement.ok and measurement.latency_ms:
            self._compare(name, board, measurement.graph_hash, measurement.latency_ms)

    def retried(self, platform: str) -> None:
        """A request comes again."""
        self._retries.inc(self._platform(platform))

    def quarantined(self, board: str) -> None:
        """A board was put aside."""
        self._quarantines.inc(self._board(board))

    def delivered(self, campaign_id: str, measurement: Measurement) -> None:
        """A campaign got an answer."""
        if campaign_id.startswith(f"{QUERY}-"):
            campaign_id = QUERY
        platform, outcome = self._platform(measurement.platform), measurement.outcome.value
        self._campaign.inc(campaign_id, platform, outcome)
        self._campaigns.setdefault(campaign_id, set()).add((platform, outcome))
        self._campaigns.move_to_end(campaign_id)
        if len(self._campaigns) > MOST_CAMPAIGNS:
            oldest, series = self._campaigns.popitem(last=False)
            for labels in series:
                self._campaign.remove(oldest, *labels)

    def stored(self, measurements: int, took_s: float) -> None:
        """Answers were written."""
        self._stages.labels("store").observe(took_s)
        self._stored.inc(measurements)

    def network_measured(self, graph: Graph, measurement: Measurement) -> None:
        """A network was measured: it is compared with what was predicted, later."""
        self.accuracy.note(graph, measurement)

    def trained(self, predictor: PlatformPredictor) -> None:
        """A campaign ended with a bundle."""
        self.accuracy.trained(predictor)

    def predicted(self, platform: str, *, ok: bool) -> None:
        """A prediction was asked for."""
        # Of an unknown platform anybody may ask: it gets no series of its own.
        name = self._platform(platform) if ok else OTHER
        self._predictions.inc(name, "ok" if ok else "failed")

    def _compare(self, platform: str, board: str, graph_hash: str, latency_ms: float) -> None:
        key = (platform, board, graph_hash)
        if key not in self._sentinels and len(self._sentinels) >= MOST_SENTINELS:
            return
        first, last = self._sentinels.setdefault(key, ([], deque(maxlen=LAST_SENTINELS)))
        last.append(latency_ms)
        if len(first) < FIRST_SENTINELS:
            first.append(latency_ms)
        self._shift.labels(platform, board).set(median(last) / median(first) - 1.0)
