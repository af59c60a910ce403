"""How the published configuration of a family is changed before it is built.

A family calls `design.channels(64)` once for every group of layers that must have equal channels
(both operands of a residual add, or a stage), and `design.kernel(3)` once for every kernel size
that may change. So every variant is consistent.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

KERNEL_SIZES = (1, 3, 5, 7, 9)
"""Heights and widths of a window that variants draw from, as in nn-Meter's dataset."""


def divisible(value: float, divisor: int, *, floor: float = 0.9) -> int:
    """`value` rounded to a multiple of `divisor`, at least `floor` times it (MobileNetV2)."""
    found = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return found + divisor if found < floor * value else found


class Design:
    """Channels times `width`, rounded to multiples of `divisor`; kernel sizes as published.

    With width 1 nothing is rounded, so that the published numbers stay as they are.

    Args:
        width: factor on the numbers of channels.
        divisor: what numbers of channels are rounded to multiples of.
        classes: number of outputs of the classifier; None: as published.
        seed: random seed of families that are drawn (NAS cells, synthetic networks).
    """

    def __init__(
        self, width: float = 1.0, divisor: int = 8, classes: int | None = None, seed: int = 0
    ) -> None:
        if width <= 0 or divisor < 1:
            raise ValueError(f"width {width} and divisor {divisor} must be positive")
        self.width = width
        self.divisor = divisor
        self.seed = seed
        self._classes = classes

    def classes(self, published: int = 1000) -> int:
        """The number of outputs of the classifier, in place of the published one."""
        return published if self._classes is None else self._classes

    def channels(self, base: int, multiple: int = 1) -> int:
        """The number of channels in place of `base`, a multiple of `multiple`."""
        return self._round(base, self.width, multiple)

    def kernel(self, base: int) -> int:
        """The kernel size in place of `base`."""
        return base

    def heads(self, base: int) -> int:
        """The number of heads of attention in place of `base`."""
        return base

    def _round(self, base: int, factor: float, multiple: int) -> int:
        if factor == 1.0 and base % multiple == 0:
            return base
        step = multiple
        while step % self.divisor:  # the least common multiple of `multiple` and the divisor
            step += multiple
        # Rounding to 8 would turn the few channels of a squeeze into far too many.
        step = step if base * factor >= step else multiple
        return divisible(base * factor, step)


class RandomDesign(Design):
    """A model variant as in nn-Meter (section 6.1): each layer's channels and kernel are redrawn.

    Args:
        seed: random seed of all draws.
        scale: range of the factors on numbers of channels, drawn uniformly.
        kernels: kernel sizes to draw from.
        change: probability that a kernel size is redrawn.
        divisor: what numbers of channels are rounded to multiples of.
        classes: number of outputs of the classifier; None: as published.
    """

    def __init__(
        self,
        seed: int,
        *,
        scale: tuple[float, float] = (0.2, 1.8),
        kernels: Sequence[int] = KERNEL_SIZES,
        change: float = 0.5,
        divisor: int = 1,
        classes: int | None = None,
    ) -> None:
        super().__init__(divisor=divisor, classes=classes, seed=seed)
        self._random = random.Random(f"design {seed}")
        self._scale = scale
        self._kernels = tuple(kernels)
        self._change = change

    def channels(self, base: int, multiple: int = 1) -> int:
        """The number of channels: `base` times a newly drawn factor, rounded."""
        return self._round(base, self._random.uniform(*self._scale), multiple)

    def kernel(self, base: int) -> int:
        """The kernel size: `base`, or one that is drawn."""
        if self._random.random() < self._change:
            return self._random.choice(self._kernels)
        return base

    def heads(self, base: int) -> int:
        """The number of heads: `base`, or half or twice as many."""
        if self._random.random() < self._change:
            return self._random.choice([max(1, base // 2), 2 * base])
        return base
