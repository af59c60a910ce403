"""What a bundle predicts for a network as a whole, and the bundles that are open."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.each_alone import each_alone
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.training import bundles

if TYPE_CHECKING:
    from latfarm_predictors.predict.answer import Answer
    from latfarm_predictors.predict.predictor import PlatformPredictor

_OP = re.compile(r" \(\w*\): ")
"""What follows the name of a node in a text of `Answer.unsupported`: its op."""
DEFAULT_COVERAGE = 0.9
"""Coverage of predicted intervals where the request does not give one, as a share of cases."""


@dataclass(frozen=True, slots=True)
class PredictedLatency:
    """What the bundle in use of a platform predicts for a network.

    Attributes:
        latency_ms: in milliseconds, as on a core that nothing slows down.
        interval_ms: ends of the interval in milliseconds.
        coverage: share of cases in which the latency shall lie in the interval.
        calibrated: whether the interval rests on measured networks.
        unsupported: the nodes that the platform cannot run or no regressor knows, with the reason.
        unsupported_ms: predicted time of these nodes in milliseconds, a part of the latency.
        bundle: name of the bundle.
        method: what predicted: `sum`, or the name of the corrector that the bundle ships.
    """

    latency_ms: float
    interval_ms: tuple[float, float]
    coverage: float
    calibrated: bool
    unsupported: tuple[str, ...] = ()
    unsupported_ms: float = 0.0
    bundle: str = ""
    method: str = "sum"

    @staticmethod
    def of(answer: Answer) -> PredictedLatency:
        """What an answer tells of its network as a whole."""
        return PredictedLatency(
            answer.latency_ms,
            answer.interval_ms,
            answer.coverage,
            answer.calibrated,
            answer.unsupported,
            _unsupported_ms(answer),
            answer.bundle,
            answer.method,
        )


def _unsupported_ms(answer: Answer) -> float:
    """Predicted time of the kernels that begin with an unsupported node, in milliseconds."""
    if not answer.unsupported:
        return 0.0
    texts = iter(answer.unsupported)  # in the order of the kernels
    text, total_ms = next(texts), 0.0
    for kernel in answer.kernels:
        start = kernel.nodes[0] if kernel.nodes else kernel.type
        if text.startswith(start) and _OP.match(text, len(start)):
            total_ms += kernel.latency_ms
            text = next(texts, "")
    return total_ms


class Predictors:
    """Predicts from the bundles in use; each is loaded once and kept. Not thread-safe.

    Args:
        bundles_dir: the folder of all bundles.
    """

    def __init__(self, bundles_dir: Path) -> None:
        self._bundles_dir = bundles_dir
        self._opened: dict[str, PlatformPredictor | Exception] = {}

    def predict(
        self, platform: str, graphs: Sequence[Graph], coverage: float
    ) -> list[PredictedLatency | Exception]:
        """Predict networks on a platform, all in one evaluation; one that fails, fails alone.

        Without a usable bundle each network has that error.
        """
        if platform not in self._opened:
            try:
                self._opened[platform] = bundles.open_bundle(self._bundles_dir, platform)
            except (ControllerError, PredictorsError) as error:
                self._opened[platform] = error
        return predicted_with(self._opened[platform], graphs, coverage)


def predicted_with(
    predictor: PlatformPredictor | Exception, graphs: Sequence[Graph], coverage: float
) -> list[PredictedLatency | Exception]:
    """Predict networks with a predictor; one that fails, fails alone.

    Args:
        predictor: what predicts, or why nothing does, which is then the end of each network.
        graphs: the networks.
        coverage: share of cases in which a latency shall lie in its interval.
    """
    if isinstance(predictor, Exception):
        return [predictor] * len(graphs)
    found = each_alone(
        lambda some: predictor.predict_many(some, coverage), graphs, (PredictorsError, ValueError)
    )
    return [_ended(each) for each in found]


def _ended(found: Answer | Exception) -> PredictedLatency | Exception:
    """How a network ends that was answered, or that failed alone."""
    if not isinstance(found, Exception):
        return PredictedLatency.of(found)
    return found if isinstance(found, PredictorsError) else UsageError(str(found))
