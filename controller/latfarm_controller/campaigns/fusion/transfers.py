"""Do transfers pass for fusion here? Told from times alone, with ops that nothing fuses.

An accelerator that moves a model's inputs and outputs over a slow bus saves such a trip whenever
two ops are connected: inequation 1 then holds for every pair. The same op twice in a row, of a kind
that no compiler computes together, saves the trip and nothing else, so that it gives the cost away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of

from latfarm_controller.campaigns.fusion.decision import standard_error
from latfarm_controller.campaigns.fusion.operators import CaseSize
from latfarm_controller.campaigns.profiles.insight import COSTLY_SHARE

_SURENESS = 2.0


@dataclass
class Chain:
    """An op once and twice in a row, and what connecting it saved in each round, in ms."""

    name: str
    once: Graph
    twice: Graph
    saved_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)

    @property
    def moved_mb(self) -> float:
        """Megabytes that the chain need not move: the tensor in between, out and in again."""
        graph = self.once
        return sum(graph.type_of(t).size_bytes for t in (*graph.inputs, *graph.outputs)) / 1e6

    def told(self, times_ms: Mapping[str, float], empty_ms: float) -> None:
        """Keep a round, times by hash of the graph; one that lacks a time is left out."""
        once, twice = times_ms.get(hash_of(self.once)), times_ms.get(hash_of(self.twice))
        if once is not None and twice is not None:
            self.saved_ms.append(2 * once - twice - empty_ms)
            self.alone_ms.append(once - empty_ms)


def chains(size: CaseSize) -> list[Chain]:
    """A pooling, whose tensors may have a layout of their own, and a softmax, whose have none."""
    found = []
    for name in ("max_pool", "softmax"):
        graphs = []
        for length in (1, 2):
            b = GraphBuilder(f"{name} x{length}")
            x = b.input((1, size.channels, size.side, size.side))
            for _ in range(length):
                x = b.max_pool(x, 3, 1, "same") if name == "max_pool" else b.softmax(x, 1)
            graphs.append(b.build([x]))
        found.append(Chain(name, graphs[0], graphs[1]))
    return found


@dataclass(frozen=True)
class Transfers:
    """What moving a tensor out and in again costs: `share` of an op's call; `costly`: it decides.

    None: nothing was measured. `kernel_ms` is the empty model's own op, which is no part of what a
    call costs: two ops in one model pay for the call once, and for a kernel's launch twice.
    `boundary_share` is what the chain that saves most is sure to save: conversions into the
    runtime's own layout and back, besides the trip, which alone are no cost of the kernel either.
    """

    costly: bool = False
    share: float | None = None
    boundary_share: float | None = None
    ms_per_mb: float | None = None
    kernel_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """For the campaign's outcome."""
        return {
            "costly": self.costly,
            "share": None if self.share is None else round(self.share, 4),
            "boundary_share": (
                None if self.boundary_share is None else round(self.boundary_share, 4)
            ),
            "ms_per_mb": None if self.ms_per_mb is None else round(self.ms_per_mb, 6),
        }


def transfers_of(found: Sequence[Chain]) -> Transfers:
    """The least that any chain saved: a trip is saved by all, other things by some.

    Where two ops share a layout of the runtime's own, or even run as one, a chain saves more.
    """
    rows, surely = [], []
    for chain in found:
        if len(chain.saved_ms) >= 2 and median(chain.alone_ms) > 0:
            saved_ms, alone_ms = median(chain.saved_ms), median(chain.alone_ms)
            doubt_ms = _SURENESS * standard_error(chain.saved_ms)
            sure = saved_ms - doubt_ms > 0 and saved_ms > COSTLY_SHARE * alone_ms
            rows.append((saved_ms / alone_ms, saved_ms / chain.moved_mb, sure))
            surely.append((saved_ms - doubt_ms) / alone_ms)
    if not rows:
        return Transfers()
    share, ms_per_mb, sure = min(rows)
    most_ms = max(median(chain.saved_ms) for chain in found if chain.saved_ms)
    return Transfers(sure, share, max(surely), max(ms_per_mb, 0.0), max(-most_ms, 0.0))
