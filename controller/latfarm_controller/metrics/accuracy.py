"""Metrics of accuracy: each measured network is also predicted, and the two are compared.

Predictions come from the platform's bundle in use at that time, so that the metrics follow
both a new bundle and a board that changes. A campaign's first networks are measured before there is
a bundle. Once a bundle is trained from them, it is judged on each of them as if that network had
been left out of the fit.

Networks that a bundle was calibrated on count as well when they are measured again. The label
`purpose` separates networks of campaigns, networks that people asked about, and networks that were
left out of a fit.
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
"""Most networks that wait for a comparison; further ones are skipped."""
MOST_PREDICTORS = 2
"""Most predictors that are kept in memory; each takes some tens of megabytes."""
COVERAGE = 0.9
"""Coverage of the intervals; the share of covered networks should be close to it."""
ERROR_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Upper bounds of the histogram of relative errors."""
LEFT_OUT = "left_out"
"""Purpose of networks that a bundle's own fit left out."""
PURPOSES = ("network", "query", LEFT_OUT)
SKIPPED = ("no_bundle", "failed", "too_many")

logger = logging.getLogger(__name__)


class Accuracy:
    """Compares measured networks with their predictions.

    `note` only remembers a network, so it is quick; `settle` computes the predictions.

    Args:
        registry: the registry of the metrics.
        label: limits the number of different platforms.
    """

    def __init__(self, registry: CollectorRegistry, label: Callable[[str], str]) -> None:
        prefix = "latfarm_controller_prediction"
        self._label = label
        self._waiting: deque[tuple[Graph, Measurement]] = deque()
        self._open: OrderedDict[Path, PlatformPredictor] = OrderedDict()
        self._expected: set[str] = set()
        self._errors = Histogram(
            f"{prefix}_error_ratio",
            "How far predictions were from networks' latencies, corrected for the slowdown of the "
            "core as the predictor's own were, as a share of these.",
            ["platform", "purpose"],
            buckets=ERROR_BUCKETS,
            registry=registry,
        )
        self._covered = Counter(
            f"{prefix}_covered",
            f"Networks whose corrected latency lay in the predicted interval of {COVERAGE:.0%}.",
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
        """Number of networks that wait for a comparison."""
        return len(self._waiting)

    def expect(self, platform: str) -> None:
        """Start the series of a platform at 0, because a rate only shows increases after that."""
        name = self._label(platform)
        if name not in self._expected:
            self._expected.add(name)
            for purpose in PURPOSES:
                self._errors.labels(name, purpose)
                self._covered.labels(name, purpose)

    def trained(self, predictor: PlatformPredictor) -> None:
        """Count how a new bundle does on each of its own networks, as if that one were left out."""
        labels = self._label(predictor.platform), LEFT_OUT
        residuals: list[float] = predictor.correction.residuals.tolist()
        scores: list[float] = predictor.correction.scores.tolist()
        for place, (residual, score) in enumerate(zip(residuals, scores, strict=True)):
            # A residual is the logarithm of measured over predicted latency; a score is a residual
            # divided by its standard deviation.
            self._errors.labels(*labels).observe(abs(expm1(-residual)))
            factor, _ = predictor.correction.calibration.without(place).factor(COVERAGE)
            self._covered.labels(*labels).inc(score <= factor)

    def note(self, graph: Graph, measurement: Measurement) -> None:
        """Remember that a network was measured; failures are not compared."""
        if not measurement.ok or not measurement.latency_ms:
            return
        if len(self._waiting) >= MOST_WAITING:
            self._skipped.labels("too_many").inc()
            return
        self._waiting.append((graph, measurement))

    def settle(self, bundles_dir: Path) -> int:
        """Compare all networks that wait. Only one thread at a time may call this.

        Args:
            bundles_dir: the folder of all bundles.

        Returns:
            The number of networks that were compared.
        """
        compared = 0
        in_use = bundles.promoted(bundles_dir)
        while self._waiting:
            graph, measurement = self._waiting.popleft()
            path = in_use.get(measurement.platform)
            if path is None:
                self._skipped.labels("no_bundle").inc()
                continue
            try:
                self._compare(self._predictor(path), graph, measurement)
                compared += 1
            except (PredictorsError, ControllerError, OSError, ValueError) as error:
                logger.info(
                    "request %s was not compared with a prediction: %s",
                    measurement.request_id,
                    error,
                )
                self._skipped.labels("failed").inc()
        return compared

    def _compare(
        self, predictor: PlatformPredictor, graph: Graph, measurement: Measurement
    ) -> None:
        found = predictor.slow_core.latency(measurement)
        assert found is not None  # `note` leaves out what has no latency
        corrected_ms = found.corrected_ms
        answer = predictor.predict(graph, COVERAGE)
        labels = self._label(measurement.platform), measurement.purpose
        self._errors.labels(*labels).observe(abs(answer.latency_ms / corrected_ms - 1.0))
        low_ms, high_ms = answer.interval_ms
        self._covered.labels(*labels).inc(low_ms <= corrected_ms <= high_ms)

    def _predictor(self, path: Path) -> PlatformPredictor:
        if path not in self._open:
            from latfarm_predictors.bundle import load_bundle

            self._open[path] = load_bundle(path)
            if len(self._open) > MOST_PREDICTORS:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]
