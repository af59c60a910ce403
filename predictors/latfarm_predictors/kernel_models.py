"""The regressors of a platform, one a group, with their out-of-fold record and fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.groups import LEAST_ROWS, VIEW, Route, Router, family_group
from latfarm_predictors.intervals import Mondrian
from latfarm_predictors.models.base import State, robust_sigma
from latfarm_predictors.models.forest import Forest
from latfarm_predictors.models.roofline import Roofline
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.samples import Training
from latfarm_predictors.table import Array, Rows, Table

Report = Callable[[str, int, int], None]
"""Called with a stage, how many of its steps are done, and how many there are."""

_TOKEN_DOUBT = 0.1
_LEAST_SIGMA = 0.15
_MOST_NOISE = 0.3**2


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


@dataclass(frozen=True)
class KernelEstimates:
    """Estimates of n kernels.

    Attributes:
        table: the kernels.
        latency_ms: shape (n,).
        sigma: log-sigma, shape (n,).
        sources: what each rests on.
        labels: whose conformal scores apply; "" for all kernels'.
        reasons: why a kernel counts as unknown; "" when it does not.
    """

    table: Table
    latency_ms: Array
    sigma: Array
    sources: tuple[str, ...]
    labels: tuple[str, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Scaled:
    """A group with too few rows: the roofline over all kernels times the group's own factor."""

    log_factor: float
    sigma: float


