"""The report of one part of `benchmarks.fuzzing.trust`: cases, outcomes and violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

MOST_VIOLATIONS = 20
"""How many violations a report prints; the others are counted."""


@dataclass
class PartReport:
    """The outcomes of the cases of one part.

    Attributes:
        seed: the random seed; the same seed and count make the same cases.
        outcomes: number of cases by outcome, for example by the code of the error.
        violations: one line for each case that broke a promise; it must name the case.
        figures: further figures, as plain JSON types, for example the slowest case.
    """

    seed: int
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    figures: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """The report as plain JSON types."""
        return {
            "cases": self.outcomes.total(),
            "seed": self.seed,
            "outcomes": dict(self.outcomes.most_common()),
            **self.figures,
            "violations": len(self.violations),
            "first_violations": self.violations[:MOST_VIOLATIONS],
        }


Run = Callable[..., PartReport]
"""Runs a part: takes the number of cases and the random seed. A part whose cases are independent of
one another also takes `jobs`, the number of processes that share them."""
