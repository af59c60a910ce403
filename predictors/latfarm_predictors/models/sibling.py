"""What is known of a board from a sibling's bundle: its latencies, to be scaled and put right.

Two fidelities (Kennedy and O'Hagan 2000; nn-Meter, Table 11: a sibling's predictors alone give
0-100 %, rebuilt 99.0 %): the new board's latency is taken for a non-negative multiple of what the
sibling would take, plus whatever a roofline can add, plus a Gaussian process on the rest. The
multiple and the additions are fitted together, so that a board that is unlike its "sibling" gives
it no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, Self

import numpy as np

from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.apart import on_image
from latfarm_predictors.models.base import ModelState, mean_size, out_of_fold
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import LEAST_HELP, Stack


class PlatformRegressors(Protocol):
    """The regressors of a platform, as far as a sibling needs them (see `KernelModels`)."""

    router: Router
    overall: Roofline
    stacks: dict[str, Stack]
    images: dict[str, Stack]


class Sibling:
    """Latencies of another board's fitted processes, without their deviations.

    Attributes:
        processes: by group of kernels, convolutions on images apart where they were learned so;
            what they have no process for is answered by `overall`.
    """

    kind = "sibling"

    def __init__(
        self, router: Router, overall: Roofline, processes: Mapping[str, RooflineGP]
    ) -> None:
        self._router = router
        self._overall = overall
        self.processes = dict(processes)

    @classmethod
    def of(cls, platform: PlatformRegressors) -> Self:
        """What a platform's regressors know."""
        return cls(
            platform.router,
            platform.overall,
            {name: stack.gp.mean_only() for name, stack in platform.stacks.items()}
            | {_images(name): stack.gp.mean_only() for name, stack in platform.images.items()},
        )

    def within(self, table: Table) -> Self:
        """The same with nothing but what kernels like those of a table need."""
        kinds = set(zip(table.families, table.types, strict=True))
        groups = {self._router.route(*kind).group for kind in kinds}
        groups |= set(map(_images, groups))
        return type(self)(
            self._router,
            self._overall,
            {name: model for name, model in self.processes.items() if name in groups},
        )

    def group_of(self, family: str, kernel_type: str) -> str:
        """The group whose process answers for a kernel; "" where none does."""
        group = self._router.route(family, kernel_type).group
        return group if group in self.processes else ""

    def latency_ms(self, table: Table) -> Array:
        """Latencies on the sibling, shape (n,)."""
        rows: dict[str, list[int]] = {}
        for row, kind in enumerate(zip(table.families, table.types, strict=True)):
            rows.setdefault(self.group_of(*kind), []).append(row)
        found = np.empty(len(table))
        for group, members in rows.items():
            index = np.array(members, dtype=np.intp)
            part = table.take(index) if len(rows) > 1 else table
            model = self.processes.get(group)
            found[index] = (
                self._overall.latency_ms(part) if model is None else model.latency_ms(part)
            )
            images = self.processes.get(_images(group))
            if images is not None and len(apart := on_image(part)):
                found[index[apart]] = images.latency_ms(part.take(apart))
        return found

    def state(self) -> ModelState:
        """As plain data."""
        return ModelState(
            self.kind,
            values={"router": self._router.to_json(), "groups": self._names()},
            parts={
                "overall": self._overall.state(),
                **{f"gp-{name}": self.processes[name].state() for name in self._names()},
            },
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """Read what `state` gave."""
        names: Iterable[str] = state.values["groups"]
        return cls(
            Router.from_json(state.values["router"]),
            Roofline.from_state(state.parts["overall"], cls.from_state),
            {
                name: RooflineGP.from_state(state.parts[f"gp-{name}"], cls.from_state)
                for name in names
            },
        )

    def _names(self) -> list[str]:
        return sorted(self.processes)


def _images(group: str) -> str:
    """What the process of a group's convolutions on images is called."""
    return f"{group}-images"


def fit_roofline(table: Table, latency: Array, noise: Array, sibling: Sibling | None) -> Roofline:
    """A roofline over all kernels: beside the sibling's latency, a multiple of it, or without.

    Whichever does best out of fold, a sibling by a tenth at least; the factors of groups with few
    rows are taken on it.
    """
    if sibling is None:
        return Roofline().fit(table, latency, noise)

    def error(make: Callable[[], Roofline]) -> float:
        found, _ = out_of_fold(
            lambda part, times, doubt: make().fit(part, times, doubt),
            table,
            latency,
            noise,
            folds=5,
        )
        return mean_size(found, latency)

    best: Callable[[], Roofline] = Roofline
    least = LEAST_HELP * error(best)
    for scaled in (True, False):
        make = partial(Roofline, sibling=sibling, scaled=scaled)
        size = error(make)
        if size < least:
            best, least = make, size
    return best().fit(table, latency, noise)
