"""Sampler `prior`: representative kernels, as the zoo's networks contain them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

from latfarm_controller import zoo
from latfarm_controller.campaigns.sampling.base import SamplingTask
from latfarm_controller.zoo.draws.kernel_kinds import SHARES
from latfarm_controller.zoo.draws.prior import KernelPrior


class PriorSampler:
    """One batch of representative draws: joint configurations from zoo x resolution x width."""

    def __init__(self, task: SamplingTask) -> None:
        self._count = task.count
        self._draws = PriorDraws(task, chosen_families(task.families))
        self._drawn = False

    def next_batch(self, samples: Sequence[KernelSample]) -> list[Kernel]:
        """See `Sampler.next_batch`; the samples change nothing."""
        del samples
        if self._drawn:
            return []
        self._drawn = True
        return self._draws.draw(self._count)


class PriorDraws:
    """Draws from the prior, without the excluded kernels and without those in `taken`.

    Args:
        task: of the sampler that draws.
        families: the zoo families to draw from, by name.
    """

    def __init__(self, task: SamplingTask, families: Mapping[str, zoo.Family]) -> None:
        self._prior = KernelPrior(
            families,
            task.seed,
            shares=task.scope.shares(SHARES),
            max_macs=int(task.scope.most_macs),
        )
        self._rules = task.rules
        self._excluded = task.excluded
        self.taken: set[str] = {kernel.kernel_id for kernel in task.known}

    def draw(self, count: int) -> list[Kernel]:
        """`count` kernels; fewer only when the prior has no more."""
        found: list[Kernel] = []
        while len(found) < count:
            drawn = self._prior.draw(
                count - len(found), self._rules, exclude=self._excluded.ids | self.taken
            )
            if not drawn:
                break
            found += [kernel for kernel in drawn if kernel not in self._excluded]
        self.taken.update(kernel.kernel_id for kernel in found)
        return found


def chosen_families(names: Collection[str] | None) -> Mapping[str, zoo.Family]:
    """The zoo families with these names; None: all families that calibration may use.

    Raises:
        UsageError: there is no family with such a name.
    """
    if names is None:
        return zoo.calibration_families()
    return {name: zoo.find(name)[0] for name in names}
