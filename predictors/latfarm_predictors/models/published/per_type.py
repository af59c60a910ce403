"""One model for each kind of kernel, as the papers train them, and a roofline for all others.

ANNETTE and the smart padding paper (section III-C) train a model for each layer type, nn-Meter for
each kernel. A kind with fewer than 8 measured kernels has no model: ANNETTE's roofline over all
kernels predicts it. (nn-Meter's code predicts 0 ms for such a kernel.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState, Regressor, check_targets
from latfarm_predictors.models.published.annette import AnnetteRoofline, RefinedRoofline
from latfarm_predictors.models.published.annette_forest import Mixed, Statistical
from latfarm_predictors.models.published.nn_meter import KernelForest, kernel_kinds

LEAST_ROWS = 8
"""A kind with fewer measured kernels has no model of its own."""
_TREES = 100
"""Number of trees of a forest of one kind."""


def layer_types(table: Table) -> list[str]:
    """ANNETTE's layer type of each kernel: convolutions by kind of grouping, others by main op."""
    rows = zip(table.families, table.main_ops, strict=True)
    return [family if family.endswith("conv") else op for family, op in rows]


@dataclass(frozen=True)
class Recipe:
    """How a baseline sorts kernels into kinds, and the model of a kind.

    Attributes:
        kinds: gives the kind of each kernel of a table.
        make: makes an unfitted model for a kind, given a random seed.
        model: class of these models.
    """

    kinds: Callable[[Table], list[str]]
    make: Callable[[str, int], Regressor]
    model: type[Regressor]


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "nn-meter": Recipe(
            kernel_kinds, lambda kind, seed: KernelForest(kind, seed=seed), KernelForest
        ),
        "annette-roofline": Recipe(layer_types, lambda *_: AnnetteRoofline(), AnnetteRoofline),
        "annette-refined": Recipe(layer_types, lambda *_: RefinedRoofline(), RefinedRoofline),
        "annette-statistical": Recipe(
            layer_types, lambda _, seed: Statistical(trees=_TREES, seed=seed), Statistical
        ),
        "annette-mixed": Recipe(layer_types, lambda _, seed: Mixed(trees=_TREES, seed=seed), Mixed),
    }
)
"""The baselines that are made of one model for each kind of kernel, by name."""


class PerType:
    """One model for each kind of kernel. Needs 3 rows.

    Args:
        recipe: one of `RECIPES`.
        seed: random seed of every model.

    Attributes:
        recipe: as given.
        models: model of each kind that has one.
        rest: roofline over all kernels, for the other kinds.
    """

    kind = "per-type"

    def __init__(self, recipe: str, *, seed: int = 0) -> None:
        self.recipe = recipe
        self._seed = seed
        self.models: dict[str, Regressor] = {}
        self.rest = AnnetteRoofline()

    def fit(
        self,
        workloads: Sequence[Workload] | Table,
        latency_ms: npt.ArrayLike,
        noise: npt.ArrayLike | None = None,
    ) -> Self:
        """See `Regressor.fit`; noise is not used, as in the papers."""
        table = as_table(workloads)
        latency, _ = check_targets(table, latency_ms, noise, least=3)
        recipe = RECIPES[self.recipe]
        self.rest.fit(table, latency)
        for kind, rows in _rows(recipe.kinds(table)).items():
            if len(rows) >= LEAST_ROWS:
                model = recipe.make(kind, self._seed)
                self.models[kind] = model.fit(table.take(rows), latency[rows])
        return self

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`: kinds and what their models chose are kept."""
        table = as_table(workloads)
        other = type(self)(self.recipe, seed=self._seed)
        other.rest = self.rest.refit(table, latency_ms, noise)
        found = _rows(RECIPES[self.recipe].kinds(table))
        for kind, model in self.models.items():
            rows = found.get(kind)
            if rows is not None and len(rows) >= 3:
                other.models[kind] = model.refit(table.take(rows), latency_ms[rows], noise[rows])
        return other

    def predict(self, workloads: Sequence[Workload] | Table) -> tuple[Array, Array]:
        """See `Regressor.predict`."""
        table = as_table(workloads)
        latency, sigma = np.empty(len(table)), np.empty(len(table))
        for kind, rows in _rows(RECIPES[self.recipe].kinds(table)).items():
            model = self.models.get(kind, self.rest)
            latency[rows], sigma[rows] = model.predict(table.take(rows))
        return latency, sigma

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        return ModelState(
            self.kind,
            values={"recipe": self.recipe, "kinds": list(self.models)},
            parts={
                "rest": self.rest.state(),
                **{f"of-{kind}": model.state() for kind, model in self.models.items()},
            },
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = cls(str(state.values["recipe"]))
        model.rest = AnnetteRoofline.from_state(state.parts["rest"])
        of_kind = RECIPES[model.recipe].model
        model.models = {
            kind: of_kind.from_state(state.parts[f"of-{kind}"]) for kind in state.values["kinds"]
        }
        return model


def _rows(kinds: Sequence[str]) -> dict[str, npt.NDArray[np.intp]]:
    """The rows of each kind."""
    found: dict[str, list[int]] = {}
    for row, kind in enumerate(kinds):
        found.setdefault(kind, []).append(row)
    return {kind: np.array(rows, dtype=np.intp) for kind, rows in found.items()}
