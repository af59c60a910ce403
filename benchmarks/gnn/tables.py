"""Prints the results as NNLQP's Table 3, and decides what is shipped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from latfarm_predictors.gnn.shipping import ShippingDecision, decide
from latfarm_predictors.judging import perfect_share

from benchmarks.gnn.methods import INCUMBENT, OURS
from benchmarks.gnn.networks import Source
from benchmarks.gnn.records import BenchJob, Results

PAPER_MAPE = {
    "flops": 47.70,
    "flops_mac": 37.26,
    "nn-meter": 15.35,
    "tpu": 21.20,
    "brp-nas": 30.76,
    "nnlp": 10.66,
}
"""Average MAPE in NNLQP's Table 3, in percent; NNLP's Acc(10 %) is 59.73 %."""
_RESAMPLES = 1000
"""Number of draws of the bootstrap over networks."""

Found = Callable[[str, str], list[dict[str, Any]]]
"""Gives the records of all seeds of a row and a method."""


def finder(results: Results, table: str, source: str, seeds: Sequence[int]) -> Found:
    """A function that gives the finished records of a row and a method, one for each seed."""

    def found(row: str, method: str) -> list[dict[str, Any]]:
        told = (results.find(BenchJob(table, source, row, method, seed)) for seed in seeds)
        return [each for each in told if each is not None and "mape" in each]

    return found


def show(
    title: str, rows: Sequence[str], methods: Sequence[str], found: Found, *, means: bool = True
) -> None:
    """Print one table: for each row and method MAPE, Acc(10 %), coverage and width in percent.

    Args:
        title: the first line.
        rows: names of the rows.
        methods: names of the methods; those without any result are left out.
        found: gives the records of a row and a method.
        means: whether rows are families, of which a mean is told, beside the paper's.
    """
    used = [method for method in methods if any(found(row, method) for row in rows)]
    print(f"\n{title}\n  MAPE / Acc(10 %) / coverage / width, in percent; means over seeds")
    lines = [["", *used]]
    lines += [[row, *(_cell(found(row, method)) for method in used)] for row in rows]
    if len(rows) > 1 and means:
        every = ([found(row, method) for row in rows] for method in used)
        lines.append(["mean", *(_mean_cell(each) for each in every)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{c:>{w}}" for c, w in zip(line, widths, strict=True)))
    for method in used:
        low, high = _interval([r for row in rows for r in found(row, method)])
        paper = f"; NNLQP's Table 3: {PAPER_MAPE[method]:.2f}" if method in PAPER_MAPE else ""
        told = paper if means else ""
        print(f"  {method}: MAPE {low:.2f} to {high:.2f} by the bootstrap over networks{told}")


def show_ceiling(source: Source) -> float | None:
    """Print what a perfect predictor would score within 10 %; None where there is one pass."""
    share = perfect_share([each.passes_ms for each in source.networks], 0.1)
    if share is None:
        print("  a perfect predictor: unknown, there is only one pass of each network")
        return None
    print(f"  a perfect predictor: {share.share:.1%} within 10 % of the mean of all passes")
    return float(share.share)


def verdicts(families: Sequence[str], found: Found) -> dict[str, ShippingDecision]:
    """What is shipped on a platform: each of our candidates against the incumbent.

    A candidate is judged only on families that both have finished, and only if that is all.
    """
    decisions = {}
    for method in OURS:
        records = {family: found(family, method) for family in families}
        old = {family: found(family, INCUMBENT) for family in families}
        if not families or not all(records.values()) or not all(old.values()):
            continue
        decisions[method] = decide(
            {name: [np.array(each["errors"]) for each in rows] for name, rows in records.items()},
            {name: np.mean([r["errors"] for r in rows], axis=0) for name, rows in old.items()},
        )
    return decisions


def _cell(records: Sequence[Mapping[str, Any]]) -> str:
    if not records:
        return "-"
    names = ("mape", "within10", "coverage", "width")
    means = [100.0 * float(np.mean([each[name] for each in records])) for name in names]
    return " / ".join(f"{value:.1f}" for value in means)


def _mean_cell(rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """The mean over rows, each of which counts the same; only where all rows are finished."""
    if not all(rows):
        return "not finished"
    names = ("mape", "within10", "coverage", "width")
    per_row = [[float(np.mean([each[name] for each in row])) for name in names] for row in rows]
    return " / ".join(f"{100.0 * value:.1f}" for value in np.mean(per_row, axis=0))


def _interval(records: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The 95 % interval of the mean error in percent, by the bootstrap over networks."""
    errors = np.concatenate([np.array(each["errors"]) for each in records])
    draw = np.random.default_rng(0)
    means = [errors[draw.integers(len(errors), size=len(errors))].mean() for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975))
    return 100.0 * float(low), 100.0 * float(high)
