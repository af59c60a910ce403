"""What fusion detection found about each pair of ops, and how well times alone did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from latfarm_predictors.kernels.fusion_ops import GATE

from latfarm_controller.campaigns.fusion.decision import Answer, Decision

Verdict = tuple[Answer, bool]
"""A pair's answer, and whether it depends on the size."""
CLEAR_ROUNDS, CLEAR_ODDS = 5, 4.0
"""What a large tensor must show to overrule a chain: at least so many rounds and such log odds."""
LEAST_MISLED, MISLED_SHARE = 2, 0.05
"""Times at sizes are misleading where they take at least so many pairs, and more than this share of
the pairs that chains tell apart, for fused."""


@dataclass(frozen=True)
class PairResult:
    """What was found about a pair of ops.

    Attributes:
        rule: the names of the pair in fusion rules.
        cases: what the times of each test case say.
        time_fused: the answer of times alone.
        size_dependent: whether the answers at different sizes differ.
        graph_fused: the profile's answer; None where it has none.
        used: whether networks are cut into kernels as if the pair were fused.
        source: what `used` rests on: profile, layer times (`profile_layers.absorbed`), time,
            likelihood or prior.
        layout: whether connecting the two ops may save a change of layout (see `verdicts`).
        error: why the pair could not be measured.
        paper: the answer of inequation 1 as printed, from the same measurements.
        untold: why the profile has no answer, where it was asked.
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
        """The answer of times compared with that of the profile; empty where there is no profile.

        `hit`: fused, and found. `miss`: fused, but taken for separate. `false`: separate, but taken
        for fused. `right`: separate, and found. `undecided`: times have no answer.
        """
        if self.graph_fused is None:
            return ""
        if self.time_fused == "undecided":
            return "undecided"
        if self.graph_fused:
            return "hit" if self.time_fused == "fused" else "miss"
        return "false" if self.time_fused == "fused" else "right"

    def to_json(self) -> dict[str, Any]:
        """The pair as plain JSON types, for the campaign's outcome."""
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
    """Precision and recall of the answer `fused` by times, over the pairs that a profile settled.

    An undecided pair counts as not found: it lowers recall, but not precision. A share is None
    where there is no pair to tell it from.

    Args:
        results: what was found about all pairs.
        paper: judge inequation 1 as printed instead of the campaign's method.
    """
    return scored(
        [
            (r.graph_fused, r.paper if paper else r.time_fused)
            for r in results
            if r.graph_fused is not None
        ]
    )


def scored(known: Sequence[tuple[bool, str]]) -> dict[str, Any]:
    """The counts and shares of `score`.

    Args:
        known: for each pair whether it is fused in truth, and the answer that was found.
    """
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
    """One answer from a pair's times at its sizes and along chains, and whether sizes disagree.

    Chains count kernels. At a size, running as one kernel may save nothing, or connecting may save
    something else; so the answer of chains comes first. There is one exception: a pair that is
    separate in a chain counts as fused where the sizes disagree and a large one says so clearly in
    enough rounds. Without an answer of chains, that of the clearest size is taken.

    Args:
        decisions: at each size, the larger ones last.
        chained: along each chain.
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
    """The first answer of a pair's chains; dense convolution comes first and stands for its op."""
    return next((d.answer for d in chained if d.answer != "undecided"), "undecided")


def sizes_mislead(told: Sequence[tuple[Answer, Answer]]) -> bool:
    """Whether times at sizes take pairs for fused that are separate in chains, beyond chance.

    It is so on a runtime that keeps tensors in a layout of its own: connecting two ops of any kind
    saves two conversions.

    Args:
        told: for each pair the answer of its sizes and that of its chains.
    """
    apart = [sized for sized, chain in told if chain == "separate" and sized != "undecided"]
    wrong = apart.count("fused")
    return wrong >= LEAST_MISLED and wrong > MISLED_SHARE * len(apart)


def plain_ops(told: Mapping[tuple[str, str], tuple[Answer, Answer]]) -> set[str]:
    """Ops of pairs that are separate by their times, without ops of pairs whose times mislead.

    What connecting two ops saves besides a kernel, for example a conversion of layout, is saved
    only where both ops have that cost. A plain op does not have it, so that times at sizes can be
    trusted for pairs of two plain ops.

    Args:
        told: for each pair the answer of its sizes and that of its chains.
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
    """The op's name without the mark of a gate: alone, such a product is the same kernel as any."""
    return op.removesuffix(GATE)
