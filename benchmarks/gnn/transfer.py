"""What a trained NNLP is worth elsewhere: NNLQP's Table 5, Table 6, and Fig. 6 to Fig. 8.

    python -m benchmarks.gnn.transfer --write benchmarks/gnn/figures_of_transfer
    python -m benchmarks.gnn.transfer --quick

It runs on simulated boards, since a transfer between platforms needs the same networks on all of
them. Each experiment is one table of the results:

- `structures` (Fig. 6): a family is left out of the first training, and a few of its networks then
  train from scratch or fine-tune; 30 % of the family judge.
- `platforms` (Fig. 7): the same for a board that the first training, with a head for each other
  board, has not seen; 30 % of the networks judge.
- `tasks` (Fig. 8): the first training has seen classifiers; many detectors train from scratch,
  a few do so, and the same few fine-tune. The paper has 1,000 and 50.
- `heads` (Table 6): a model for each board, and one model with a head for each board.
- `kernels` (Table 5): nn-Meter's forests and NNLP on kernels, 70 % of which train.

Like `benchmarks.gnn.run` it continues where it stopped, and judges by networks that no fit saw.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from latfarm_predictors.errors import NoTorchError
from latfarm_predictors.gnn.config import SMALL, NNLPConfig
from latfarm_predictors.gnn.encoded import encode
from latfarm_predictors.gnn.labelled import Labelled, latencies
from latfarm_predictors.gnn.learning.fit import fit, transfer
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.gnn.nnlp import NNLP
from latfarm_predictors.gnn.shares import shares_of
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.published.nn_meter import KernelForest

from benchmarks.gnn import draws, simulated, tables
from benchmarks.gnn.methods import COVERAGE, QUICK
from benchmarks.gnn.networks import BenchNetwork, Source
from benchmarks.gnn.records import BenchJob, HostWatch, Results, scored
from benchmarks.gnn.run import QUICK_FAMILIES, SEEDS

BOARDS = ("npu", "gpu", "cpu", "branches", "overlap")
"""The simulated boards."""
COUNTS = (32, 100, 200, 300)
"""Numbers of networks that fine-tune, as in Fig. 6 and Fig. 7."""
TEST_SHARE = 0.3
"""Share of the kernels that judge, as in section 8.3, and of the networks of a family."""
PER_FAMILY = 460
"""Networks of each family, so that 300 of them may train."""
STRUCTURES = ("resnet18", "vgg11", "mobilenet-v2", "efficientnet-b0", "googlenet")
"""The families that are left out for Fig. 6, which shows five."""
DETECTOR = "retinanet-r34"
"""The family of detectors; its backbone is that of the paper's."""
PAPER_TASKS = "MAPE 3.8 % from 1,000, 4.4 % from 50, 4.0 % from 50 with the first training"
"""NNLQP's Fig. 8."""
FEWEST_JUDGES = 5
"""A kind of kernel with fewer judges stands in no table."""


@dataclass(frozen=True)
class TaskSizes:
    """Numbers of detectors.

    Attributes:
        many: how many train from scratch, as in the paper's data set.
        few: how many train from scratch, and fine-tune a model of classifiers.
        judges: how many judge.
    """

    many: int = 1000
    few: int = 50
    judges: int = 300


@dataclass(frozen=True)
class Setup:
    """What all experiments share.

    Attributes:
        sources: the boards, with the same networks in the same order.
        config: options of NNLP.
        counts: numbers of networks that fine-tune.
        seeds: random seeds.
        results: the files of results.
        tasks: how many detectors train, many and few, and how many judge.
    """

    sources: Sequence[Source]
    config: NNLPConfig
    counts: Sequence[int]
    seeds: Sequence[int]
    results: Results
    tasks: TaskSizes


def labelled(source: Source, networks: Sequence[BenchNetwork]) -> list[Labelled]:
    """Networks of a board as NNLP learns from them."""
    return [Labelled(n.encoded, source.platform, n.latency_ms, n.name) for n in networks]


def keep(
    setup: Setup,
    job: BenchJob,
    judges: Sequence[Labelled],
    answer: NetworkIntervals | Callable[[], NetworkIntervals],
) -> None:
    """Run one job, unless it is done."""
    if setup.results.find(job) is not None or not judges:
        return
    watch, began_s = HostWatch(), time.monotonic()
    found = answer if isinstance(answer, NetworkIntervals) else answer()
    record = scored(found, latencies(judges))
    record |= {"seconds": round(time.monotonic() - began_s, 2), "host": watch.told()}
    setup.results.keep(job, record)
    print(f"  {job.key}: MAPE {record['mape']:.2%}, {record['seconds']} s", file=sys.stderr)


