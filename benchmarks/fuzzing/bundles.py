"""Bundles that somebody has changed: each is refused in one line, or predicts finite numbers."""

from __future__ import annotations

from latfarm_predictors.testing.fuzz_bundles import fuzz_bundles

from benchmarks.fuzzing.part import PartReport

_CASES_OF_A_SEED = 10_000_000
"""Number of cases between the first case of one seed and that of the next."""


def run(count: int, seed: int, jobs: int = 1) -> PartReport:
    """Read and use `count` changed bundles, `jobs` of them at the same time."""
    summary = fuzz_bundles(seed * _CASES_OF_A_SEED, count, jobs=jobs)
    return PartReport(
        seed,
        summary.outcomes,
        summary.violations,
        {
            "slowest_ms": round(summary.slowest_ms, 1),
            "slowest_case": summary.slowest_case,
            "peak_mib": round(summary.peak_bytes / 2**20, 1),
        },
    )
