"""Samplers by name, and when to stop: a target on a share of kernels kept back from the sampler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.sampling.annette import AnnetteSampler
from latfarm_controller.campaigns.sampling.belief import one_thread
from latfarm_controller.campaigns.sampling.latfarm import Guide, LatfarmSampler
from latfarm_controller.campaigns.sampling.layers import usable
from latfarm_controller.campaigns.sampling.nn_meter import NnMeterSampler
from latfarm_controller.campaigns.sampling.random import RandomSampler
from latfarm_controller.campaigns.sampling.samplers import (
    EVERYTHING,
    Excluded,
    PriorSampler,
    Sampler,
    SamplingScope,
)

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling

SamplerName = Literal["prior", "adaptive", "latfarm", "random", "annette", "nn-meter"]
"""`latfarm` is another name of `adaptive`, `prior` its representative draws alone."""
Regressor = Literal["forest", "roofline-gp"]

REGRESSORS: Mapping[SamplerName, Regressor] = MappingProxyType(
    {
        "prior": "roofline-gp",
        "adaptive": "roofline-gp",
        "latfarm": "roofline-gp",
        "random": "forest",
        "annette": "forest",
        "nn-meter": "forest",
    }
)
"""What each sampler's accuracy is judged with: the papers' forest, or ours."""
WITHIN = 0.1
"""A prediction within 10 % of the measurement is accurate, as in all of the papers' tables."""
_LEAST_ROWS = 12
_LEAST_JUDGED = 10


def make_sampler(
    name: SamplerName,
    count: int,
    rules: FusionRules,
    excluded: Excluded,
    *,
    seed: int = 0,
    families: Collection[str] | None = None,
    initial: int = 100,
    batch: int = 50,
    target: float | None = None,
    guide: Guide = "variance",
    sibling: Sibling | None = None,
    scope: SamplingScope = EVERYTHING,
) -> Sampler:
    """A fresh sampler; the same arguments and samples make it draw the same kernels.

    Args:
        name: which.
        count: how many kernels, at most.
        rules: how the platform fuses.
        excluded: kernels that are never drawn.
        seed: of all draws.
        families: zoo families whose layers are drawn; `random` and `annette` know none.
        initial: of `latfarm` and `nn-meter`: kernels before the first iteration.
        batch: kernels in an iteration.
        target: of `nn-meter`: share of its test set that is to be accurate.
        guide: of `latfarm`: what picks layers of networks.
        sibling: of `latfarm`: a board that it starts from.
        scope: what may be drawn.

    Raises:
        UsageError: there is no such family.
    """
    if name == "prior":
        return PriorSampler(count, rules, excluded, seed=seed, families=families, scope=scope)
    if name == "random":
        return RandomSampler(count, rules, excluded, seed=seed, batch=batch, scope=scope)
    if name == "annette":
        return AnnetteSampler(count, rules, excluded, seed=seed, batch=batch, scope=scope)
    if name == "nn-meter":
        return NnMeterSampler(
            count,
            rules,
            excluded,
            seed=seed,
            families=families,
            initial=initial,
            batch=batch,
            target=target,
            scope=scope,
        )
    return LatfarmSampler(
        count,
        rules,
        excluded,
        seed=seed,
        families=families,
        initial=initial,
        batch=batch,
        guide=guide,
        sibling=sibling,
        scope=scope,
    )


@dataclass(frozen=True)
class Judge:
    """Keeps a share of kernels back and tells how well a model of the others predicts them.

    Which ones is a matter of their ids, so that it is the same after a crash and for any order.

    Attributes:
        share: of the kernels.
        regressor: the model, one for each family of kernels.
        sibling: a board whose latencies the model builds on, where it is ours.
    """

    share: float
    regressor: Regressor
    sibling: Sibling | None = None

    def keeps(self, kernel: Kernel) -> bool:
        """Whether a kernel is kept back."""
        return int(kernel.kernel_id[-8:], 16) < self.share * 2**32

    def shown(self, samples: Sequence[KernelSample]) -> list[KernelSample]:
        """What a sampler may see."""
        return [sample for sample in samples if not self.keeps(sample.kernel)]

    def accuracy(self, samples: Sequence[KernelSample]) -> float | None:
        """Share of the kept kernels predicted within 10 %; None while there are too few.

        A kernel of a family with too few others to learn from counts as missed.
        """
        samples = usable(samples)
        kept = [sample for sample in samples if self.keeps(sample.kernel)]
        if len(kept) < _LEAST_JUDGED:
            return None
        families: dict[str, tuple[list[KernelSample], list[KernelSample]]] = {}
        for sample in samples:
            parts = families.setdefault(workload(sample.kernel).family, ([], []))
            parts[self.keeps(sample.kernel)].append(sample)
        return sum(self._hits(*parts) for parts in families.values()) / len(kept)

    def _hits(self, train: Sequence[KernelSample], test: Sequence[KernelSample]) -> int:
        if len(train) < _LEAST_ROWS or not test:
            return 0
        # Here and not above: SciPy and its like would be loaded by every command.
        from latfarm_predictors.models.roofline_gp import RooflineGP
        from latfarm_predictors.models.trees.forest import Forest

        ours = RooflineGP(steps=30, sibling=self.sibling)
        model = Forest() if self.regressor == "forest" else ours
        with one_thread():
            model.fit(
                [workload(row.kernel) for row in train],
                [row.latency_ms for row in train],
                [(row.mad_ms / max(row.latency_ms, 1e-9)) ** 2 for row in train],
            )
            predicted, _ = model.predict([workload(row.kernel) for row in test])
        return sum(
            abs(float(guess) / row.latency_ms - 1.0) <= WITHIN
            for guess, row in zip(predicted, test, strict=True)
        )
