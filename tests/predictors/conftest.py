"""A predictor of a synthetic board, fitted once."""

from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import KernelSample, NetworkSample
from latfarm_predictors.testing.synthetic import (
    RULES,
    USUAL_COUNTS,
    SyntheticBoard,
    random_kernels,
    random_network,
)

BOARD = SyntheticBoard()


@pytest.fixture(scope="session")
def kernel_samples() -> list[KernelSample]:
    rng = np.random.default_rng(0)
    kernels = random_kernels(rng, USUAL_COUNTS)
    return [BOARD.kernel_sample(kernel, rng, cold=True) for kernel in kernels]


@pytest.fixture(scope="session")
def network_samples() -> list[NetworkSample]:
    rng = np.random.default_rng(1)
    return [BOARD.network_sample(random_network(rng, f"cal{i}"), rng) for i in range(20)]


@pytest.fixture(scope="session")
def predictor(
    kernel_samples: list[KernelSample], network_samples: list[NetworkSample]
) -> PlatformPredictor:
    return fit_predictor(
        PlatformSamples(
            "synthetic-1t", RULES, kernel_samples, network_samples, call_overhead_ms=BOARD.call_ms
        )
    )
