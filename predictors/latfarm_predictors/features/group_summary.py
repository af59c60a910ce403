"""How a group of kernels fared on rows that its model did not see, for reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A group's record, on rows its model did not see. Errors are fractions.

    Attributes:
        group: its name.
        rows: distinct kernels it was fitted on.
        families: kernel families among them.
        main_ops: main ops among them.
        model: gp, stack or roofline.
        gp_weight: share of the GP in the stack; 0 for a roofline.
        outliers: rows dropped as gross outliers.
        noise: log-sigma of latency that no feature explains.
        within5: share within +-5 %, out of fold.
        within10: share within +-10 %, out of fold.
        mean_ape: mean absolute relative error, out of fold.
        forest_within10: the forest baseline's share, out of bag; None without a forest.
        forest_mean_ape: the forest baseline's error.
    """

    group: str
    rows: int
    families: tuple[str, ...]
    main_ops: tuple[str, ...]
    model: str
    gp_weight: float
    outliers: int
    noise: float
    within5: float
    within10: float
    mean_ape: float
    forest_within10: float | None = None
    forest_mean_ape: float | None = None

    @staticmethod
    def from_json(given: Mapping[str, Any]) -> GroupSummary:
        """Read what `dataclasses.asdict` gave, lists in place of tuples."""
        names = {name: tuple(given[name]) for name in ("families", "main_ops")}
        return GroupSummary(**{**given, **names})
