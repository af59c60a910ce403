"""NNLP and what stands beside it, with a family left out, and on NNLQP's inferred cells.

    make bench-gnn                                            both simulated boards, and the cells
    make bench-gnn BENCH_FLAGS="--store farm.duckdb -p local-ncnn1.0-fp32-1t --write FOLDER"
    make bench-gnn-measure BENCH_FLAGS="-p local-ncnn1.0-fp32-1t"   the networks of such a run
    python -m benchmarks.gnn.run --quick                      everything once, without meaning

The protocol is written down in docs/gnn.md. With --write, each fit is kept in a folder, in the file
of its source, as soon as it is finished, and the same command continues where it stopped.
LATFARM_BENCH_DATA is the folder that holds `nnlqp_cells`; without it the cells are left out.
Methods that train with torch are left out where torch is not installed (make setup-gnn).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_controller.errors import ControllerError
from latfarm_predictors.errors import NotEnoughDataError, NoTorchError
from latfarm_predictors.gnn.config import ABLATIONS
from latfarm_predictors.gnn.learning.fit import EpochReport
from latfarm_predictors.gnn.shares import leave_one_out

from benchmarks.gnn import cells, draws, simulated, stores, tables
from benchmarks.gnn.methods import (
    METHODS,
    QUICK,
    Fold,
    Method,
    NotApplicableError,
    Sizes,
    ablation,
)
from benchmarks.gnn.networks import BenchNetwork, Source, latencies_of
from benchmarks.gnn.records import BenchJob, HostWatch, Results, scored

DATA_VARIABLE = "LATFARM_BENCH_DATA"
"""Environment variable with the folder of data sets that are no part of this repository."""
SEEDS = (0, 1, 2)
"""Random seeds of every fit."""
CELL_COUNTS = (50, 300, 1800)
"""Numbers of training cells; 1,800 is the published split."""
CELL_METHODS = ("flops", "flops_mac", "brp-nas", "nnlp", "nnlp-small", "cell-gp")
"""The methods that need no kernels."""
QUICK_FAMILIES = ("squeezenet1.0", "mobilenet-v2", "alexnet")
"""The families of a quick run."""


@dataclass(frozen=True)
class BenchPlan:
    """What a run computes.

    Attributes:
        seeds: random seeds.
        methods: names of methods; empty: all.
        sizes: how much each method may compute.
        cell_counts: numbers of training cells.
        ablations: whether the rows of Table 4 are computed too.
        quiet: do not tell the epochs.
    """

    seeds: Sequence[int]
    methods: Sequence[str]
    sizes: Sizes
    cell_counts: Sequence[int]
    ablations: bool
    quiet: bool

    def named(self) -> dict[str, Method]:
        """The methods by name, with the ablations where these are wanted."""
        found = {n: m for n, m in METHODS.items() if not self.methods or n in self.methods}
        if self.ablations:
            found |= {name: ablation(name) for name in ABLATIONS}
        return found


def judged(job: BenchJob, fold: Fold, method: Method, results: Results, *, quiet: bool) -> None:
    """Run one job, unless it is done; a method that cannot run here says why."""
    if results.find(job) is not None:
        return
    watch, began_s = HostWatch(), time.monotonic()

    def on_epoch(report: EpochReport) -> None:
        if not quiet and sys.stderr.isatty():
            told = f"{report.epoch}/{report.epochs} loss {report.loss:.4f}"
            print(f"\r  {job.key}: epoch {told}", end="", file=sys.stderr, flush=True)

    fold.on_epoch = on_epoch
    try:
        found = method(fold)
    except (NoTorchError, NotApplicableError, NotEnoughDataError) as error:
        print(f"  {job.key}: left out: {error}", file=sys.stderr)
        return
    record = scored(found, latencies_of(fold.test))
    record |= {"seconds": round(time.monotonic() - began_s, 2), "host": watch.told()}
    record |= {"train": len(fold.train)}
    results.keep(job, record)
    print(
        f"  {job.key}: MAPE {record['mape']:.2%}, within 10 % {record['within10']:.1%}, "
        f"{record['seconds']} s, {record['host']}",
        file=sys.stderr,
    )


def families(source: Source, plan: BenchPlan, results: Results) -> None:
    """Leave each family out, fit each method, and decide what is shipped."""
    results.keep_source(source.name, _facts(source))
    named = plan.named()
    parts = leave_one_out([each.family for each in source.networks])
    for family, (train, test) in parts.items():
        for seed in plan.seeds:
            learn, judge = ([source.networks[at] for at in rows] for rows in (train, test))
            fold = Fold(source, learn, judge, seed, plan.sizes)
            for name, method in named.items():
                job = BenchJob("families", source.name, family, name, seed)
                judged(job, fold, method, results, quiet=plan.quiet)
    found = tables.finder(results, "families", source.name, plan.seeds)
    tables.show(f"{source.name} ({source.note})", list(parts), list(named), found)
    ceiling = tables.show_ceiling(source)
    told = {name: each.to_json() for name, each in tables.verdicts(list(parts), found).items()}
    for name, decision in told.items():
        verdict = "shipped" if decision["ship"] else "not shipped"
        print(f"  {name}: {verdict}. {decision['reason']} Gain {decision['gain']:+.2%}")
    results.keep_source(source.name, {**_facts(source), "ceiling": ceiling})
    results.keep_verdicts(source.name, plan.seeds, told)


def cell_curve(train: Source, test: Source, plan: BenchPlan, results: Results) -> None:
    """Predict the published test cells from 50, 300 and all training cells."""
    results.keep_source(train.name, _facts(train))
    named = {n: m for n, m in plan.named().items() if n in CELL_METHODS or n in ABLATIONS}
    for count in plan.cell_counts:
        for seed in plan.seeds:
            fold = Fold(train, _drawn(train.networks, count, seed), test.networks, seed, plan.sizes)
            for name, method in named.items():
                job = BenchJob("cells", train.name, str(count), name, seed)
                judged(job, fold, method, results, quiet=plan.quiet)
    found = tables.finder(results, "cells", train.name, plan.seeds)
    rows = [str(count) for count in plan.cell_counts]
    tables.show(f"{test.name} ({test.note})", rows, list(named), found, means=False)


def _drawn(networks: Sequence[BenchNetwork], count: int, seed: int) -> list[BenchNetwork]:
    """Some networks, drawn at random; all of them where there are not more."""
    order = np.random.default_rng(seed).permutation(len(networks))[:count]
    return [networks[at] for at in sorted(order.tolist())]


def _facts(source: Source) -> dict[str, Any]:
    counts = {name: 0 for name in source.families}
    for each in source.networks:
        counts[each.family] += 1
    return {
        "platform": source.platform,
        "note": source.note,
        "networks": counts,
        **dict(source.facts),
    }


def _sources(options: argparse.Namespace) -> Iterator[Source]:
    chosen = QUICK_FAMILIES if options.quick else draws.FAMILIES
    for kind in options.simulate:
        yield simulated.source_of(kind, options.per_family, options.kernels, chosen)
    if options.store is not None:
        yield stores.source_of(options.store, options.platform, options.campaigns)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="small sizes: shows that everything works")
    add("--write", type=Path, help="folder of the results, which a later run continues")
    add("--simulate", action="append", help="built-in board; default: branches, overlap and npu")
    add("--store", type=Path, help="store with measured networks")
    add("-p", "--platform", default="", help="platform of the networks in the store")
    add("--campaigns", default="", help="only campaigns of the store whose names begin with this")
    add("--per-family", type=int, help="networks of each family on a simulated board")
    add("--kernels", type=int, help="measured kernels of a simulated board")
    add("--method", action="append", default=[], help="only this method; repeatable")
    add("--seed", type=int, action="append", help="random seed; repeatable; default: 0, 1 and 2")
    add("--count", type=int, action="append", help="number of training cells; repeatable")
    add("--epochs", type=int, help="largest number of epochs of all graph neural networks")
    add("--ablations", action="store_true", help="compute the rows of NNLQP's Table 4 too")
    add("--no-cells", action="store_true", help="leave NNLQP's inferred cells out")
    add("--no-families", action="store_true", help="only the cells")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.method) - set(METHODS))
    if unknown:
        parser.error(f"no method {unknown[0]!r}; known: {', '.join(METHODS)}")
    if (options.store is None) != (options.platform == ""):
        parser.error("--store and --platform belong together")
    options.per_family = options.per_family or (6 if options.quick else 100)
    options.kernels = options.kernels or (60 if options.quick else 500)
    options.simulate = options.simulate or (
        [] if options.store else ["branches"] if options.quick else ["branches", "overlap", "npu"]
    )
    return options


def _plan(options: argparse.Namespace) -> BenchPlan:
    sizes = QUICK if options.quick else Sizes()
    if options.epochs:
        sizes = replace(
            sizes,
            nnlp=replace(sizes.nnlp, epochs=options.epochs),
            small=replace(sizes.small, epochs=options.epochs),
        )
    seeds = tuple(options.seed or ((0,) if options.quick else SEEDS))
    counts = tuple(options.count or ((50,) if options.quick else CELL_COUNTS))
    return BenchPlan(seeds, options.method, sizes, counts, options.ablations, options.quick)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _options(arguments)
    plan = _plan(options)
    settings = {
        "sizes": asdict(plan.sizes),
        "per_family": options.per_family,
        "kernels": options.kernels,
        "quick": options.quick,
    }
    watch = HostWatch()
    try:
        results = Results(options.write, settings)
        if not options.no_families:
            for source in _sources(options):
                families(source, plan, results)
        folder = os.environ.get(DATA_VARIABLE, "")
        if options.no_cells or not folder:
            told = "as asked" if options.no_cells else f"{DATA_VARIABLE} names no folder"
            print(f"NNLQP's inferred cells: left out, {told}", file=sys.stderr)
        else:
            cell_curve(*cells.read_cells(Path(folder)), plan, results)
    except (OSError, ValueError, ControllerError) as error:
        print(f"bench-gnn: {error}", file=sys.stderr)
        return 2
    told_s = results.durations_s()
    print(f"\nseconds of all fits of these sources: {told_s}, together {sum(told_s.values()):.0f}")
    print(f"host: {watch.told()}; figures of times mean something on a quiet machine only")
    return 0


if __name__ == "__main__":
    sys.exit(main())
