"""The regressors of a platform's kernels, one for each group, and what predicts other kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.group_summary import GroupSummary
from latfarm_predictors.features.groups import LEAST_ROWS, VIEW, Route, Router
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.intervals import Mondrian
from latfarm_predictors.learned.group_models import GroupFitting, GroupModels
from latfarm_predictors.learned.kept_groups import KeptGroups
from latfarm_predictors.learned.op_spread import Op, op_spreads, read_spreads
from latfarm_predictors.models.base import ModelState, Observations
from latfarm_predictors.models.few_kernels import FewKernels, predict_few
from latfarm_predictors.models.image_split import predict_apart
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.scaled import Scaled
from latfarm_predictors.models.sibling import Sibling, fit_roofline
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.samples import Training

__all__ = ["GroupSummary", "KernelEstimates", "KernelModels", "OnProgress"]

OnProgress = Callable[[str, int, int], None]
"""Called with a stage of training, how many of its steps are done, and how many there are."""

_TOKEN_SIGMA = 0.1
"""Log-sigma for each op of a kernel's type that its group's regressor has never seen."""
_MOST_NOISE = 0.3**2
"""Kernels with a larger variance of the log latency do not count for conformal scores."""


def ignore_progress(stage: str, done: int, total: int) -> None:
    """An `OnProgress` that does nothing."""


@dataclass(frozen=True)
class KernelEstimates:
    """Estimates of n kernels.

    Attributes:
        table: the kernels.
        latency_ms: latency of each, shape (n,).
        sigma: log-sigma of each, shape (n,).
        sources: what each estimate rests on, as in `KernelAnswer`.
        labels: the label whose conformal scores apply to each; "" for those of all kernels.
        reasons: why a kernel counts as unknown; "" if it does not.
    """

    table: Table
    latency_ms: Array
    sigma: Array
    sources: tuple[str, ...]
    labels: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass
class KernelModels:
    """The fitted regressors of a platform. Not changed after they are fitted.

    Attributes:
        router: which group, and so which regressor, a kernel belongs to.
        overall: roofline over all kernels.
        stacks: regressor of each group with enough kernels.
        images: regressor of a group's convolutions on images, where they are learned apart.
        scaled: factor of each group with few kernels on the roofline over all.
        few: families of few kernels that have a roofline of their own, by group and family.
        forests: random forest of each group, for the baseline of forests; no part of the state.
        middle_ms: median latency of each group, which divides its small kernels from its large.
        scores: conformal scores by group and size.
        summaries: how well each group was predicted by models that had not seen its kernels.
        floor_ms: latency of a view, which does no work.
        op_spread: factor on the log-sigma of an op's kernels; 1 for ops that are not in it, as in
            bundles of older versions.
        unseen_ms: latency of each training kernel by a model without it; no part of the state.
        unseen_sigma: log-sigma of these latencies; no part of the state.
    """

    router: Router = field(default_factory=Router)
    overall: Roofline = field(default_factory=Roofline)
    stacks: dict[str, Stack] = field(default_factory=dict)
    images: dict[str, Stack] = field(default_factory=dict)
    scaled: dict[str, Scaled] = field(default_factory=dict)
    few: dict[str, Mapping[str, FewKernels]] = field(default_factory=dict)
    forests: dict[str, Forest] = field(default_factory=dict)
    middle_ms: dict[str, float] = field(default_factory=dict)
    scores: Mondrian = field(default_factory=Mondrian)
    summaries: tuple[GroupSummary, ...] = ()
    floor_ms: float = 1e-6
    op_spread: dict[Op, float] = field(default_factory=dict)
    unseen_ms: Array = field(default_factory=lambda: np.zeros(0))
    unseen_sigma: Array = field(default_factory=lambda: np.zeros(0))

    @staticmethod
    def fit(
        training: Training,
        *,
        floor_ms: float,
        seed: int,
        on_progress: OnProgress,
        sibling: Sibling | None = None,
        forests: bool = True,
        kept: KeptGroups | None = None,
    ) -> KernelModels:
        """Fit a regressor for every group, and predict every kernel by a model without it.

        Intervals are calibrated on these predictions, so they hold what a measurement would give,
        including its noise.

        Args:
            training: the measured kernels.
            floor_ms: latency of a view, which does no work.
            seed: random seed.
            on_progress: called with a stage, how many of its steps are done, and how many there
                are.
            sibling: a sibling platform; groups build on it where that makes them more precise.
            forests: whether to fit the baseline's forest of each group too.
            kept: groups that stay as an earlier training made them; None: all are fitted.

        Raises:
            NotEnoughDataError: there are fewer than 8 distinct kernels.
        """
        table = training.table
        _check_enough(training)
        models = KernelModels(floor_ms=floor_ms)
        router, groups = Router.of(table, training.devices)
        models.router = replace(router, free=training.free)
        seen = Observations(table, training.latency_ms, training.noise)
        models.overall = fit_roofline(seen, sibling) if kept is None else kept.overall
        models.unseen_ms = np.empty(len(table))
        models.unseen_sigma = np.empty(len(table))
        fitting = GroupFitting(training, models.overall, seed, sibling, forests)
        names = sorted(groups)
        summaries, labels, in_group = [], [""] * len(table), [""] * len(table)
        fresh = np.ones(len(table), dtype=np.bool_)
        for done, name in enumerate(names):
            on_progress("kernels", done, len(names))
            rows = np.array(groups[name], dtype=np.intp)
            if kept is None or name not in kept.names:
                found = fitting.fit(name, rows)
            else:
                found, fresh[rows] = kept.group(name, rows), False
            summaries.append(models._take_group(name, rows, found))
            models.middle_ms[name] = float(np.median(models.unseen_ms[rows]))
            for row in rows:
                in_group[row] = name
                labels[row] = models._label(name, float(models.unseen_ms[row]))
        if forests:
            models.forests[""] = Forest(seed=seed).fit(table, training.latency_ms)
        models.summaries = tuple(summaries)
        models._widen(training, in_group, fresh, {} if kept is None else kept.op_spread)
        models.scores = models._conformal_scores(training, labels)
        on_progress("kernels", len(names), len(names))
        return models

    def predict(self, table: Table) -> KernelEstimates:
        """Estimates of kernels; other regressors stand in for types that none was fitted to."""
        count = len(table)
        kinds = list(zip(table.families, table.types, strict=True))
        routes = {kind: self.router.route(*kind) for kind in set(kinds)}
        extra = {kind: self._extra_sigma(route, *kind) for kind, route in routes.items()}
        row_routes = [routes[kind] for kind in kinds]
        wanted: dict[str, tuple[list[int], list[str]]] = {}
        for row, route in enumerate(row_routes):
            rows, types = wanted.setdefault(route.group, ([], []))
            rows.extend([row] * len(route.types))
            types.extend(route.types)
        mean, square, within, weight = (np.zeros(count) for _ in range(4))
        for group, (rows, types) in wanted.items():
            index = np.array(rows, dtype=np.intp)
            part = table.take(index)
            if part.types != (asked := tuple(types)):  # regressors of other types stand in
                part = replace(part, types=asked)
            latency, sigma = self._predict_group(group, part)
            log_latency = np.log(latency)
            np.add.at(mean, index, log_latency)
            np.add.at(square, index, log_latency**2)
            np.add.at(within, index, sigma**2)
            np.add.at(weight, index, 1.0)
        mean, square, within = mean / weight, square / weight, within / weight
        within *= self._spreads(table) ** 2
        extra_sigma = np.array([extra[kind] for kind in kinds])
        sigma = np.sqrt(within + np.maximum(square - mean**2, 0.0) + extra_sigma**2)
        latency = np.exp(mean)
        views = np.array([route.source == VIEW for route in row_routes], dtype=np.bool_)
        latency = np.where(views, self.floor_ms, latency)
        sources = tuple([route.source or self._source(route.group) for route in row_routes])
        labels = tuple(
            [
                "" if source.startswith("fallback:") else self._label(route.group, value)
                for route, value, source in zip(row_routes, latency.tolist(), sources, strict=True)
            ]
        )
        reasons = tuple([route.reason for route in row_routes])
        return KernelEstimates(table, latency, sigma, sources, labels, reasons)

    def state(self) -> ModelState:
        """What was learned, as plain data, without forests and estimates of training kernels."""
        parts: dict[str, ModelState] = {"overall": self.overall.state()}
        parts |= {f"stack-{name}": model.state() for name, model in self.stacks.items()}
        parts |= {f"images-{name}": model.state() for name, model in self.images.items()}
        few = [(group, *own) for group, found in self.few.items() for own in found.items()]
        parts |= {f"few-{i}": own.roofline.state() for i, (*_, own) in enumerate(few)}
        return ModelState(
            "kernel-models",
            values={
                "router": self.router.to_json(),
                "stacks": list(self.stacks),
                "images": list(self.images),
                "scaled": {name: asdict(model) for name, model in self.scaled.items()},
                "few": [[group, family, own.sigma] for group, family, own in few],
                "middle_ms": dict(self.middle_ms),
                "floor_ms": self.floor_ms,
                "least": self.scores.least,
                "labels": list(self.scores.scores),
                "summaries": [asdict(summary) for summary in self.summaries],
                "op_spread": [[*op, factor] for op, factor in self.op_spread.items()],
            },
            arrays={f"scores-{i}": scores for i, scores in enumerate(self.scores.scores.values())},
            parts=parts,
        )

    @staticmethod
    def from_state(state: ModelState) -> KernelModels:
        """The regressors whose state this is."""
        values, parts = state.values, state.parts
        labels = [str(label) for label in values["labels"]]
        few: dict[str, dict[str, FewKernels]] = {}
        for i, (group, family, sigma) in enumerate(values.get("few", ())):  # new in version 6
            own = FewKernels(Roofline.from_state(parts[f"few-{i}"]), float(sigma))
            few.setdefault(str(group), {})[str(family)] = own
        return KernelModels(
            router=Router.from_json(values["router"]),
            overall=Roofline.from_state(parts["overall"], Sibling.from_state),
            stacks={
                n: Stack.from_state(parts[f"stack-{n}"], Sibling.from_state)
                for n in values["stacks"]
            },
            images={  # bundles of older versions have none
                n: Stack.from_state(parts[f"images-{n}"], Sibling.from_state)
                for n in values.get("images", ())
            },
            scaled={name: Scaled(**given) for name, given in values["scaled"].items()},
            few=dict(few),
            middle_ms={name: float(value) for name, value in values["middle_ms"].items()},
            scores=Mondrian(
                {label: state.arrays[f"scores-{i}"] for i, label in enumerate(labels)},
                int(values["least"]),
            ),
            summaries=tuple(GroupSummary.from_json(given) for given in values["summaries"]),
            floor_ms=float(values["floor_ms"]),
            op_spread=read_spreads(values.get("op_spread", ())),
        )

    def _take_group(self, name: str, rows: Rows, found: GroupModels) -> GroupSummary:
        """Take over what was learned of one group, given the rows of its kernels."""
        if found.stack is not None:
            self.stacks[name] = found.stack
        if found.images is not None:
            self.images[name] = found.images
        if found.scaled is not None:
            self.scaled[name] = found.scaled
        if found.few:
            self.few[name] = found.few
        if found.forest is not None:
            self.forests[name] = found.forest
        self.unseen_ms[rows], self.unseen_sigma[rows] = found.unseen_ms, found.unseen_sigma
        return found.summary

    def _widen(
        self,
        training: Training,
        groups: Sequence[str],
        fresh: npt.NDArray[np.bool_],
        before: Mapping[Op, float],
    ) -> None:
        """Learn the factor of each op, and apply it to the log-sigmas of the training kernels.

        Args:
            training: the measured kernels.
            groups: the group of each.
            fresh: whether its group was fitted now; the factors of others are in their log-sigmas.
            before: the factors of an earlier training, of which those of the others are taken over.
        """
        table = training.table
        error = np.abs(np.log(training.latency_ms / self.unseen_ms))
        sound = np.flatnonzero((training.noise < _MOST_NOISE) & fresh)
        ops = list(zip(table.families, table.main_ops, strict=True))
        self.op_spread = op_spreads(
            (error / self.unseen_sigma)[sound],
            [ops[row] for row in sound.tolist()],
            [groups[row] for row in sound.tolist()],
        )
        self.unseen_sigma = self.unseen_sigma * self._spreads(table)
        kept = {ops[row] for row in np.flatnonzero(~fresh).tolist()}
        self.op_spread |= {op: factor for op, factor in before.items() if op in kept}

    def _spreads(self, table: Table) -> Array:
        """Factor on the log-sigma of each kernel, shape (n,)."""
        ops = zip(table.families, table.main_ops, strict=True)
        return np.array([self.op_spread.get(op, 1.0) for op in ops], dtype=np.float64)

    def _conformal_scores(self, training: Training, labels: Sequence[str]) -> Mondrian:
        """Conformal scores of the training kernels, given the label of each."""
        error = np.abs(np.log(training.latency_ms / self.unseen_ms))
        # a latency that is mostly noise, as of a kernel as short as a call's jitter, judges nothing
        sound = np.flatnonzero(training.noise < _MOST_NOISE)
        if len(sound) < LEAST_ROWS:
            sound = np.arange(len(labels))
        scores = error[sound] / self.unseen_sigma[sound]
        return Mondrian.of(scores, [labels[row] for row in sound.tolist()])

    def _predict_group(self, group: str, table: Table) -> tuple[Array, Array]:
        """Latency in ms and log-sigma of kernels of one group, each of shape (n,)."""
        if group in self.stacks:
            stack, images = self.stacks[group], self.images.get(group)
            if images is not None:
                return predict_apart(images, stack, table)
            return predict_few(self.few.get(group, {}), table, *stack.predict(table))
        latency, sigma = self.overall.predict(table)
        own = self.scaled.get(group)
        if own is None:
            return latency, sigma
        return latency * np.exp(own.log_factor), np.full(len(table), own.sigma)

    def _source(self, group: str) -> str:
        """What estimates of a group rest on, as in `KernelAnswer`."""
        stack = self.stacks.get(group)
        if stack is None:
            return "fallback:roofline"
        return "gp" if stack.boosted is None else "stack"

    def _label(self, group: str, latency_ms: float) -> str:
        """The label whose conformal scores apply to a kernel of this group and latency."""
        return f"{group}/{'small' if latency_ms < self.middle_ms[group] else 'large'}"

    def _extra_sigma(self, route: Route, family: str, kernel_type: str) -> float:
        """Log-sigma that is added to a kernel because its type is new to the regressors."""
        unseen = self.router.unseen_tokens(family, kernel_type)
        return float(np.hypot(route.doubt, _TOKEN_SIGMA * unseen))


def _check_enough(training: Training) -> None:
    """Refuse a training set with too few kernels."""
    count = len(training.table)
    if count < LEAST_ROWS:
        unusable = f"; {training.left_out} more have no usable latency" if training.left_out else ""
        raise NotEnoughDataError(
            f"{count} distinct kernels measured, a predictor needs {LEAST_ROWS}{unusable}"
        )
