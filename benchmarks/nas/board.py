"""A home with the bundle of a synthetic board and with some measured candidates in its store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from latfarm_controller.config import ControllerConfig
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.zoo import calibration_families
from latfarm_controller.zoo.draws.prior import KernelPrior
from latfarm_controller.zoo.draws.variants import variant
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import PUBLISH, Measurement, Outcome
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard

PLATFORM = "synthetic-sim1.0-fp32-1t"
FAMILY = "nasbench201"
"""Family of the candidates: cells of NASBench-201 with other widths."""
MEASURED_EVERY = 10
"""Every tenth candidate is measured already."""
BATCH = 500
"""How many measurements are stored at a time."""


def candidates(first: int, count: int) -> Iterator[Graph]:
    """Candidates, made one after the other."""
    return (variant(FAMILY, seed) for seed in range(first, first + count))


def furnish(config: ControllerConfig, kernels: int, networks: int, count: int) -> None:
    """Fit the bundle of the board, and store the candidates that are measured already.

    Args:
        config: of the home.
        kernels: number of kernels that the predictor learns from.
        networks: number of networks that it learns from; none is of the candidates' family.
        count: number of candidates.
    """
    config.make_dirs()
    board, rng = SyntheticBoard(), np.random.default_rng(0)
    samples = [
        board.kernel_sample(kernel, rng, cold=True)
        for kernel in KernelPrior(seed=1).draw(kernels, RULES)
    ]
    families = [name for name in sorted(calibration_families()) if name != FAMILY]
    calibration = [
        board.network_sample(variant(families[index % len(families)], 9000 + index), rng)
        for index in range(0, 5 * networks, 5)
    ]
    fitted = fit_predictor(
        PlatformSamples(PLATFORM, RULES, samples, calibration, call_overhead_ms=board.call_ms)
    )
    folder = config.bundles_dir / PLATFORM
    folder.mkdir(parents=True)
    save_bundle(fitted, folder / "1.zip")
    _store(config.store_file, board, count)


def _store(path: Path, board: SyntheticBoard, count: int) -> None:
    """Store what was measured of the candidates."""
    known = range(0, count, MEASURED_EVERY)
    with DuckDBStore(path) as store:
        for first in range(0, len(known), BATCH):
            told = [
                (_measurement(variant(FAMILY, seed), board), variant(FAMILY, seed))
                for seed in known[first : first + BATCH]
            ]
            store.add_measurements(f"part{first}", told)


def _measurement(graph: Graph, board: SyntheticBoard) -> Measurement:
    """The measurement of a candidate, without noise."""
    name = hash_of(graph)
    latency_ms = board.network_true_ms(graph)
    return Measurement(
        name, name, PLATFORM, "query", Outcome.OK, latency_ms=latency_ms, settings=PUBLISH
    )
