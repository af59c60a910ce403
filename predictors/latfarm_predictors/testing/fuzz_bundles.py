"""Read changed bundles in a child process, which runs this module as a program.

The child is called as `python -m latfarm_predictors.testing.fuzz_bundles BUNDLE FIRST COUNT`. A
changed bundle must be refused in one line, or predict finite numbers.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.errors import NoBaselineError, PredictorsError
from latfarm_predictors.features.table import as_table
from latfarm_predictors.files.bundle_files import read_files
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.bundle_mutations import mutated
from latfarm_predictors.testing.fuzzing import FuzzSummary, report_cases, run_cases
from latfarm_predictors.testing.synthetic import (
    RULES,
    USUAL_COUNTS,
    SyntheticBoard,
    random_kernel,
    random_kernels,
    random_network,
)
from latfarm_predictors.trust.network_trust import weighted_coverage

_FITTED_LATER = ("nn-meter", "annette-statistical", "annette-mixed")
"""Baselines that are fitted when they are asked for, which takes longer than all other checks."""


def small_predictor() -> PlatformPredictor:
    """A predictor with models of every kind that a bundle may hold, fitted in some seconds."""
    rng, board = np.random.default_rng(0), SyntheticBoard()
    kernels = [
        board.kernel_sample(kernel, rng, cold=True) for kernel in random_kernels(rng, USUAL_COUNTS)
    ]
    networks = [board.network_sample(random_network(rng, f"cal{i}"), rng) for i in range(20)]
    samples = PlatformSamples("fuzzed-1t", RULES, kernels, networks, call_overhead_ms=board.call_ms)
    predictor = fit_predictor(samples)
    table = as_table([workload(random_kernel(rng, "conv")) for _ in range(90)])
    stack = predictor.models.stacks["conv"]
    mixed = Stack.from_state(stack.state())
    trees = Boosted(sigma=0.1, roofline=stack.gp.roofline)
    mixed.boosted, mixed.gp_weight = trees.fit(table, 0.01 + table.macs / 1e7), 0.6
    models = replace(predictor.models, stacks={**predictor.models.stacks, "conv": mixed})
    return replace(predictor, models=models)


def fuzz_bundles(
    first: int, count: int, predictor: PlatformPredictor | None = None, jobs: int = 1
) -> FuzzSummary:
    """Read and use `count` changed bundles.

    Case number n is always the same changed bundle.

    Args:
        first: number of the first case.
        count: number of cases.
        predictor: what the bundles hold before they are changed; None: `small_predictor`.
        jobs: number of processes that read them at the same time.
    """
    with tempfile.TemporaryDirectory() as folder:
        seed = Path(folder) / "seed.zip"
        save_bundle(predictor or small_predictor(), seed, {"campaign": "fuzzed"})
        command = [sys.executable, "-W", "error", "-m", __name__, str(seed)]
        return run_cases(command, first, count, jobs)


def use(graphs: Sequence[Graph], path: Path) -> None:
    """Load a bundle and ask it for all that a user may ask for.

    Raises:
        PredictorsError: the bundle is refused.
        AssertionError: it gives numbers that are not finite.
    """
    predictor = load_bundle(path)
    read_provenance(path)
    for answer in predictor.predict_many(graphs):
        numbers = [answer.latency_ms, *answer.interval_ms]
        for kernel in answer.kernels:
            numbers += [kernel.latency_ms, *kernel.interval_ms]
        assert all(map(math.isfinite, numbers)), numbers
    predictor.explain()
    weighted_coverage(predictor, graphs[0])
    for name in BASELINES:
        if name not in _FITTED_LATER:
            with suppress(NoBaselineError):
                assert math.isfinite(baseline_ms(predictor, graphs[0], name)), name


def main() -> None:
    """Run the child process."""
    seed, first, count = sys.argv[1:]
    files = read_files(Path(seed))
    rng = np.random.default_rng(5)
    graphs = [random_network(rng, f"net{number}") for number in range(2)]
    read = partial(use, graphs)
    report_cases(lambda case: mutated(files, case), read, PredictorsError, int(first), int(count))


if __name__ == "__main__":
    main()
