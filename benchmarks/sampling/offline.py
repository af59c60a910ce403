"""Compares samplers and regressors on 19,100 measured convolutions.

    make bench-sampling

All samplers draw from the same measured rows (convolution and ReLU, ncnn, one thread; the folder is
given by LATFARM_BENCH_DATA). They are judged by `test_prior.csv`, from which nothing is drawn, and
by which nothing is chosen.

- random: uniform draws from the rows of the prior.
- nn-meter: Algorithm 2. With 16,000 rows it is the exact set that the algorithm collected. With
  fewer, 10/16 of the rows are from the prior. The others are the fine-grained rows nearest to rows
  of the prior that a forest, trained on the other half, predicts with an error above 10 %. This is
  an approximation, since the fine-grained rows were drawn around the errors of a forest of 10,000
  rows.
- latfarm: first 100 rows of at least 2,500 draws of the prior, those that tell most about all of
  them by their features alone (`models.gaussian.design`). In each later batch, half of the rows are
  chosen in the same way, and half are the draws that the Gaussian process is least sure of, as by
  default. There are no networks here from which layers could be taken.
- spread, coverage, both: the same sampler with other guides: all rows like the first hundred, or
  half of them by the distance CM_O, or by distance and variance together.

`--write` writes `sampling_offline.json` beside this file: medians over the seeds, and their range.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from latfarm_controller.campaigns.sampling.latfarm import Guide
from latfarm_predictors.confidence.layer_confidence import Difficulty, Neighbourhood
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.models.base import Regressor
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.gaussian.design import spread
from latfarm_predictors.models.published.annette import raw_features
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest

from benchmarks.regressors import read

REGRESSORS: dict[str, Callable[[], Regressor]] = {
    "forest": Forest,
    "boosted": lambda: Boosted(sigma=0.1),
    "GP": RooflineGP,
    "stack": Stack,
}
COUNTS = (60, 100, 150, 250, 500, 1000)
"""Numbers of rows that samplers draw."""
PUBLISHED = 16_000
"""Number of rows that nn-Meter's Algorithm 2 collected."""
FEATURES = ("in_h", "in_channels", "out_channels", "kernel_h", "stride_h")
"""The features by which fine-grained rows are near to a row."""
INITIAL, BATCH, CANDIDATES, REFERENCE = 100, 45, 2_500, 500
"""Sizes of the sampler `latfarm`: rows before the first batch and in each, draws to choose from,
and draws that stand for the whole prior."""


class Pools:
    """The rows that may be drawn.

    Attributes:
        table: all rows, with their latencies in `latency_ms`.
        prior: the numbers of the rows that were drawn from the prior.
        fine: the numbers of the fine-grained rows.
        judged: the rows that judge, with their latencies in `judged_ms`.
    """

    def __init__(self, folder: Path, *, judge_pool: bool = False) -> None:
        judged, self.judged_ms = read(folder / "test_prior.csv")
        works, latency = read(folder / "pool_nn_meter_16000.csv")
        if judge_pool:  # for choices between methods; the test set is for the final figures only
            judged, self.judged_ms = works[8_000:10_000], latency[8_000:10_000]
        self.judged = as_table(judged)
        held_out = {work for work in judged}
        kept = [i for i, work in enumerate(works) if work not in held_out]
        self.table = as_table([works[i] for i in kept])
        self.latency_ms = latency[kept]
        self.prior = np.array([at for at, i in enumerate(kept) if i < 10_000])
        self.fine = np.array([at for at, i in enumerate(kept) if i >= 10_000])
        self.log = np.log(np.stack([getattr(self.table, name) for name in FEATURES], axis=1))


Rows = np.ndarray[tuple[int], np.dtype[np.intp]]


def random_rows(pools: Pools, count: int, seed: int) -> Rows:
    """Uniform draws from the rows of the prior."""
    return np.random.default_rng(seed).permutation(pools.prior)[:count]


