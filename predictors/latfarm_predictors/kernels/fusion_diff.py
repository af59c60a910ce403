"""Compare two sets of fusion rules: differences, and how well one finds the other's fusions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from latfarm_predictors.kernels.fusion import FusionRules, Verdict

Pair = tuple[str, str]


@dataclass(frozen=True)
class RulesDiff:
    """The comparison of two sets of fusion rules.

    Attributes:
        left: the rules that are judged.
        right: the rules that are taken for the truth.
        differ: pairs that both list with different verdicts; the verdicts of left and right.
        only_left: pairs that only the left rules list, with their verdicts.
        only_right: pairs that only the right rules list, with their verdicts.
        compared: number of pairs that both list.
        precision: of the pairs that `left` says are fused, the share that really is; over the pairs
            that both list and about which the truth is decided. None if there is no such pair.
        recall: of the pairs that are really fused, the share that `left` says are fused, over the
            same pairs; an undecided pair counts as not found. None if there is no such pair.
    """

    left: FusionRules
    right: FusionRules
    differ: dict[Pair, tuple[Verdict, Verdict]]
    only_left: dict[Pair, Verdict]
    only_right: dict[Pair, Verdict]
    compared: int
    precision: float | None
    recall: float | None

    @property
    def equal(self) -> bool:
        """Whether both cut every network into the same kernels; unlisted pairs are not fused."""
        alone = (*self.only_left.values(), *self.only_right.values())
        fates = [("fused" in verdicts) for verdicts in self.differ.values()]
        return not any(fates) and "fused" not in alone and not self.options

    @property
    def options(self) -> dict[str, tuple[Any, Any]]:
        """Other fields that differ, by name, as (left, right)."""
        found = {}
        for name in ("multi_inbound", "multi_outbound", "attach_free_ops"):
            both = (getattr(self.left, name), getattr(self.right, name))
            if both[0] != both[1]:
                found[name] = both
        return found

    def to_json(self) -> dict[str, Any]:
        """The comparison as plain JSON types."""
        return {
            "left": self.left.platform,
            "right": self.right.platform,
            "equal": self.equal,
            "compared": self.compared,
            "differ": {"+".join(pair): list(both) for pair, both in sorted(self.differ.items())},
            "only_left": {"+".join(p): v for p, v in sorted(self.only_left.items())},
            "only_right": {"+".join(p): v for p, v in sorted(self.only_right.items())},
            "options": {name: list(both) for name, both in self.options.items()},
            "precision": self.precision,
            "recall": self.recall,
        }


def compare(left: FusionRules, right: FusionRules) -> RulesDiff:
    """Compare `left` with `right`, which is taken for the truth."""
    shared = left.pairs.keys() & right.pairs.keys()
    settled = [pair for pair in shared if right.pairs[pair] != "undecided"]
    claimed = {pair for pair in settled if left.pairs[pair] == "fused"}
    true = {pair for pair in settled if right.pairs[pair] == "fused"}
    return RulesDiff(
        left,
        right,
        {
            pair: (left.pairs[pair], right.pairs[pair])
            for pair in shared
            if left.pairs[pair] != right.pairs[pair]
        },
        {pair: verdict for pair, verdict in left.pairs.items() if pair not in shared},
        {pair: verdict for pair, verdict in right.pairs.items() if pair not in shared},
        len(shared),
        len(claimed & true) / len(claimed) if claimed else None,
        len(claimed & true) / len(true) if true else None,
    )
