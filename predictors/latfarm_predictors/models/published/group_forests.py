"""Random forests on the groups of our own regressors, to compare regressors on the same kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from latfarm_predictors.features.groups import joined_group
from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.trees.forest import Forest


class GroupForests:
    """Fitted forests, one for each group of kernels.

    Args:
        forests: forest of each group. The one named "" has seen all kernels and predicts those
            whose group has none.
        joined: for each group, the group whose forest predicts it; small groups are joined. Bundles
            of older versions name fewer groups, see `groups.joined_group`.
    """

    kind = "group-forests"

    def __init__(self, forests: Mapping[str, Forest], joined: Mapping[str, str]) -> None:
        self.forests = dict(forests)
        self.joined = dict(joined)

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`."""
        table = as_table(workloads)
        latency, sigma = np.empty(len(table)), np.empty(len(table))
        groups: dict[str, list[int]] = {}
        for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
            name = joined_group(self.joined, family, kind)
            groups.setdefault(name if name in self.forests else "", []).append(row)
        for name, rows in groups.items():
            index = np.array(rows, dtype=np.intp)
            latency[index], sigma[index] = self.forests[name].predict(table.take(index))
        return latency, sigma

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(
            self.kind,
            values={"forests": list(self.forests), "joined": dict(self.joined)},
            parts={f"forest-{name or 'all'}": f.state() for name, f in self.forests.items()},
        )

    @staticmethod
    def from_state(state: ModelState) -> GroupForests:
        """The forests whose state this is."""
        return GroupForests(
            {
                name: Forest.from_state(state.parts[f"forest-{name or 'all'}"])
                for name in state.values["forests"]
            },
            state.values["joined"],
        )
