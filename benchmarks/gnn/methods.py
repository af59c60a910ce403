"""The predictors that the benchmark compares, each as one function of a fold.

Each is given networks to learn from and networks that judge, and tells latencies with 90 %
intervals. Nothing that judges is seen: hyperparameters, the end of training and the scores of
intervals come from parts of the training networks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.config import ABLATIONS, BRP_NAS, CORRECTION, PAPER, SMALL, NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph
from latfarm_predictors.gnn.family_scores import scores_of_new_families
from latfarm_predictors.gnn.kernel_graph import encode_kernels
from latfarm_predictors.gnn.labelled import Labelled
from latfarm_predictors.gnn.learning.fit import EpochReport, fit
from latfarm_predictors.gnn.linear_sum import LinearSum
from latfarm_predictors.gnn.network_gp import LEAST_FAMILIES, NetworkGP
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.gnn.nnlp import scores_of
from latfarm_predictors.gnn.shares import leave_one_out
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.models.published.analytic import Linear
from latfarm_predictors.predict.sum_corrector import SumCorrector, SummedNetworks, sum_scores

from benchmarks.gnn.cells import GROUPS as CELL_GROUPS
from benchmarks.gnn.cells import TREND as CELL_TREND
from benchmarks.gnn.kernels import FittedKernels, fitted_kernels
from benchmarks.gnn.networks import BenchNetwork, Source, latencies_of

COVERAGE = 0.9
"""Nominal coverage of all intervals."""
CALIBRATION_PARTS = 10
"""Number of parts of a single family that are left out in turn for the scores of intervals."""
FAMILY_PARTS = 3
"""Number of parts that the training families are left out in, for the scores of a graph network:
one fit for each family would take too long."""


@dataclass(frozen=True)
class Sizes:
    """How much each method may compute.

    Attributes:
        nnlp: options of NNLP as published.
        small: options of the small network on logarithms, and of corrections.
    """

    nnlp: NNLPConfig = PAPER
    small: NNLPConfig = SMALL


QUICK = Sizes(
    replace(PAPER, hidden=16, head_hidden=16, epochs=4, patience=2),
    replace(SMALL, hidden=16, head_hidden=16, epochs=4, patience=2),
)
"""Sizes with which everything runs in a minute or two, and no figure means anything."""


@dataclass
class Fold:
    """Networks to learn from, and networks that judge.

    Attributes:
        source: where they come from.
        train: networks to learn from.
        test: networks that judge.
        seed: random seed of all fits.
        sizes: how much may be computed.
        on_epoch: is told the progress of training.
    """

    source: Source
    train: Sequence[BenchNetwork]
    test: Sequence[BenchNetwork]
    seed: int
    sizes: Sizes
    on_epoch: Callable[[EpochReport], None] | None = None
    _kernels: list[FittedKernels] = field(default_factory=list)

    def kernels(self) -> FittedKernels:
        """Predictors of kernels that know no family that judges; fitted once for each fold.

        Raises:
            NotApplicableError: the source measures no kernels.
        """
        if not self._kernels:
            if self.source.kernels is None:
                raise NotApplicableError(f"{self.source.name} has no measured kernels")
            data = self.source.kernels(self.train, self.seed)
            self._kernels.append(fitted_kernels(self.source.platform, data, self.train, self.seed))
        return self._kernels[0]


class NotApplicableError(Exception):
    """A method needs something that a source does not have."""


Method = Callable[[Fold], NetworkIntervals]


def flops(fold: Fold) -> NetworkIntervals:
    """Linear regression on FLOPs (appendix E)."""
    return _on_totals(fold, traffic=False)


def flops_mac(fold: Fold) -> NetworkIntervals:
    """Linear regression on FLOPs and memory access (appendix E)."""
    return _on_totals(fold, traffic=True)


def nn_meter(fold: Fold) -> NetworkIntervals:
    """nn-Meter's forests of kernels, summed, with a linear correction (appendix E)."""
    fitted = fold.kernels()
    return _linear_sums(fold, fitted.nn_meter_ms)


def tpu(fold: Fold) -> NetworkIntervals:
    """GraphSAGE on kernels, summed, with a linear correction (appendix E)."""
    fitted = fold.kernels()
    rows = fitted.labelled(fold.source.platform)
    config = replace(fold.sizes.nnlp, seed=fold.seed)
    model = fit(rows, config, on_epoch=fold.on_epoch)

    def sums(networks: Sequence[BenchNetwork]) -> Array:
        return fitted.summed(networks, lambda kernels: model.predict(kernels, fold.source.platform))

    return _linear_sums(fold, sums)