def parted(networks: Sequence[BenchNetwork], seed: int) -> tuple[list[int], list[int]]:
    """Places of the networks that may train and of those that judge; siblings stay together."""
    shares = shares_of([each.name for each in networks], 0.0, TEST_SHARE, seed)
    return shares.train.tolist(), shares.calibration.tolist()


def structures(setup: Setup) -> list[str]:
    """Fig. 6: a family that the first training has not seen."""
    source, rows = setup.sources[-1], []
    for family in [each for each in source.families if each in STRUCTURES]:
        own = [each for each in source.networks if each.family == family]
        others = labelled(source, [each for each in source.networks if each.family != family])
        for seed in setup.seeds:
            config = replace(setup.config, seed=seed)
            may, judge = parted(own, seed)
            judges = labelled(source, [own[at] for at in judge])
            base = Later(partial(fit, others, config))
            for count in setup.counts:
                few = labelled(source, [own[at] for at in may[:count]])
                row = f"{family}/{count}"
                if len(few) == count:
                    rows.append(row)
                    _both(
                        setup, BenchJob("structures", source.name, row, "", seed), base, few, judges
                    )
    return list(dict.fromkeys(rows))


def platforms(setup: Setup) -> list[str]:
    """Fig. 7: a board that the first training has not seen."""
    rows = []
    for target in setup.sources:
        for seed in setup.seeds:
            config = replace(setup.config, seed=seed)
            may, judge = parted(target.networks, seed)
            judges = labelled(target, [target.networks[at] for at in judge])
            others = [
                row
                for source in setup.sources
                if source is not target
                for row in labelled(source, [source.networks[at] for at in may])
            ]
            base = Later(partial(fit, others, config))
            order = np.random.default_rng(seed).permutation(len(may)).tolist()
            for count in setup.counts:
                few = labelled(target, [target.networks[may[at]] for at in order[:count]])
                if len(few) == count:
                    rows.append(f"{target.name}/{count}")
                    job = BenchJob("platforms", "boards", rows[-1], "", seed)
                    _both(setup, job, base, few, judges)
    return list(dict.fromkeys(rows))


def tasks(setup: Setup) -> list[str]:
    """Fig. 8: detectors, after a first training that has seen classifiers alone."""
    source, sizes = setup.sources[-1], setup.tasks
    classifiers = labelled(source, source.networks)
    jobs = [
        BenchJob("tasks", source.name, f"{DETECTOR}/{count}", method, seed)
        for seed in setup.seeds
        for count, method in (
            (sizes.many, "scratch"),
            (sizes.few, "scratch"),
            (sizes.few, "transfer"),
        )
    ]
    if any(setup.results.find(job) is None for job in jobs):
        kind = source.name.removeprefix("sim-")
        made = simulated.source_of(kind, sizes.many + sizes.judges, 1, (DETECTOR,))
        every = labelled(source, made.networks)
        judges, may = every[: sizes.judges], every[sizes.judges :]
        for seed in setup.seeds:
            config = replace(setup.config, seed=seed)
            base = Later(partial(fit, classifiers, config))
            order = np.random.default_rng(seed).permutation(len(may)).tolist()
            row = f"{DETECTOR}/{sizes.many}"
            job = BenchJob("tasks", source.name, row, "scratch", seed)
            many = Later(partial(fit, may, config))
            keep(setup, job, judges, many.answering(judges))
            few = [may[at] for at in order[: sizes.few]]
            _both(setup, replace(job, row=f"{DETECTOR}/{sizes.few}"), base, few, judges)
    print(f"\nNNLQP's Fig. 8, for its own detectors: {PAPER_TASKS}")
    return list(dict.fromkeys(job.row for job in jobs))


def heads(setup: Setup) -> list[str]:
    """Table 6: a model for each board, and one with a head for each of them."""
    for seed in setup.seeds:
        config = replace(setup.config, seed=seed)
        may, judge = parted(setup.sources[0].networks, seed)
        every = [
            row
            for source in setup.sources
            for row in labelled(source, [source.networks[at] for at in may])
        ]
        together = Later(partial(fit, every, config))
        for source in setup.sources:
            judges = labelled(source, [source.networks[at] for at in judge])
            own = labelled(source, [source.networks[at] for at in may])
            job = BenchJob("heads", "boards", source.name, "multi-models", seed)
            keep(setup, job, judges, Later(partial(fit, own, config)).answering(judges))
            job = replace(job, method="single-model")
            keep(setup, job, judges, together.answering(judges))
    return [source.name for source in setup.sources]


