"""What the bundle of a sibling platform says of a new platform: latencies to scale and correct.

This is a model of two fidelities (Kennedy and O'Hagan 2000). A sibling's predictors alone are not
enough: nn-Meter, Table 11, finds 0 to 100 % of predictions right with them, and 99.0 % after it
built new ones. Here the latency of a kernel on the new platform is a non-negative multiple of its
latency on the sibling platform, plus the terms of a roofline, plus a Gaussian process on the rest.
The multiple and the terms are fitted together, so that a platform that is unlike its sibling gives
it no weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, Self

import numpy as np

from latfarm_predictors.features.groups import Router
from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import (
    ModelState,
    Observations,
    capped_log_error,
    out_of_fold,
)
from latfarm_predictors.models.image_split import on_image
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.roofline_gp import RooflineGP
from latfarm_predictors.models.stack import LEAST_HELP, Stack


class PlatformRegressors(Protocol):
    """The regressors of a platform from which a `Sibling` is made; `KernelModels` has them.

    Attributes:
        router: which group a kernel belongs to.
        overall: roofline over all kernels.
        stacks: regressor of each group.
        images: regressor of each group's convolutions on images, where those are learned apart.
    """

    router: Router
    overall: Roofline
    stacks: dict[str, Stack]
    images: dict[str, Stack]


class Sibling:
    """Latencies of kernels on a sibling platform, without their deviations.

    Args:
        router: which group a kernel belongs to.
        overall: roofline over all kernels; it predicts kernels whose group has no process.
        processes: Gaussian process of each group, and of its convolutions on images where those
            were learned apart.

    Attributes:
        processes: as given.
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
        """The latencies that a platform's regressors predict."""
        return cls(
            platform.router,
            platform.overall,
            {name: stack.gp.mean_only() for name, stack in platform.stacks.items()}
            | {_images(name): stack.gp.mean_only() for name, stack in platform.images.items()},
        )

    def within(self, table: Table) -> Self:
        """The same sibling with only those processes that kernels like those of a table need."""
        kinds = set(zip(table.families, table.types, strict=True))
        groups = {self._router.route(*kind).group for kind in kinds}
        groups |= set(map(_images, groups))
        return type(self)(
            self._router,
            self._overall,
            {name: model for name, model in self.processes.items() if name in groups},
        )

    def group_of(self, family: str, kernel_type: str) -> str:
        """The group whose process predicts a kernel; "" where none does."""
        group = self._router.route(family, kernel_type).group
        return group if group in self.processes else ""

    def latency_ms(self, table: Table) -> Array:
        """Latency in ms of each kernel on the sibling platform, shape (n,)."""
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
        """What is known of the sibling platform, as plain data."""
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
        """The sibling platform whose state this is."""
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
    """Name of the process of a group's convolutions on images."""
    return f"{group}-images"


def fit_roofline(seen: Observations, sibling: Sibling | None) -> Roofline:
    """A roofline over all kernels, which may build on a sibling platform.

    Three rooflines compete by their out-of-fold errors: one without the sibling, one that is a
    multiple of the sibling's latency, one that has this multiple beside its other terms. A roofline
    with the sibling must have an error smaller by a tenth to win.

    Args:
        seen: all measured kernels.
        sibling: the sibling platform, if there is one.
    """
    if sibling is None:
        return Roofline().fit(seen.table, seen.latency_ms, seen.noise)

    def error(make: Callable[[], Roofline]) -> float:
        found, _ = out_of_fold(
            lambda table, latency_ms, noise: make().fit(table, latency_ms, noise), seen, folds=5
        )
        return capped_log_error(found, seen.latency_ms)

    best: Callable[[], Roofline] = Roofline
    least = LEAST_HELP * error(best)
    for scaled in (True, False):
        make = partial(Roofline, sibling=sibling, scaled=scaled)
        size = error(make)
        if size < least:
            best, least = make, size
    return best().fit(seen.table, seen.latency_ms, seen.noise)
