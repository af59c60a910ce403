"""Whether transfers look like fusion on a platform, by the times of ops that are never fused.

An accelerator may move a model's inputs and outputs over a slow bus. Connecting two ops then saves
the transfer of the tensor between them, and inequation 1 holds for every pair. Two ops of the same
kind in a row, which no compiler computes together, save the transfer and nothing else. So they show
what a transfer costs.
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
"""Standard errors by which a saved time must exceed 0 to count as real."""


@dataclass
class Chain:
    """An op once and twice in a row, and what connecting saved in each round.

    Attributes:
        name: the op.
        once: the model with the op once.
        twice: the model with the op twice.
        saved_ms: what connecting saved in each round.
        alone_ms: the time of the op once in each round, without the empty model's.
    """

    name: str
    once: Graph
    twice: Graph
    saved_ms: list[float] = field(default_factory=list)
    alone_ms: list[float] = field(default_factory=list)

    @property
    def moved_mb(self) -> float:
        """Megabytes that connecting saves: the tensor in between goes neither out nor in again."""
        graph = self.once
        return sum(graph.type_of(t).size_bytes for t in (*graph.inputs, *graph.outputs)) / 1e6

    def told(self, times_ms: Mapping[str, float], empty_ms: float) -> None:
        """Keep a round, given by times per hash of the graph, if both times are there."""
        once, twice = times_ms.get(hash_of(self.once)), times_ms.get(hash_of(self.twice))
        if once is not None and twice is not None:
            self.saved_ms.append(2 * once - twice - empty_ms)
            self.alone_ms.append(once - empty_ms)


def chains(size: CaseSize) -> list[Chain]:
    """A pooling, whose tensors may have a layout of their own, and a softmax, which has none."""
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
    """What it costs to move a tensor out of the accelerator and in again.

    Shares and paces are None where nothing was measured.

    Attributes:
        costly: whether transfers cost so much that they look like fusion.
        share: the cost of a transfer as a share of an op's time.
        boundary_share: what the chain that saves most surely saves, as a share of an op's time. It
            includes conversions into the runtime's own layout and back, which are no cost of the
            kernel inside a network either.
        ms_per_mb: the cost of a transfer in ms per megabyte.
        kernel_ms: the time of the empty model's own op, which is no part of the cost of a call: two
            ops in one model pay once for the call and twice for the launch of a kernel.
    """

    costly: bool = False
    share: float | None = None
    boundary_share: float | None = None
    ms_per_mb: float | None = None
    kernel_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The costs as plain JSON types, for the campaign's outcome."""
        return {
            "costly": self.costly,
            "share": None if self.share is None else round(self.share, 4),
            "boundary_share": (
                None if self.boundary_share is None else round(self.boundary_share, 4)
            ),
            "ms_per_mb": None if self.ms_per_mb is None else round(self.ms_per_mb, 6),
        }


def transfers_of(found: Sequence[Chain]) -> Transfers:
    """The cost of a transfer: the least that any chain saved.

    All chains save the transfer. A chain saves more where its two ops share a layout of the
    runtime's own, or even run as one kernel.
    """
    rows, surely = [], []
    for chain in found:
        if len(chain.saved_ms) >= 2 and median(chain.alone_ms) > 0:
            saved_ms, alone_ms = median(chain.saved_ms), median(chain.alone_ms)
            error_ms = _SURENESS * standard_error(chain.saved_ms)
            sure = saved_ms - error_ms > 0 and saved_ms > COSTLY_SHARE * alone_ms
            rows.append((saved_ms / alone_ms, saved_ms / chain.moved_mb, sure))
            surely.append((saved_ms - error_ms) / alone_ms)
    if not rows:
        return Transfers()
    share, ms_per_mb, sure = min(rows)
    most_ms = max(median(chain.saved_ms) for chain in found if chain.saved_ms)
    return Transfers(sure, share, max(surely), max(ms_per_mb, 0.0), max(-most_ms, 0.0))