def brp_nas(fold: Fold) -> NetworkIntervals:
    """BRP-NAS' graph convolutions on NNLP's node features (appendix E)."""
    nnlp = fold.sizes.nnlp
    config = BRP_NAS if nnlp == PAPER else replace(BRP_NAS, hidden=nnlp.hidden, epochs=nnlp.epochs)
    return _graph_network(fold, config)


def nnlp(fold: Fold) -> NetworkIntervals:
    """NNLP as published."""
    return _graph_network(fold, fold.sizes.nnlp)


def nnlp_small(fold: Fold) -> NetworkIntervals:
    """A smaller NNLP on logarithms of sizes and latencies."""
    return _graph_network(fold, fold.sizes.small)


def kernel_sum(fold: Fold) -> NetworkIntervals:
    """Our sum of kernels, with the correction that a bundle has: the incumbent."""
    answers = fold.kernels().predictor.predict_many([n.graph for n in fold.test], COVERAGE)
    latency = np.array([answer.latency_ms for answer in answers])
    ends = np.array([answer.interval_ms for answer in answers])
    return NetworkIntervals(latency, ends[:, 0], ends[:, 1], promised=True)


def corrected(fold: Fold) -> NetworkIntervals:
    """Bounded corrections of our predictors of kernels, by GraphSAGE on kernels (ours).

    Its intervals rest on fits without a third of the training families each, so that they are as
    wide as a new family needs; those of a bundle rest on fits without each family.
    """
    fitted = fold.kernels()
    graphs = {n.name: encode_kernels(fitted.sum_of(n)) for n in (*fold.train, *fold.test)}
    small = fold.sizes.small
    config = replace(CORRECTION, hidden=small.hidden, head_hidden=small.head_hidden)
    config = replace(config, epochs=small.epochs, patience=small.patience, seed=fold.seed)
    rows = [
        Labelled(graphs[n.name], fold.source.platform, n.latency_ms, n.name) for n in fold.train
    ]

    def predicted(learned: Sequence[Labelled], asked: Sequence[EncodedGraph]) -> Array:
        model = fit(learned, config, on_epoch=fold.on_epoch)
        return model.predict(asked, fold.source.platform)

    def without(rest: Sequence[int], left: Sequence[int]) -> Array:
        return predicted([rows[at] for at in rest], [rows[at].graph for at in left])

    families = [n.family for n in fold.train]
    order = np.random.default_rng(fold.seed).permutation(sorted(set(families))).tolist()
    parts = [str(order.index(name) % FAMILY_PARTS) for name in families]
    scores = _scores_without_part(parts, fold.train, families, without)
    widened = scores_of_new_families(scores)
    latency_ms = predicted(rows, [graphs[n.name] for n in fold.test])
    return NetworkIntervals.of(latency_ms, np.ones(len(latency_ms)), widened, COVERAGE)


def sum_gp(fold: Fold) -> NetworkIntervals:
    """A Gaussian process that corrects our sum of kernels (ours, without torch).

    Its trend is the one with the least errors on training families that were left out in turn, and
    its intervals rest on fits without each of these families, as those of a bundle do.
    """
    fitted, train = fold.kernels(), fold.train
    own = SummedNetworks(
        [fitted.sum_of(n) for n in train],
        [fitted.predictor.figures(n.graph) for n in train],
        latencies_of(train),
        [n.family for n in train],
    )
    scores = {}
    for family, (rest, left) in leave_one_out(own.families).items():
        if len(rest):
            judged = own.take(left.tolist())
            told = SumCorrector.fit(own.take(rest.tolist()), fold.seed).predict(judged.sums)
            scores[family] = sum_scores(*told, judged.latency_ms)
    widened = scores_of_new_families(scores) if scores else None
    corrector = SumCorrector.fit(own, fold.seed, widened)
    latency_ms, sigma = corrector.predict([fitted.sum_of(n) for n in fold.test])
    return NetworkIntervals.of(latency_ms, sigma, corrector.calibration.own, COVERAGE)


def cell_gp(fold: Fold) -> NetworkIntervals:
    """A Gaussian process on the features of cells: counts of ops and the op of each edge.

    The costs of ops add up (the trend); where they are corrects that. This shape was chosen by
    leave-one-out errors on draws of 50 training cells; the protocol in docs/gnn.md tells how.
    """
    if not all(each.features for each in fold.train):
        raise NotApplicableError(f"{fold.source.name} has no features of cells")
    train, test = (np.array([n.features for n in part]) for part in (fold.train, fold.test))
    process = NetworkGP(groups=CELL_GROUPS, trend=CELL_TREND, logarithm=False, seed=fold.seed).fit(
        train, latencies_of(fold.train)
    )
    return process.intervals(test, None, COVERAGE)


