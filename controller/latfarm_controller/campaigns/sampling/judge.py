"""When a survey of kernels is accurate enough, judged by kernels kept back from the sampler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.samples import KernelSample, sigma_ms_of

from latfarm_controller.campaigns.sampling.belief import one_thread
from latfarm_controller.campaigns.sampling.by_name import SamplerName
from latfarm_controller.campaigns.sampling.layers import usable
from latfarm_controller.campaigns.sampling.stopping import JudgedShare

if TYPE_CHECKING:
    from latfarm_predictors.models.sibling import Sibling

JudgingRegressor = Literal["forest", "roofline-gp"]
"""The model that judges: a random forest, as in the papers, or our Gaussian process."""

REGRESSORS: Mapping[SamplerName, JudgingRegressor] = MappingProxyType(
    {
        "prior": "roofline-gp",
        "latfarm": "roofline-gp",
        "random": "forest",
        "annette": "forest",
        "nn-meter": "forest",
    }
)
"""The regressor that judges the accuracy of each sampler: the published ones by the papers' forest,
ours by our Gaussian process."""
WITHIN = 0.1
"""Largest relative error of an accurate prediction: 10 %, as in the tables of all the papers."""
_MOST_DOUBT = 0.3
"""Largest deviation of a kernel that judges, as a share of its latency: the time of a kernel far
shorter than the call is mostly the call's doubt."""
_LEAST_ROWS = 12
"""Number of samples of a kernel family that the regressor needs to learn from."""
_LEAST_JUDGED = 10
"""Number of kept-back kernels below which no accuracy is reported."""
_STEPS = 30
"""Optimisation steps of the Gaussian process: few, since it is fitted anew after each batch."""


@dataclass(frozen=True)
class Judge:
    """Keeps a share of kernels back and tells how well a model of the others predicts them.

    The id of a kernel decides whether it is kept back, so that the choice is the same after a crash
    and for any order of measurements.

    Attributes:
        share: share of kernels that is kept back.
        regressor: the model that predicts, one for each family of kernels.
        sibling: the sibling platform whose latencies our Gaussian process builds on, if any.
    """

    share: float
    regressor: JudgingRegressor
    sibling: Sibling | None = None

    def keeps(self, kernel: Kernel) -> bool:
        """Whether a kernel is kept back."""
        return int(kernel.kernel_id[-8:], 16) < self.share * 2**32

    def shown(self, samples: Sequence[KernelSample]) -> list[KernelSample]:
        """The samples that a sampler may see."""
        return [sample for sample in samples if not self.keeps(sample.kernel)]

    def judged(self, samples: Sequence[KernelSample]) -> JudgedShare | None:
        """The kept kernels predicted within 10 %; None while too few are kept.

        A kernel of a family with too few other kernels to learn from counts as missed. A kernel
        whose own time is hardly known judges nothing.

        Args:
            samples: all that was measured so far, without the call: beside a dear call, all kernels
                would seem to take the same time.
        """
        known = usable(samples)
        kept = [sample for sample in known if self.keeps(sample.kernel) and _told(sample)]
        if len(kept) < _LEAST_JUDGED:
            return None
        families: dict[str, tuple[list[KernelSample], list[KernelSample]]] = {}
        for sample in (*self.shown(known), *kept):
            parts = families.setdefault(workload(sample.kernel).family, ([], []))
            parts[self.keeps(sample.kernel)].append(sample)
        hits = sum(self._hits(*parts) for parts in families.values())
        return JudgedShare(hits, len(kept))

    def _hits(self, train: Sequence[KernelSample], test: Sequence[KernelSample]) -> int:
        if len(train) < _LEAST_ROWS or not test:
            return 0
        # Imported here, since every command would load SciPy if it stood above.
        from latfarm_predictors.models.roofline_gp import RooflineGP
        from latfarm_predictors.models.trees.forest import Forest

        ours = RooflineGP(steps=_STEPS, sibling=self.sibling)
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


def _told(sample: KernelSample) -> bool:
    """Whether a measured time is precise enough to judge a prediction of it."""
    return sigma_ms_of(sample) <= _MOST_DOUBT * sample.latency_ms
