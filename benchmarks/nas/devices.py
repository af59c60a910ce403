"""NASBench-201's devices, each predicted from a few of its cells and from other makers' devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_predictors.transfer.left_out import LeaveOut, folds, judge
from latfarm_predictors.transfer.new_board import NewBoard, TransferOptions

from benchmarks.nas.quality import search_figures, stand_in_value
from benchmarks.new_board import data

PROBES = 20
"""Number of cells that are measured on a device, as in `make bench-new-board`."""
MAY_BE_PROBES = 500
"""How many of the drawn cells may be probes."""


def devices(folder: Path, cells: int, seed: int, most: int = 0) -> dict[str, Any]:
    """Figures of each device: of the predictions, and of FLOPs beside them.

    Args:
        folder: of HELP's NASBench-201.
        cells: number of cells that are drawn.
        seed: of the draw, and of the stand-in for accuracy.
        most: largest number of makers that are left out; 0: all.
    """
    whole = data.nasbench(folder)
    drawn = np.random.default_rng(seed).permutation(len(whole.networks))[:cells]
    table = whole.of_networks(drawn)
    flops = data.flops_of(table)
    value = stand_in_value(flops, seed)
    may = np.arange(cells) < min(MAY_BE_PROBES, cells // 2)
    how = LeaveOut(PROBES, folds=len(set(whole.groups)), seed=seed)
    found: dict[str, Any] = {}
    for fold in folds(table, "device", how)[: most or None]:
        others = table.kept(np.array([name not in fold for name in table.groups], dtype=bool))
        board = NewBoard.fit(others, "device", TransferOptions(replace(how, seed=seed)))
        for row, group in enumerate(table.groups):
            left = judge(table, row, board.models, how, may) if group in fold else None
            if left is None:
                continue
            truth_ms = np.exp(left.log_ms - left.errors)
            own, worth = flops[left.judged], value[left.judged]
            found[left.platform] = {
                "latfarm": search_figures(np.exp(left.log_ms), truth_ms, own, worth),
                "flops": search_figures(own, truth_ms, own, worth),
            }
    return found


def mean_of(found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Means over devices, for the predictions and for FLOPs."""
    return {
        method: {
            name: round(float(np.mean([each[method][name] for each in found.values()])), 4)
            for name in ("tau", "tau_of_equal_flops", "pareto_found")
        }
        for method in ("latfarm", "flops")
    }
