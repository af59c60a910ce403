"""Which kernels to measure next for given networks: the layers that a bundle covers badly.

CM_O of the smart padding paper finds layers far from everything measured; to choose measurements by
it is its future work. Here the distance is that of `layer_coverage.py`, and a layer weighs as much
as it adds to its network's doubt.
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
    """A distinct kernel; `share` and `width`: of its networks' latency, of its interval."""

    kernel: Kernel
    workload: Workload
    share: float = 0.0
    width: float = 0.0
    nodes: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class KernelChoice:
    """What to measure.

    Attributes:
        kernels: the one that helps most first.
        badly: how many distinct kernels of the networks are badly covered.
        left: how many of those asked for the budget leaves out.
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
    """The kernels of networks that a bundle covers badly.

    Args:
        predictor: whose measurements cover them.
        networks: whose kernels; at least one.
        budget: most kernels.
        layers: names of nodes: their kernels instead, well covered or not, unless measured.
        family: kernels of this family instead, well covered or not, unless measured.

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
        raise UsageError(f"no layer {', '.join(unknown)}; some that there are: {some}")
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
    # what a layer adds to its network's doubt; the floor keeps a layer that costs nothing in it
    doubt = [max(each.share * each.width, 1e-9) for each in chosen]
    works = [each.workload for each in chosen]
    place = {work: row for row, work in enumerate(works)}
    best = [place[r.workload] for r in remedies(measured, works, len(works), doubt)]
    # twins in all that coverage looks at gain nothing by each other, and are measured last
    order = [*best, *(row for row in range(len(works)) if row not in set(best))]
    kernels = tuple(chosen[row].kernel for row in order[:budget])
    return KernelChoice(kernels, int(bad.sum()), len(chosen) - len(kernels))


def _candidates(predictor: PlatformPredictor, networks: Sequence[Graph]) -> list[_Candidate]:
    """The distinct kernels of all networks that take time; views do not."""
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