@dataclass
class KernelModels:
    """Fitted regressors; see `fit`. Not changed afterwards."""

    router: Router = field(default_factory=Router)
    overall: Roofline = field(default_factory=Roofline)
    stacks: dict[str, Stack] = field(default_factory=dict)
    scaled: dict[str, _Scaled] = field(default_factory=dict)
    forests: dict[str, Forest] = field(default_factory=dict)
    middle_ms: dict[str, float] = field(default_factory=dict)
    scores: Mondrian = field(default_factory=Mondrian)
    summaries: tuple[GroupSummary, ...] = ()
    floor_ms: float = 1e-6
    unseen_ms: Array = field(default_factory=lambda: np.zeros(0))
    unseen_sigma: Array = field(default_factory=lambda: np.zeros(0))

    @staticmethod
    def fit(training: Training, *, floor_ms: float, seed: int, report: Report) -> KernelModels:
        """Fit every group's stack and forest, and record how each row fared out of fold.

        `unseen_ms` and `unseen_sigma` hold each training row's estimate by a model without it.
        Intervals calibrated on them cover what a measurement would say, its noise included.

        Raises:
            NotEnoughDataError: fewer than 8 distinct kernels.
        """
        table = training.table
        if len(table) < LEAST_ROWS:
            raise NotEnoughDataError(
                f"{len(table)} distinct kernels measured, a predictor needs {LEAST_ROWS}"
            )
        models = KernelModels(floor_ms=floor_ms)
        models.router, groups = Router.of(table)
        models.overall.fit(table, training.latency_ms, training.noise)
        models.unseen_ms = np.empty(len(table))
        models.unseen_sigma = np.empty(len(table))
        names = sorted(groups)
        summaries, labels = [], [""] * len(table)
        for done, name in enumerate(names):
            report("kernels", done, len(names))
            rows = np.array(groups[name], dtype=np.intp)
            summaries.append(models._fit_group(name, rows, training, seed))
            models.middle_ms[name] = float(np.median(models.unseen_ms[rows]))
            for row in rows:
                labels[row] = models._label(name, float(models.unseen_ms[row]))
        models.forests[""] = Forest(seed=seed).fit(table, training.latency_ms)
        models.summaries = tuple(summaries)
        error = np.abs(np.log(training.latency_ms / models.unseen_ms))
        # labels that are mostly noise (kernels as short as the call's jitter) judge no model
        sound = np.flatnonzero(training.noise < _MOST_NOISE)
        if len(sound) < LEAST_ROWS:
            sound = np.arange(len(table))
        models.scores = Mondrian.of(
            error[sound] / models.unseen_sigma[sound], [labels[row] for row in sound]
        )
        report("kernels", len(names), len(names))
        return models

    def predict(self, table: Table) -> KernelEstimates:
        """Estimate every kernel, standing in where its like was never measured."""
        count = len(table)
        kinds = list(zip(table.families, table.types, strict=True))
        routes = {kind: self.router.route(*kind) for kind in set(kinds)}
        doubts = {kind: self._doubt(route, *kind) for kind, route in routes.items()}
        row_routes = [routes[kind] for kind in kinds]
        wanted: dict[str, tuple[list[int], list[str]]] = {}
        for row, route in enumerate(row_routes):
            rows, types = wanted.setdefault(route.group, ([], []))
            rows.extend([row] * len(route.types))
            types.extend(route.types)
        mean, square, within, weight = (np.zeros(count) for _ in range(4))
        for group, (rows, types) in wanted.items():
            index = np.array(rows, dtype=np.intp)
            latency, sigma = self._ask(group, replace(table.take(index), types=tuple(types)))
            log_latency = np.log(latency)
            np.add.at(mean, index, log_latency)
            np.add.at(square, index, log_latency**2)
            np.add.at(within, index, sigma**2)
            np.add.at(weight, index, 1.0)
        mean, square, within = mean / weight, square / weight, within / weight
        doubt = np.array([doubts[kind] for kind in kinds])
        sigma = np.sqrt(within + np.maximum(square - mean**2, 0.0) + doubt**2)
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

    def predict_forest(self, table: Table) -> Array:
        """Latency in ms by the forest baseline, shape (n,)."""
        out = np.empty(len(table))
        groups: dict[str, list[int]] = {}
        for row, (family, kind) in enumerate(zip(table.families, table.types, strict=True)):
            name = family_group(family, kind)
            name = self.router.joined.get(name, "")
            groups.setdefault(name if name in self.forests else "", []).append(row)
        for name, rows in groups.items():
            index = np.array(rows, dtype=np.intp)
            out[index] = self.forests[name].predict(table.take(index))[0]
        return out

    def state(self) -> State:
        """What was learned, as plain data; out-of-fold estimates are not kept."""
        parts: dict[str, State] = {"overall": self.overall.state()}
        parts |= {f"stack-{name}": model.state() for name, model in self.stacks.items()}
        parts |= {f"forest-{name or 'all'}": model.state() for name, model in self.forests.items()}
        return State(
            "kernel-models",
            values={
                "router": self.router.to_json(),
                "stacks": list(self.stacks),
                "forests": list(self.forests),
                "scaled": {name: asdict(model) for name, model in self.scaled.items()},
                "middle_ms": dict(self.middle_ms),
                "floor_ms": self.floor_ms,
                "least": self.scores.least,
                "labels": list(self.scores.scores),
                "summaries": [asdict(summary) for summary in self.summaries],
            },
            arrays={f"scores-{i}": scores for i, scores in enumerate(self.scores.scores.values())},
            parts=parts,
        )

    @staticmethod
    def from_state(state: State) -> KernelModels:
        """Read what `state` gave."""
        values, parts = state.values, state.parts
        labels = [str(label) for label in values["labels"]]
        return KernelModels(
            router=Router.from_json(values["router"]),
            overall=Roofline.from_state(parts["overall"]),
            stacks={n: Stack.from_state(parts[f"stack-{n}"]) for n in values["stacks"]},
            scaled={name: _Scaled(**given) for name, given in values["scaled"].items()},
            forests={
                n: Forest.from_state(parts[f"forest-{n or 'all'}"]) for n in values["forests"]
            },
            middle_ms={name: float(value) for name, value in values["middle_ms"].items()},
            scores=Mondrian(
                {label: state.arrays[f"scores-{i}"] for i, label in enumerate(labels)},
                int(values["least"]),
            ),
            summaries=tuple(_summary(given) for given in values["summaries"]),
            floor_ms=float(values["floor_ms"]),
        )

    def _fit_group(self, name: str, rows: Rows, training: Training, seed: int) -> GroupSummary:
        table = training.table.take(rows)
        latency, noise = training.latency_ms[rows], training.noise[rows]
        forest_scores = None
        if len(rows) >= LEAST_ROWS:
            stack = self.stacks[name] = Stack(seed=seed).fit(table, latency, noise)
            predicted, sigma = stack.unseen_ms, stack.unseen_sigma
            forest = self.forests[name] = Forest(seed=seed).fit(table, latency)
            forest_scores = evaluate(np.maximum(forest.out_of_bag_ms, 1e-12), latency)
            noise_sigma, outliers = stack.gp.noise_sigma, stack.gp.outliers
            model = "gp" if stack.boosted is None else "stack"
            gp_weight = stack.gp_weight
        else:
            predicted, sigma, own = _scale(self.overall, table, latency)
            self.scaled[name] = own
            noise_sigma, outliers, model, gp_weight = own.sigma, 0, "roofline", 0.0
        self.unseen_ms[rows], self.unseen_sigma[rows] = predicted, sigma
        scores = evaluate(predicted, latency)
        return GroupSummary(
            group=name,
            rows=len(rows),
            families=tuple(sorted(set(table.families))),
            main_ops=tuple(sorted(set(table.main_ops))),
            model=model,
            gp_weight=gp_weight,
            outliers=outliers,
            noise=noise_sigma,
            within5=scores.within5,
            within10=scores.within10,
            mean_ape=scores.mean_ape,
            forest_within10=None if forest_scores is None else forest_scores.within10,
            forest_mean_ape=None if forest_scores is None else forest_scores.mean_ape,
        )

    def _ask(self, group: str, table: Table) -> tuple[Array, Array]:
        if group in self.stacks:
            return self.stacks[group].predict(table)
        latency, sigma = self.overall.predict(table)
        own = self.scaled.get(group)
        if own is None:
            return latency, sigma
        return latency * np.exp(own.log_factor), np.full(len(table), own.sigma)

    def _source(self, group: str) -> str:
        stack = self.stacks.get(group)
        if stack is None:
            return "fallback:roofline"
        return "gp" if stack.boosted is None else "stack"

    def _label(self, group: str, latency_ms: float) -> str:
        return f"{group}/{'small' if latency_ms < self.middle_ms[group] else 'large'}"

    def _doubt(self, route: Route, family: str, kernel_type: str) -> float:
        unseen = self.router.unseen_tokens(family, kernel_type)
        return float(np.hypot(route.doubt, _TOKEN_DOUBT * unseen))


def _scale(overall: Roofline, table: Table, latency: Array) -> tuple[Array, Array, _Scaled]:
    """Factor of a small group on the roofline over all; estimates of each row without it."""
    base = overall.latency_ms(table)
    residual = np.log(latency / base)
    count = len(residual)

    def factor(values: Array) -> float:
        kept = len(values)
        return float(np.median(values)) * kept / (kept + 0.5) if kept else 0.0

    left_out = np.array([factor(np.delete(residual, i)) for i in range(count)])
    own = factor(residual)
    sigma = max(robust_sigma(residual - left_out), overall.sigma / np.sqrt(count + 1), _LEAST_SIGMA)
    return base * np.exp(left_out), np.full(count, sigma), _Scaled(own, float(sigma))


def _summary(given: Mapping[str, Any]) -> GroupSummary:
    fields: dict[str, Any] = dict(given)
    fields["families"], fields["main_ops"] = tuple(given["families"]), tuple(given["main_ops"])
    return GroupSummary(**fields)