def kernels(setup: Setup) -> list[str]:
    """Table 5: kernels by nn-Meter's forests and by NNLP in its kernel mode."""
    rows: list[str] = []
    source = setup.sources[0]
    for seed in setup.seeds:
        assert source.kernels is not None  # simulated boards measure kernels
        samples = source.kernels(source.networks, seed).samples
        shares = shares_of([s.kernel.kernel_id for s in samples], 0.0, TEST_SHARE, seed)
        every = [
            Labelled(encode(s.kernel.graph), source.platform, s.latency_ms, s.kernel.kernel_id)
            for s in samples
        ]
        train = [every[at] for at in shares.train]
        model = Later(partial(fit, train, replace(setup.config, seed=seed)))
        types = [s.kernel.type for s in samples]
        for kind in sorted(set(types)):
            judge = [at for at in shares.calibration.tolist() if types[at] == kind]
            learn = [at for at in shares.train.tolist() if types[at] == kind]
            if len(judge) < FEWEST_JUDGES or len(learn) < FEWEST_JUDGES:
                continue
            rows.append(kind)
            judges = [every[at] for at in judge]
            job = BenchJob("kernels", source.name, kind, "nnlp", seed)
            keep(setup, job, judges, model.answering(judges))
            works = [workload(samples[at].kernel) for at in learn]
            forest = KernelForest(seed=seed).fit(works, [samples[at].latency_ms for at in learn])
            told, _ = forest.predict([workload(samples[at].kernel) for at in judge])
            plain = NetworkIntervals(told, told, told, promised=False)  # it has no intervals
            keep(setup, replace(job, method="nn-meter"), judges, plain)
    return list(dict.fromkeys(rows))


class Later:
    """A model that is fitted when it is first needed, so that a finished run fits nothing."""

    def __init__(self, make: Callable[[], NNLP]) -> None:
        self._make = make
        self._made: NNLP | None = None

    def get(self) -> NNLP:
        """The model."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def answering(self, judges: Sequence[Labelled]) -> Callable[[], NetworkIntervals]:
        """A function that tells what the model says of networks of one platform."""
        return lambda: self.get().intervals(
            [row.graph for row in judges], judges[0].platform, COVERAGE
        )


def _both(
    setup: Setup, job: BenchJob, base: Later, few: list[Labelled], judges: list[Labelled]
) -> None:
    """Train on a few networks from first values, and from a trained model."""
    config = replace(setup.config, seed=job.seed)
    scratch, tuned = replace(job, method="scratch"), replace(job, method="transfer")
    keep(setup, scratch, judges, Later(partial(fit, few, config)).answering(judges))
    keep(setup, tuned, judges, Later(lambda: transfer(base.get(), few, config)).answering(judges))


EXPERIMENTS = {
    "structures": (structures, ("scratch", "transfer")),
    "platforms": (platforms, ("scratch", "transfer")),
    "tasks": (tasks, ("scratch", "transfer")),
    "heads": (heads, ("multi-models", "single-model")),
    "kernels": (kernels, ("nn-meter", "nnlp")),
}
"""Each experiment, and the methods of its table."""


def _setup(options: argparse.Namespace) -> Setup:
    quick = options.quick
    boards = ("npu", "branches") if quick else BOARDS
    families = QUICK_FAMILIES if quick else draws.FAMILIES
    per_family = options.per_family or (8 if quick else PER_FAMILY)
    count = 60 if quick else 2000
    sizes = TaskSizes(8, 4, 5) if quick else TaskSizes()
    config = QUICK.small if quick else SMALL
    settings = {
        "config": asdict(config),
        "per_family": per_family,
        "quick": quick,
        "tasks": asdict(sizes),
    }
    return Setup(
        [simulated.source_of(kind, per_family, count, families) for kind in boards],
        config,
        (4,) if quick else COUNTS,
        tuple(options.seed or ((0,) if quick else SEEDS)),
        Results(options.write, settings),
        sizes,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiments; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small: shows that everything works")
    parser.add_argument("--write", type=Path, help="folder of the results, which a run continues")
    parser.add_argument("--per-family", type=int, help="networks of each family")
    parser.add_argument("--seed", type=int, action="append", help="random seed; repeatable")
    parser.add_argument("--only", choices=tuple(EXPERIMENTS), help="one experiment alone")
    options = parser.parse_args(arguments)
    watch = HostWatch()
    try:
        setup = _setup(options)
        for name, (experiment, methods) in EXPERIMENTS.items():
            if options.only in (None, name):
                rows = experiment(setup)
                source = _source_name(name, setup)
                found = tables.finder(setup.results, name, source, setup.seeds)
                tables.show(f"{name} ({source}, simulated)", rows, methods, found, means=False)
    except (NoTorchError, OSError, ValueError) as error:
        print(f"bench-gnn: {error}", file=sys.stderr)
        return 2
    print(f"\nhost: {watch.told()}; figures of times mean something on a quiet machine only")
    return 0


def _source_name(experiment: str, setup: Setup) -> str:
    """The name under which an experiment keeps its jobs."""
    if experiment in ("platforms", "heads"):
        return "boards"
    return setup.sources[0 if experiment == "kernels" else -1].name


if __name__ == "__main__":
    sys.exit(main())
