"""When a share that is looked at after each batch has reached a target.

A share of a few kernels swings, and whoever looks often enough sees it above any target by chance.
Wald's sequential test (1945, "Sequential Tests of Statistical Hypotheses") may be asked after each
batch: it compares the target with a share that is clearly below it, and its error holds however
often it is asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FALSE_STOPS = 0.05
"""Largest share of surveys that stop although the true share is `SHORT` below the target."""
SHORT = 0.1
"""How far below the target a share is that must not pass for it, as a share of all kernels."""


@dataclass(frozen=True, slots=True)
class JudgedShare:
    """How many of the kernels that were kept back are predicted well.

    Attributes:
        hits: the number of those that are.
        count: the number of all that were kept back, at least 1.
    """

    hits: int
    count: int

    @property
    def share(self) -> float:
        """The share that is predicted well, 0 to 1."""
        return self.hits / self.count

    def shows(self, target: float) -> bool:
        """Whether these kernels show that a target is reached.

        Their own share reaches it, and they are `1 / FALSE_STOPS` times as probable if the true
        share is the target as they are if it is `SHORT` lower (half of the target at least).

        Args:
            target: the wanted share, above 0 and at most 1.
        """
        if self.hits < target * self.count:
            return False
        lower = max(target - SHORT, target / 2.0)
        misses = self.count - self.hits
        evidence = self.hits * math.log(target / lower)
        if misses:
            evidence += misses * math.log((1.0 - target) / (1.0 - lower))
        return evidence >= -math.log(FALSE_STOPS)
