"""Which kernels to measure next for given networks: those that a bundle's measurements cover badly.

CM_O of the smart padding paper finds layers that are far from all measured ones; choosing
measurements by it is the paper's future work. Here the distance is that of the predictors'
`layer_coverage`, and a layer counts by what it adds to the uncertainty of its network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from latfarm_predictors.confidence.layer_coverage import layer_coverage, remedies
from latfarm_predictors.features.groups import VIEW
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.families import FAMILIES
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import Workload, workload
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.trust.network_trust import badly_covered, evidence_of

from latfarm_controller.errors import UsageError


@dataclass
class _Candidate:
    """A distinct kernel of the networks.

    Attributes:
        kernel: the kernel.
        workload: what it computes.
        share: its share of its networks' latencies, summed over all its places.
        width: width of its interval, as a share of its latency.
        nodes: names of its nodes.
    """

    kernel: Kernel
    workload: Workload
    share: float = 0.0
    width: float = 0.0
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class KernelChoice:
    """The kernels to measure.

    Attributes:
        kernels: the kernels, the one that helps most first.
        badly: number of distinct kernels of the networks that are badly covered.
        left: number of kernels that should be measured but exceed the budget.
    """

    kernels: tuple[Kernel, ...]
    badly: int
    left: int


def choose(
    predictor: PlatformPredictor,
    networks: Sequence[Graph],
    budget: int,
    *,
    layers: Collection[str] = (),
    family: str = "",
) -> KernelChoice:
    """The kernels of some networks that a bundle's measurements cover badly.

    With `layers` or `family`, the kernels of those nodes or of that family are chosen instead:
    well covered or not, but without those that were measured.

    Args:
        predictor: the bundle's predictor.
        networks: the networks; at least one.
        budget: largest number of kernels.
        layers: names of nodes.
        family: name of a family of kernels.

    Raises:
        UsageError: no network has such a layer, or there is no such family.
        NoConfidenceError: the bundle holds no measurements.
    """
    if family and family not in FAMILIES:
        raise UsageError(f"no kernel family {family!r}; known: {', '.join(FAMILIES)}")
    measured = evidence_of(predictor).table
    found = _candidates(predictor, networks)
    unknown = sorted(set(layers) - {name for each in found for name in each.nodes})
    if unknown:
        some = ", ".join(sorted({min(each.nodes) for each in found if each.nodes})[:8])
        raise UsageError(f"no layer {', '.join(unknown)}; some of the layers: {some}")
    covered = layer_coverage(measured, [each.workload for each in found])
    bad = badly_covered(covered, np.array([each.width for each in found]))
    if layers or family:
        asked = [
            (not layers or not each.nodes.isdisjoint(layers))
            and (not family or each.workload.family == family)
            for each in found
        ]
        wanted = np.array(asked, dtype=np.bool_) & (covered < 1.0)
    else:
        wanted = bad
    chosen = [found[row] for row in np.flatnonzero(wanted)]
    if not chosen:
        return KernelChoice((), int(bad.sum()), 0)
    # What a layer adds to the uncertainty of its network; at least a little, if it costs nothing.
    uncertain = [max(each.share * each.width, 1e-9) for each in chosen]
    works = [each.workload for each in chosen]
    place = {work: row for row, work in enumerate(works)}
    best = [place[r.workload] for r in remedies(measured, works, len(works), uncertain)]
    # Kernels that coverage cannot tell from an earlier one gain nothing, and are measured last.
    order = [*best, *(row for row in range(len(works)) if row not in set(best))]
    kernels = tuple(chosen[row].kernel for row in order[:budget])
    return KernelChoice(kernels, int(bad.sum()), len(chosen) - len(kernels))


def _candidates(predictor: PlatformPredictor, networks: Sequence[Graph]) -> list[_Candidate]:
    """The distinct kernels of all networks, without views, which take no time."""
    found: dict[tuple[object, ...], _Candidate] = {}
    for graph, answer in zip(networks, predictor.predict_many(networks), strict=True):
        for kernel, told in zip(split(graph, predictor.rules), answer.kernels, strict=True):
            if told.source == VIEW:
                continue
            work = workload(kernel)
            each = found.setdefault(work, _Candidate(kernel, work))
            each.share += told.latency_ms / answer.latency_ms
            low, high = told.interval_ms
            each.width = max(each.width, (high - low) / told.latency_ms)
            each.nodes |= set(told.nodes)
    return list(found.values())
