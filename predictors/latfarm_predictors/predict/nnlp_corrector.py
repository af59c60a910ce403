"""NNLP as a part of a bundle: it answers for networks in the place of the corrected sum.

It is a graph network that reads the whole network (`NNLP_METHOD`), or one that reads the kernels
with their predicted times and corrects these within bounds (`NNLP_CORRECTED`). An answer needs
numpy alone. Its interval rests on errors of networks whose family was left out
(`predict.nnlp_trial`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latfarm_predictors.errors import CheckpointError
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.checkpoint import arrays_of, manifest_of, model_of
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph, encode
from latfarm_predictors.gnn.kernel_graph import KernelSum, encode_kernels
from latfarm_predictors.gnn.nnlp import NNLP
from latfarm_predictors.learned.score_pool import ScorePool
from latfarm_predictors.models.base import ModelState

NNLP_METHOD = "nnlp"
"""Method of a latency that a graph network on the nodes of the network predicts."""
NNLP_CORRECTED = "nnlp-corrected"
"""Method of a sum of kernels whose times a graph network corrects."""
NNLP_KIND = "nnlp-corrector"
"""Kind of its state."""
_SCORES = "left_out_scores"
"""Name of the array of scores in its state."""


def method_of(config: NNLPConfig) -> str:
    """The method of answers of a graph network with these options."""
    return NNLP_CORRECTED if config.output == "correction" else NNLP_METHOD


def encode_for(config: NNLPConfig, network: KernelSum) -> EncodedGraph:
    """A network as a graph network with these options reads it.

    Raises:
        GraphError: the network has no node.
        ValueError: a kernel has no positive time.
    """
    return encode_kernels(network) if config.output == "correction" else encode(network.graph)


class NNLPCorrector:
    """A trained NNLP that predicts networks of one platform. Thread-safe; it needs numpy alone.

    Args:
        model: the trained model, with a head for the platform.
        platform: the platform.
        scores: |error of the logarithm| of networks whose family was left out, shape (n,).

    Raises:
        PlatformUnknownError: the model has no head for the platform.
    """

    def __init__(self, model: NNLP, platform: str, scores: Array) -> None:
        model.head(platform)
        self._model, self._platform = model, platform
        self._scores = np.sort(np.asarray(scores, dtype=np.float64))

    @property
    def method(self) -> str:
        """Name of what predicts, for answers."""
        return method_of(self._model.config)

    @property
    def calibration(self) -> ScorePool:
        """Scores of networks whose family was left out, which calibrate intervals."""
        return ScorePool(self._scores)

    def predict(self, networks: Sequence[KernelSum]) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of each network, each of shape (n,); log-sigma is 1."""
        encoded = [encode_for(self._model.config, each) for each in networks]
        latency = self._model.predict(encoded, self._platform)
        return latency, np.ones(len(networks))

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(
            NNLP_KIND,
            values={"platform": self._platform, "manifest": manifest_of(self._model)},
            arrays={**arrays_of(self._model), _SCORES: self._scores},
        )

    @staticmethod
    def from_state(state: ModelState) -> NNLPCorrector:
        """The corrector whose state this is; it predicts the same bits.

        Raises:
            ValueError: the parameters are not those of the options, or a score is not allowed.
            KeyError: a value or an array is missing.
        """
        arrays = dict(state.arrays)
        scores = np.asarray(arrays.pop(_SCORES), dtype=np.float64)
        if scores.ndim != 1 or (scores < 0).any():
            raise ValueError(f"scores of shape {scores.shape} are no list of sizes of errors")
        try:
            model = model_of("the bundle", state.values["manifest"], arrays)
            return NNLPCorrector(model, str(state.values["platform"]), scores)
        except CheckpointError as error:
            raise ValueError(str(error)) from error
