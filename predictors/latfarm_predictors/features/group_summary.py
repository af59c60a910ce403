"""GroupSummary: how well the regressor of a group predicts kernels that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """The errors of a group's regressor on kernels that it was not fitted on, as fractions.

    Attributes:
        group: name of the group.
        rows: number of different kernels that it was fitted on.
        families: kernel families among them.
        main_ops: main ops among them.
        model: gp, stack or roofline.
        gp_weight: weight of the Gaussian process in the stack; 0 for a roofline.
        outliers: number of rows that were dropped as gross outliers.
        noise: log-sigma of the latency that no feature explains.
        within5: share of predictions within +-5 %, out of fold.
        within10: share of predictions within +-10 %, out of fold.
        mean_ape: mean absolute relative error, out of fold.
        forest_within10: share of the forest baseline's predictions within +-10 %, out of bag; None
            without a forest.
        forest_mean_ape: mean absolute relative error of the forest baseline.
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
        """Read what `dataclasses.asdict` made, with lists instead of tuples."""
        names = {name: tuple(given[name]) for name in ("families", "main_ops")}
        return GroupSummary(**{**given, **names})