def nn_meter_rows(pools: Pools, count: int, seed: int) -> Rows:
    """The rows of Algorithm 2, as described above."""
    if count >= len(pools.prior) + len(pools.fine):
        return np.concatenate([pools.prior, pools.fine])
    first = random_rows(pools, count * 10 // 16, seed)
    wrong = _wrong(pools, first, seed)
    left = list(pools.fine)
    chosen: list[int] = []
    random = np.random.default_rng(seed)
    while len(chosen) < count - len(first):
        centre = pools.log[random.choice(wrong)]
        gaps = np.abs(pools.log[left] - centre)
        # Fine-grained draws keep the map, the kernel size and the stride, and change the channels.
        near = np.argsort(gaps[:, 1:3].sum(axis=1) + 100.0 * gaps[:, (0, 3, 4)].sum(axis=1))
        chosen += [int(left.pop(at)) for at in sorted(near[:10], reverse=True)]
    return np.concatenate([first, np.array(chosen[: count - len(first)], dtype=np.intp)])


def _wrong(pools: Pools, rows: Rows, seed: int) -> Rows:
    """The rows that a forest, trained on the other half, predicts with an error above 10 %."""
    mixed = np.random.default_rng(seed + 1).permutation(rows)
    halves = (mixed[::2], mixed[1::2])
    found = []
    for train, test in (halves, halves[::-1]):
        fitted = Forest().fit(pools.table.take(train), pools.latency_ms[train])
        guess = fitted.predict(pools.table.take(test))[0]
        found.append(test[np.abs(guess / pools.latency_ms[test] - 1.0) > 0.1])
    wrong = np.concatenate(found)
    return wrong if len(wrong) else rows


def latfarm_rows(pools: Pools, count: int, seed: int) -> Rows:
    """The rows of the sampler `latfarm` with its default guide."""
    return guided_rows(pools, count, seed, "variance")


def guided_rows(pools: Pools, count: int, seed: int, guide: Guide) -> Rows:
    """The rows of the sampler `latfarm` with a guide, as described above."""
    order = np.random.default_rng(seed).permutation(pools.prior)
    reach = max(CANDIDATES, 3 * count)
    candidates, reference = order[:reach], pools.table.take(order[:REFERENCE])
    taken: list[int] = []

    def add_spread(size: int) -> None:
        left = candidates[~np.isin(candidates, taken)]
        known = pools.table.take(np.array(taken, dtype=np.intp))
        picked = spread(pools.table.take(left), known, reference, size)
        taken.extend(left[list(picked)].tolist())

    add_spread(count if guide == "spread" else min(INITIAL, count))
    while len(taken) < count:
        size = min(BATCH, count - len(taken))
        left = candidates[~np.isin(candidates, taken)]
        scores = _uncertainties(pools, np.array(taken), left, guide)
        taken.extend(left[np.argsort(-scores, kind="stable")[: size // 2]].tolist())
        add_spread(size - size // 2)
    return np.array(taken[:count])


def _uncertainties(pools: Pools, known: Rows, left: Rows, guide: Guide) -> Array:
    """How unsure the model is of each row, as `sampling.latfarm.uncertainty` measures it."""
    table = pools.table.take(left)
    model = RooflineGP().fit(pools.table.take(known), pools.latency_ms[known])
    deviation = model.predict(table)[1]
    near = Neighbourhood.of(raw_features(pools.table.take(known)))
    distance = Difficulty.of(near.own_distance()).sigma(near.distance(raw_features(table)))
    if guide == "both":
        return np.asarray(np.hypot(deviation / deviation.mean(), distance / distance.mean()))
    return deviation if guide == "variance" else distance


SAMPLERS: dict[str, Callable[[Pools, int, int], Rows]] = {
    "random": random_rows,
    "nn-meter": nn_meter_rows,
    "latfarm": latfarm_rows,
}
GUIDES: dict[str, Callable[[Pools, int, int], Rows]] = {
    guide: partial(guided_rows, guide=guide) for guide in ("spread", "coverage", "both")
}
GUIDED = (150, 500)
"""Numbers of rows at which the guides are compared, with the Gaussian process only."""


def score(make: Callable[[], Regressor], pools: Pools, rows: Rows) -> tuple[float, float]:
    """The share of judged rows within 10 %, and the time to fit in seconds."""
    began = time.perf_counter()
    model = make().fit(pools.table.take(rows), pools.latency_ms[rows])
    fit_s = time.perf_counter() - began
    return evaluate(model.predict(pools.judged)[0], pools.judged_ms).within10, fit_s


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--judge-pool", action="store_true", help="judge on 2,000 rows of the pool")
    parser.add_argument("--regressor", choices=REGRESSORS, action="append", default=[])
    parser.add_argument("--write", action="store_true", help="keep the figures beside this file")
    chosen = parser.parse_args(arguments)
    folder = Path(os.environ.get("LATFARM_BENCH_DATA", "../shared/data")) / "cpu_conv" / "ncnn"
    if not (folder / "pool_nn_meter_16000.csv").is_file():
        print(f"{folder}: no conv timings there; set LATFARM_BENCH_DATA", file=sys.stderr)
        return 2
    pools = Pools(folder, judge_pool=chosen.judge_pool)
    results = []
    print(f"{'rows':>6} {'sampler':<9} {'regressor':<8} {'within 10 %':>20} {'fit s':>7}")
    for count in chosen.counts if chosen.regressor else [*chosen.counts, PUBLISHED]:
        for sampler, draw in {**SAMPLERS, **GUIDES}.items():
            seeds = 1 if count == PUBLISHED else chosen.seeds
            if count == PUBLISHED and sampler != "nn-meter":
                continue
            if sampler in GUIDES and count not in GUIDED:
                continue
            drawn = [draw(pools, count, seed) for seed in range(seeds)]
            for regressor, make in REGRESSORS.items():
                if chosen.regressor and regressor not in chosen.regressor:
                    continue
                if count == PUBLISHED and regressor in ("GP", "stack"):
                    continue  # a Gaussian process of 16,000 rows takes hours
                if sampler in GUIDES and regressor != "GP":
                    continue
                found = [score(make, pools, rows) for rows in drawn]
                shares = [100 * share for share, _ in found]
                low, high = min(shares), max(shares)
                row = {
                    "rows": len(drawn[0]),
                    "sampler": sampler,
                    "regressor": regressor,
                    "within10_percent": round(float(np.median(shares)), 1),
                    "range_percent": [round(low, 1), round(high, 1)],
                    "fit_s": round(float(np.median([fit_s for _, fit_s in found])), 3),
                    "seeds": seeds,
                }
                results.append(row)
                spread = f"{low:.1f} to {high:.1f}"
                print(
                    f"{row['rows']:>6} {sampler:<9} {regressor:<8} "
                    f"{row['within10_percent']:>6} ({spread:>12}) {row['fit_s']:>6}",
                    flush=True,
                )
    if chosen.write:
        path = Path(__file__).parents[1] / "sampling_offline.json"
        path.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
