"""What fusion detection found of each pair of ops, and how the black box fared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.kernels.fusion_ops import GATE

from latfarm_controller.campaigns.fusion.decision import Answer, Decision

Verdict = tuple[Answer, bool]
"""A pair's answer, and whether it depends on the size."""
CLEAR_ROUNDS, CLEAR_ODDS = 5, 4.0
LEAST_MISLED, MISLED_SHARE = 2, 0.05
"""What a large tensor must show to be believed against a chain: rounds, and log odds."""


@dataclass(frozen=True)
class PairResult:
    """What was found of a pair of ops.

    `time_fused` is the black box's answer, `graph_fused` the profile's (None: it cannot tell),
    `used` what kernels are cut by, and `source` what that rests on: profile, layer times
    (`fusion_decision.absorbed`), time, likelihood or prior. `layout`: what was saved may be a
    change of layout, see `FusionCampaign.results`. `paper`: inequation 1 as printed, from the same
    measurements. `untold`: why the profile cannot tell, where it was asked and cannot.
    """

    rule: tuple[str, str]
    cases: Mapping[str, Decision]
    time_fused: Answer
    size_dependent: bool
    graph_fused: bool | None
    used: bool
    source: str
    layout: bool = False
    error: str = ""
    paper: Answer = "undecided"
    untold: str = ""

    @property
    def judged(self) -> str:
        """The black box against the profile: hit, miss, false, right or undecided; empty: no truth.

        `false`: separate ops taken for fused; `right`: separate ones found to be so.
        """
        if self.graph_fused is None:
            return ""
        if self.time_fused == "undecided":
            return "undecided"
        if self.graph_fused:
            return "hit" if self.time_fused == "fused" else "miss"
        return "false" if self.time_fused == "fused" else "right"

    def to_json(self) -> dict[str, Any]:
        """For the campaign's outcome."""
        return {
            "pair": list(self.rule),
            "used": "fused" if self.used else "separate",
            "source": self.source,
            "time_fused": self.time_fused,
            "paper_fused": self.paper,
            "graph_fused": self.graph_fused,
            "graph_untold": self.untold,
            "judged": self.judged,
            "size_dependent": self.size_dependent,
            "layout": self.layout,
            "error": self.error,
            "cases": {
                name: {
                    "answer": d.answer,
                    "ratio": round(d.ratio, 3),
                    "gain_ms": round(d.gain_ms, 6),
                    "base_ms": round(d.base_ms, 6),
                    "connected_ms": round(d.connected_ms, 6),
                    "rounds": d.rounds,
                }
                for name, d in self.cases.items()
            },
        }


def score(results: Sequence[PairResult], *, paper: bool = False) -> dict[str, Any]:
    """Precision and recall of the black box, of `fused`, over the pairs that a profile settled.

    With `paper` of inequation 1 as printed in place of the campaign's method.

    An undecided pair counts as not found, so it lowers recall and leaves precision. None: no pair
    to tell it from.
    """
    return scored(
        [
            (r.graph_fused, r.paper if paper else r.time_fused)
            for r in results
            if r.graph_fused is not None
        ]
    )


def scored(known: Sequence[tuple[bool, str]]) -> dict[str, Any]:
    """Counts and shares of pairs, each its truth and what was found; see `score`."""
    hits = sum(truth and found == "fused" for truth, found in known)
    claimed = sum(found == "fused" for _, found in known)
    real = sum(truth for truth, _ in known)
    return {
        "pairs": len(known),
        "fused": real,
        "found": hits,
        "wrongly_fused": claimed - hits,
        "undecided": sum(found == "undecided" for _, found in known),
        "precision": hits / claimed if claimed else None,
        "recall": hits / real if real else None,
    }


def combined(decisions: Sequence[Decision], chained: Sequence[Decision] = ()) -> Verdict:
    """One answer from a pair's sizes, the larger ones last, and chains; whether sizes disagree.

    Chains count kernels, while at a size a kernel may save nothing or connecting something else:
    they hold. Only where the sizes tell that it depends on them, with all rounds taken and clearly,
    is a pair fused that is apart in a chain. Of sizes the clearest one holds.
    """
    settled = [d for d in decisions if d.answer != "undecided"]
    depends = len({d.answer for d in settled}) > 1
    best = max(settled, key=lambda d: d.margin, default=None)
    chain = chain_answer(chained)
    if chain == "undecided":
        return (best.answer if best else "undecided"), depends
    if chain == "separate" and depends:
        large = [d for d in decisions[len(decisions) // 2 :] if d.answer == "fused"]
        if any(d.rounds >= CLEAR_ROUNDS and d.margin >= CLEAR_ODDS for d in large):
            return "fused", True
    return chain, depends


def chain_answer(chained: Sequence[Decision]) -> Answer:
    """The first answer of a pair's chains: dense convolution stands for the op, and is first."""
    return next((d.answer for d in chained if d.answer != "undecided"), "undecided")


def sizes_mislead(told: Sequence[tuple[Answer, Answer]]) -> bool:
    """Whether times at sizes take pairs for fused that chains tell apart: more than by chance.

    A runtime that keeps tensors in a layout of its own saves two conversions wherever two ops are
    connected, be they of whatever kind.

    Args:
        told: of each pair what its sizes and what its chains say.
    """
    apart = [sized for sized, chain in told if chain == "separate" and sized != "undecided"]
    wrong = apart.count("fused")
    return wrong >= LEAST_MISLED and wrong > MISLED_SHARE * len(apart)


def plain_ops(told: Mapping[tuple[str, str], tuple[Answer, Answer]]) -> set[str]:
    """Ops next to which connecting was seen to save nothing, and was never seen to mislead.

    What connecting saves besides a kernel (a conversion into a layout, say) it saves where both
    ops have that cost. Such an op has none, so that times at sizes are good for two of them.

    Args:
        told: of each pair what its sizes and what its chains say.
    """
    plain, misled = set(), set()
    for pair, (sized, chain) in told.items():
        ops = set(map(without_gate, pair))
        if sized == "separate":
            plain |= ops
        elif sized == "fused" and chain == "separate":
            misled |= ops
    return plain - misled


def without_gate(op: str) -> str:
    """A product with a gate is the same kernel as any other where it stands by itself."""
    return op.removesuffix(GATE)
