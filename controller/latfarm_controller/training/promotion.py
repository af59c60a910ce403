"""Whether a model may take the place of the promoted one. Decides without any file or clock.

Both models predict the networks of one frozen set, which neither was trained on. The difference is
judged by a bootstrap over these networks, with the errors of both models on the same network drawn
together (Efron 1979). A model is refused only for what lies beyond this noise:

- its mean error is larger, with the whole 95 % interval of the difference above zero, or
- fewer measured latencies lie in its intervals, with the whole interval of that difference below
  zero, and these are fewer than the intervals promise. A model whose intervals held more than they
  promise may give that up, because narrower intervals are worth more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from latfarm_predictors.judging import PairedDifference, paired_difference

PROMISED = 0.9
"""Share of measured latencies that the judged intervals promise to hold."""
LEAST_NETWORKS = 8
"""With fewer networks than this a bootstrap knows no noise, so that nothing is refused."""
WITHIN = 0.1
"""Relative error within which predictions are counted, as in NNLQP's Acc(10 %)."""


@dataclass(frozen=True)
class FrozenScores:
    """How one model predicts the networks of a frozen set.

    Attributes:
        set_name: name of the set.
        errors: relative error of each prediction, 0 or more, by the hash of the network.
        covered: whether each measured latency lies in the model's interval, by the same hashes.
    """

    set_name: str
    errors: Mapping[str, float] = field(default_factory=dict)
    covered: Mapping[str, bool] = field(default_factory=dict)

    @property
    def mean_error(self) -> float:
        """Mean relative error (MAPE as a share); there must be a network."""
        return fmean(self.errors.values())

    @property
    def within(self) -> float:
        """Share of the predictions within 10 %; there must be a network."""
        return fmean(float(error <= WITHIN) for error in self.errors.values())

    @property
    def coverage(self) -> float:
        """Share of the measured latencies that lie in their intervals; there must be a network."""
        return fmean(float(inside) for inside in self.covered.values())

    @property
    def sentence(self) -> str:
        """The scores for people."""
        return (
            f"{self.mean_error:.1%} mean error, {self.within:.0%} within {WITHIN:.0%}, "
            f"{PROMISED:.0%} intervals hold {self.coverage:.0%}, on {len(self.errors)} networks "
            f"of {self.set_name}"
        )

    def summary(self) -> dict[str, Any]:
        """The figures without those of single networks, as plain JSON types."""
        return {
            "frozen_set": self.set_name,
            "networks": len(self.errors),
            "mean_error": self.mean_error,
            "within10": self.within,
            "coverage": self.coverage,
            "promised_coverage": PROMISED,
        }

    def to_json(self) -> dict[str, Any]:
        """The scores as plain JSON types."""
        return {
            "frozen_set": self.set_name,
            "errors": dict(self.errors),
            "covered": dict(self.covered),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> FrozenScores | None:
        """Read what `to_json` wrote; None where there are no scores."""
        if not data or not data["errors"]:
            return None
        errors = {str(key): float(error) for key, error in data["errors"].items()}
        covered = {str(key): bool(inside) for key, inside in data["covered"].items()}
        return FrozenScores(str(data["frozen_set"]), errors, covered)


@dataclass(frozen=True)
class PromotionVerdict:
    """Whether a model may be promoted, and why.

    Attributes:
        allowed: whether it may.
        reasons: what speaks against it, or why nothing could be judged.
        error: mean error of the candidate less that of the promoted model; None if not judged.
        coverage: coverage of the candidate less that of the promoted model; None if not judged.
    """

    allowed: bool
    reasons: tuple[str, ...] = ()
    error: PairedDifference | None = None
    coverage: PairedDifference | None = None

    @property
    def judged(self) -> bool:
        """Whether both models were compared."""
        return self.error is not None

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain JSON types."""
        return {
            "allowed": self.allowed,
            "judged": self.judged,
            "reasons": list(self.reasons),
            "error_difference": _difference(self.error),
            "coverage_difference": _difference(self.coverage),
        }


def decide(candidate: FrozenScores | None, promoted: FrozenScores | None) -> PromotionVerdict:
    """Whether a candidate may be promoted.

    A candidate that cannot be compared is not refused: nothing says that it is worse.

    Args:
        candidate: how the candidate predicts the frozen set; None: it was not judged.
        promoted: the same of the model in use; None: there is none, or it was not judged.
    """
    if candidate is None or promoted is None:
        who = "the candidate" if candidate is None else "the model in use"
        return PromotionVerdict(True, (f"{who} was not judged by a frozen set",))
    if candidate.set_name != promoted.set_name:
        return PromotionVerdict(True, ("both models were judged by different frozen sets",))
    shared = sorted(set(candidate.errors) & set(promoted.errors))
    if len(shared) < LEAST_NETWORKS:
        few = f"{len(shared)} networks judge both models, and {LEAST_NETWORKS} are needed"
        return PromotionVerdict(True, (few,))
    error = paired_difference(
        [candidate.errors[key] for key in shared], [promoted.errors[key] for key in shared]
    )
    coverage = paired_difference(
        [float(candidate.covered[key]) for key in shared],
        [float(promoted.covered[key]) for key in shared],
    )
    reasons = []
    if error.low > 0.0:
        reasons.append(
            f"its mean error is {100 * error.difference:.2f} points larger "
            f"({_points(error)} at 95 %) on {len(shared)} networks of {candidate.set_name}"
        )
    held = fmean(float(candidate.covered[key]) for key in shared)
    if coverage.high < 0.0 and held < PROMISED:
        reasons.append(
            f"its {PROMISED:.0%} intervals hold {held:.0%}, {-100 * coverage.difference:.1f} "
            f"points less ({_points(coverage)} at 95 %) on {len(shared)} networks of "
            f"{candidate.set_name}"
        )
    return PromotionVerdict(not reasons, tuple(reasons), error, coverage)


def _points(found: PairedDifference) -> str:
    return f"{100 * found.low:+.2f} to {100 * found.high:+.2f}"


def _difference(found: PairedDifference | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {"difference": found.difference, "low": found.low, "high": found.high}
