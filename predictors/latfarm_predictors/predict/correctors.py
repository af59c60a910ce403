"""What may predict networks in the place of the corrected sum of kernels, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.kernel_graph import KernelSum
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.nnlp_corrector import NNLP_KIND, NNLPCorrector
from latfarm_predictors.predict.sum_corrector import SumCorrector


class NetworkCorrector(Protocol):
    """Predicts networks of one platform, on which it won with a family left out. Thread-safe."""

    @property
    def method(self) -> str:
        """Name of what predicts, for answers."""
        ...

    @property
    def calibration(self) -> ScorePool:
        """Scores of networks whose family was left out, which calibrate intervals."""
        ...

    def predict(self, networks: Sequence[KernelSum]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each network, each of shape (n,)."""
        ...

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        ...


def corrector_of(state: ModelState) -> NetworkCorrector:
    """The corrector whose state this is.

    Raises:
        ValueError: the state is damaged.
        KeyError: a value or an array is missing.
    """
    if state.kind == NNLP_KIND:
        return NNLPCorrector.from_state(state)
    return SumCorrector.from_state(state)
