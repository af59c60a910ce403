"""How right predictions are: each measured network is predicted too, when there is time for it.

A campaign's first networks are measured before there is a bundle to predict them with: once one is
trained from them, it tells how it does on each of them while that one is left out of its fit.

What is predicted comes from the newest bundle of the platform at that time, so that the figures
follow both a new bundle and a board that changes. Networks that the bundle was calibrated on count
as well when they are measured again: `purpose` tells a campaign's networks from people's questions,
and from those that a bundle's own fit left out.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from math import expm1
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from prometheus_client import CollectorRegistry, Counter, Histogram

from latfarm_controller.errors import ControllerError
from latfarm_controller.training import bundles

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

MOST_WAITING = 256
MOST_PREDICTORS = 2
COVERAGE = 0.9
"""What an interval promises, and what the covered share is to be compared with."""
ERROR_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
LEFT_OUT = "left_out"
PURPOSES = ("network", "query", LEFT_OUT)
SKIPPED = ("no_bundle", "failed", "too_many")

logger = logging.getLogger(__name__)


class Accuracy:
    """Compares networks with their predictions. `note` is quick; `settle` computes."""

    def __init__(self, registry: CollectorRegistry, label: Callable[[str], str]) -> None:
        prefix = "latfarm_controller_prediction"
        self._label = label
        self._waiting: deque[tuple[Graph, Measurement]] = deque()
        self._open: OrderedDict[Path, PlatformPredictor] = OrderedDict()
        self._expected: set[str] = set()
        self._errors = Histogram(
            f"{prefix}_error_ratio",
            "How far predictions were from networks' measured latencies, as a share of these.",
            ["platform", "purpose"],
            buckets=ERROR_BUCKETS,
            registry=registry,
        )
        self._covered = Counter(
            f"{prefix}_covered",
            f"Networks whose measured latency lay in the predicted interval of {COVERAGE:.0%}.",
            ["platform", "purpose"],
            registry=registry,
        )
        self._skipped = Counter(
            f"{prefix}_skipped",
            "Measured networks that were not compared: no bundle, no prediction, or too many.",
            ["reason"],
            registry=registry,
        )
        for reason in SKIPPED:
            self._skipped.labels(reason)

    @property
    def waiting(self) -> int:
        """How many networks are still to be compared."""
        return len(self._waiting)

    def expect(self, platform: str) -> None:
        """Begin a platform's series at 0: a rate shows only what rises while it is looked at."""
        name = self._label(platform)
        if name not in self._expected:
            self._expected.add(name)
            for purpose in PURPOSES:
                self._errors.labels(name, purpose)
                self._covered.labels(name, purpose)

    def trained(self, predictor: PlatformPredictor) -> None:
        """A new bundle: how it does on each network of its own, that one left out."""
        from latfarm_predictors.intervals import widened_quantile

        labels = self._label(predictor.platform), LEFT_OUT
        residuals: list[float] = predictor.correction.residuals.tolist()
        scores: list[float] = predictor.correction.scores.tolist()
        for place, (residual, score) in enumerate(zip(residuals, scores, strict=True)):
            # Residuals are logs of measured over predicted; scores, those over their sigma.
            self._errors.labels(*labels).observe(abs(expm1(-residual)))
            factor, _ = widened_quantile(scores[:place] + scores[place + 1 :], COVERAGE)
            self._covered.labels(*labels).inc(score <= factor)

    def note(self, graph: Graph, measurement: Measurement) -> None:
        """A network was measured; failures are not compared."""
        if not measurement.ok or not measurement.latency_ms:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._skipped.labels("too_many").inc()
            return
        self._waiting.append((graph, measurement))

    def settle(self, bundles_dir: Path) -> int:
        """Compare all that wait; how many were. For one thread at a time."""
        compared = 0
        newest = bundles.newest(bundles_dir)
        while self._waiting:
            graph, measurement = self._waiting.popleft()
            path = newest.get(measurement.platform)
            if path is None:
                self._skipped.labels("no_bundle").inc()
                continue
            try:
                self._compare(self._predictor(path), graph, measurement)
                compared += 1
            except (PredictorsError, ControllerError, OSError, ValueError) as error:
                logger.info("%s was not compared: %s", measurement.request_id, error)
                self._skipped.labels("failed").inc()
        return compared

    def _compare(
        self, predictor: PlatformPredictor, graph: Graph, measurement: Measurement
    ) -> None:
        answer = predictor.predict(graph, COVERAGE)
        measured_ms = measurement.latency_ms or 0.0
        labels = self._label(measurement.platform), measurement.purpose
        self._errors.labels(*labels).observe(abs(answer.latency_ms - measured_ms) / measured_ms)
        low_ms, high_ms = answer.interval_ms
        self._covered.labels(*labels).inc(low_ms <= measured_ms <= high_ms)

    def _predictor(self, path: Path) -> PlatformPredictor:
        if path not in self._open:
            from latfarm_predictors.bundle import load_bundle

            self._open[path] = load_bundle(path)
            if len(self._open) > MOST_PREDICTORS:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]
