"""The controller's metrics for Prometheus.

Events are counted when they happen, which costs microseconds, and states are read when Prometheus
scrapes. Counting is always on; only `latfarm serve --metrics-port` opens a port. Names follow the
conventions of Prometheus, so they use seconds where the project's own interfaces use milliseconds.
Labels are bounded: platforms, boards and error codes come from outside, so after a limit all new
values become `other`.
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
from latfarm_controller.metrics.campaigns import (
    MOST_CAMPAIGNS,
    CampaignCollector,
    CampaignNames,
)
from latfarm_controller.metrics.counters import CounterFromZero
from latfarm_controller.metrics.labels import OTHER, BoundedLabel
from latfarm_controller.metrics.state import FarmCollector

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

# Stages of a request, from the campaign to the store.
STAGES = ("queue", "build", "board", "store")
STAGE_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
MOST_SENTINELS = 200
"""Most pairs of a board and a sentinel that are followed."""
QUERY = "query"
"""Label for the campaigns that answer single questions."""
HEALTH = "health"
"""Label for the health checks of boards."""
SENTINELS = ("sentinel", "check")
"""Purposes of sentinels: those within a campaign, and those before a board may work again."""
FIRST_SENTINELS = 5
"""Number of a board's first sentinels whose median is its normal latency."""
LAST_SENTINELS = 3
"""Number of its last sentinels whose median is compared with that."""


class ControllerMetrics(FarmObserver):
    """The metrics of one controller, in a registry of their own.

    Only one event loop may count; any thread may read.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._platform, self._board, self._code = BoundedLabel(), BoundedLabel(), BoundedLabel()
        self._campaigns: OrderedDict[str, set[tuple[str, str, str]]] = OrderedDict()
        self._names = CampaignNames()
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
            *("campaign", "name", "platform", "outcome"),
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
        self._quarantines = self._counter("quarantines", "Times a board was quarantined.", "board")
        self._predictions = self._counter(
            "predictions", "Predictions that were asked for.", "platform", "outcome"
        )
        self._shift = self._gauge(
            "sentinel_shift_ratio",
            "How much slower a board's sentinel is than at first, as a share; below 0: faster.",
            *("platform", "board"),
        )
        self._sentinels: dict[tuple[str, ...], tuple[list[float], deque[float]]] = {}
        self.farm, self.campaigns = FarmCollector(), CampaignCollector()
        self.registry.register(self.farm)
        self.registry.register(self.campaigns)
        self.accuracy = Accuracy(self.registry, self._platform)

    def _counter(self, name: str, text: str, *labels: str) -> CounterFromZero:
        return CounterFromZero(self.registry, f"latfarm_controller_{name}", text, labels)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"latfarm_controller_{name}", text, labels, registry=self.registry)

    def text(self) -> str:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry).decode()

    # The methods below are called by the farm; see `FarmObserver`.

    def built(self, models: int, failed: int, took_s: float) -> None:
        """A task built models; `failed` of them could not be built."""
        self._stages.labels("build").observe(took_s)
        self._models.inc("ok", by=models - failed)
        self._models.inc("failed", by=failed)

    def dispatched(self, platform: str, waited_s: float) -> None:
        """A request was given to a board after `waited_s` seconds."""
        del platform
        self._stages.labels("queue").observe(waited_s)

    def measured(self, board: str, measurement: Measurement, busy_s: float) -> None:
        """A board answered a request after `busy_s` seconds."""
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
        """A request will be measured again, because its failure was not its own fault."""
        self._retries.inc(self._platform(platform))

    def quarantined(self, board: str) -> None:
        """A board was quarantined."""
        self._quarantines.inc(self._board(board))

    def campaign_started(self, campaign_id: str, name: str) -> None:
        """A campaign of that name starts to measure, or goes on."""
        if not campaign_id.startswith((f"{QUERY}-", f"{HEALTH}-")):
            self._names.note(campaign_id, name)

    def delivered(self, campaign_id: str, measurement: Measurement) -> None:
        """A campaign was told a measurement."""
        for many in (QUERY, HEALTH):  # each question and each check is a campaign of its own
            if campaign_id.startswith(f"{many}-"):
                campaign_id = many
        platform, outcome = self._platform(measurement.platform), measurement.outcome.value
        labels = (self._names.of(campaign_id), platform, outcome)
        self._campaign.inc(campaign_id, *labels)
        self._campaigns.setdefault(campaign_id, set()).add(labels)
        self._campaigns.move_to_end(campaign_id)
        if len(self._campaigns) > MOST_CAMPAIGNS:
            oldest, series = self._campaigns.popitem(last=False)
            for gone in series:
                self._campaign.remove(oldest, *gone)

    def stored(self, measurements: int, took_s: float) -> None:
        """Measurements were written to the store, which took `took_s` seconds."""
        self._stages.labels("store").observe(took_s)
        self._stored.inc(measurements)

    def network_measured(self, graph: Graph, measurement: Measurement) -> None:
        """A network was measured; it is compared with its prediction later."""
        self.accuracy.note(graph, measurement)

    def trained(self, predictor: PlatformPredictor) -> None:
        """A predictor was trained from a campaign."""
        self.accuracy.trained(predictor)

    def predicted(self, platform: str, *, ok: bool) -> None:
        """A prediction was asked for, and made if `ok`."""
        # Anybody may ask about any platform: an unknown one must not get a series of its own.
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
