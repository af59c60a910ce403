"""The runs of the samplers that take turns, and how their kernels are judged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from latfarm_controller.campaigns.sampling.base import (
    Excluded,
    Sampler,
    SamplingScope,
    SamplingTask,
)
from latfarm_controller.campaigns.sampling.by_name import SamplerName, make_sampler
from latfarm_controller.campaigns.sampling.nn_meter import PAPER_PRIOR_SHARE, initial_count
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array, as_table
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.base import Regressor
from latfarm_predictors.models.published.annette_forest import Mixed
from latfarm_predictors.models.stack import Stack
from latfarm_predictors.models.trees.forest import Forest
from latfarm_predictors.samples import KernelSample

RULES = FusionRules(
    pairs={
        ("Conv", "BatchNormalization"): "fused",
        ("Conv", "Relu"): "fused",
        ("Conv", "Clip"): "fused",
    }
)
SAMPLERS: tuple[SamplerName, ...] = ("random", "nn-meter", "annette", "latfarm")
REGRESSORS: dict[str, Callable[[], Regressor]] = {
    "forest": Forest,
    "annette": Mixed,
    "GP stack": Stack,
}
MOST_MACS = 3e8
"""Most multiply-adds of a kernel. The papers' samplers have no limit: their largest kernels take
seconds."""
INITIAL, BATCH = 60, 45
"""Numbers of kernels before the first iteration, and in each iteration. `nn-meter` draws the
paper's share of each count before its first iteration."""
LEAST_ROWS = 20
"""Number of samples from which regressors are judged."""


@dataclass
class Draw:
    """A run of a sampler, and its measured kernels so far, without failures.

    Attributes:
        name: name of the sampler.
        sampler: draws the kernels.
        count: largest number of kernels to draw.
        samples: the measured kernels.
        waiting: kernels of the present batch that are not measured yet.
        drawn: number of kernels so far, with those that cannot be run.
        done: whether the sampler has no more kernels.
    """

    name: SamplerName
    sampler: Sampler
    count: int
    samples: list[KernelSample] = field(default_factory=list)
    waiting: list[Kernel] = field(default_factory=list)
    drawn: int = 0
    done: bool = False

    def next_kernels(self, most: int) -> list[Kernel]:
        """At most so many kernels to measure next; a batch may be larger, and is then divided."""
        if not self.waiting and not self.done:
            self.waiting = list(self.sampler.next_batch(self.samples))
            self.waiting = self.waiting[: self.count - self.drawn]
            self.done = not self.waiting
        found, self.waiting = self.waiting[:most], self.waiting[most:]
        self.drawn += len(found)
        return found


def draws_of(counts: Sequence[int], excluded: Excluded, seed: int) -> list[Draw]:
    """The runs of all samplers: one that gives all counts, or for `nn-meter` one for each."""
    runs = []
    for name in SAMPLERS:
        for count in counts if name == "nn-meter" else counts[-1:]:
            share = PAPER_PRIOR_SHARE if name == "nn-meter" else None
            task = SamplingTask(
                count,
                RULES,
                excluded,
                seed=seed,
                initial=initial_count(count, min(INITIAL, count), share),
                batch=BATCH,
                scope=SamplingScope(frozenset({"conv"}), MOST_MACS),
            )
            runs.append(Draw(name, make_sampler(name, task), count))
    return runs


def judge(
    draws: Sequence[Draw],
    judged: Sequence[Kernel],
    joint: int,
    truth: Array,
    counts: Sequence[int],
) -> list[dict[str, Any]]:
    """The accuracy of every sampler with every regressor after every number of kernels."""
    known = np.flatnonzero(np.isfinite(truth))
    table = as_table([workload(judged[place]) for place in known.tolist()])
    rows: list[dict[str, Any]] = []
    for count in counts:
        for draw in draws:
            if draw.name == "nn-meter" and draw.count != count:
                continue
            samples = draw.samples[:count]
            if len(samples) < max(LEAST_ROWS, 0.9 * count):
                continue
            works = as_table([workload(sample.kernel) for sample in samples])
            latency = np.array([sample.latency_ms for sample in samples])
            for regressor, make in REGRESSORS.items():
                began = time.perf_counter()
                model = make().fit(works, latency)
                fit_s = time.perf_counter() - began
                guess = model.predict(table)[0]
                near = np.abs(guess / truth[known] - 1.0) <= 0.1
                rows.append(
                    {
                        "rows": len(samples),
                        "count": count,
                        "sampler": draw.name,
                        "regressor": regressor,
                        "within10_percent": _percent(near),
                        "joint_within10_percent": _percent(near[known < joint]),
                        "marginal_within10_percent": _percent(near[known >= joint]),
                        "mape_percent": round(100 * evaluate(guess, truth[known]).mean_ape, 1),
                        "fit_s": round(fit_s, 2),
                    }
                )
    return rows


def _percent(hits: Any) -> float | None:
    return round(100 * float(np.mean(hits)), 1) if len(hits) else None