METHODS: Mapping[str, Method] = {
    "flops": flops,
    "flops_mac": flops_mac,
    "nn-meter": nn_meter,
    "tpu": tpu,
    "brp-nas": brp_nas,
    "nnlp": nnlp,
    "nnlp-small": nnlp_small,
    "sum": kernel_sum,
    "corrected": corrected,
    "sum-gp": sum_gp,
    "cell-gp": cell_gp,
}
"""The methods by name, in the order of the table."""

INCUMBENT = "sum"
"""What ours must beat to be shipped."""
OURS = ("nnlp", "nnlp-small", "corrected", "sum-gp")
"""The methods for which the benchmark decides whether they are shipped."""


def ablation(name: str) -> Method:
    """A row of Table 4: NNLP without a part of it, with the widths of the run."""

    def method(fold: Fold) -> NetworkIntervals:
        own = ABLATIONS[name]
        config = replace(
            fold.sizes.nnlp,
            encoder=own.encoder,
            node_features=own.node_features,
            static_features=own.static_features,
        )
        return _graph_network(fold, config)

    return method


def _on_totals(fold: Fold, *, traffic: bool) -> NetworkIntervals:
    def predicted(train: Sequence[BenchNetwork], asked: Sequence[BenchNetwork]) -> Array:
        line = Linear(traffic=traffic).fit_totals(*_totals(train), latencies_of(train))
        return line.predict_totals(*_totals(asked))

    return _calibrated(fold, predicted)


def _totals(networks: Sequence[BenchNetwork]) -> tuple[Array, Array]:
    """Multiply-adds and bytes of memory access of networks, each of shape (n,)."""
    macs = np.array([float(macs_of(n.graph)) for n in networks])
    return macs, np.array([float(n.graph.traffic_bytes) for n in networks])


def _linear_sums(
    fold: Fold, sums_ms: Callable[[Sequence[BenchNetwork]], Array]
) -> NetworkIntervals:
    networks = [*fold.train, *fold.test]
    sum_of = dict(zip([n.name for n in networks], sums_ms(networks).tolist(), strict=True))

    def predicted(train: Sequence[BenchNetwork], asked: Sequence[BenchNetwork]) -> Array:
        learn, judge = ([sum_of[n.name] for n in part] for part in (train, asked))
        return LinearSum().fit(learn, latencies_of(train)).predict(judge)

    return _calibrated(fold, predicted)


def _calibrated(
    fold: Fold,
    predicted: Callable[[Sequence[BenchNetwork], Sequence[BenchNetwork]], Array],
) -> NetworkIntervals:
    """Fit to the training networks; fits without a part of them give the scores of intervals.

    The parts are the families, so that intervals are as wide as a new family needs; where there is
    one family only, they are tenths of it.
    """
    families = [n.family for n in fold.train]
    if len(set(families)) < LEAST_FAMILIES:
        draw = np.random.default_rng(fold.seed)
        families = [str(part) for part in draw.integers(CALIBRATION_PARTS, size=len(fold.train))]

    def without(rest: Sequence[int], left: Sequence[int]) -> Array:
        return predicted([fold.train[at] for at in rest], [fold.train[at] for at in left])

    scores = _scores_without_part(families, fold.train, families, without)
    latency_ms = predicted(fold.train, fold.test)
    return NetworkIntervals.of(
        latency_ms, np.ones(len(latency_ms)), scores_of_new_families(scores), COVERAGE
    )


def _scores_without_part(
    parts: Sequence[str],
    networks: Sequence[BenchNetwork],
    families: Sequence[str],
    predicted: Callable[[Sequence[int], Sequence[int]], Array],
) -> dict[str, Array]:
    """Scores of each family by a fit that saw nothing of the part that it is in.

    Args:
        parts: the part of each network; it is left out as a whole.
        networks: the networks.
        families: the family of each network, which is in one part.
        predicted: fits to networks and tells latencies of others in ms, both by position.
    """
    names, latency_ms = np.array(families), latencies_of(networks)
    scores = {}
    for rest, left in leave_one_out(parts).values():
        if not len(rest):
            continue
        told_ms = predicted(rest.tolist(), left.tolist())
        for name in dict.fromkeys(names[left].tolist()):
            own = names[left] == name
            scores[name] = scores_of(told_ms[own], latency_ms[left][own])
    return scores


def _graph_network(fold: Fold, config: NNLPConfig) -> NetworkIntervals:
    platform = fold.source.platform
    rows = [Labelled(n.encoded, platform, n.latency_ms, n.name) for n in fold.train]
    model = fit(rows, replace(config, seed=fold.seed), on_epoch=fold.on_epoch)
    return model.intervals([n.encoded for n in fold.test], platform, COVERAGE)
