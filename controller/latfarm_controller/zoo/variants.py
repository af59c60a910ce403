"""Random variants of a family: each layer's channels and kernel size redrawn, and the resolution.

nn-Meter (section 6.1) makes its 26,000 benchmark models this way: output channels of each layer
times a factor in [0.2, 1.8], kernel sizes from {1, 3, 5, 7, 9}.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph import Graph

from latfarm_controller.zoo import find
from latfarm_controller.zoo.design import RandomDesign

RESOLUTIONS = (128, 160, 192, 224, 256)


def variant(
    name: str,
    seed: int,
    *,
    scale: tuple[float, float] = (0.2, 1.8),
    resolutions: Sequence[int] = RESOLUTIONS,
    batch: int = 1,
) -> Graph:
    """The variant of family `name` that `seed` draws; the same for the same arguments.

    Families published for small images (up to 64 pixels) keep their resolution.

    Raises:
        UsageError: no such family.
        GraphError: every resolution is too small for the network.
    """
    family, chosen = find(name)
    draw = random.Random(f"variant {name} {seed}")
    sizes = list(resolutions) if family.resolution > 64 else [family.resolution]
    draw.shuffle(sizes)
    sizes.append(family.resolution)
    last = GraphError(f"{name}: no resolution was given")
    for size in sizes:
        design = RandomDesign(
            chosen if family.drawn and "@" in name else seed,
            scale=scale,
            divisor=draw.choice((1, 4, 8, 8)),
        )
        try:
            return family.build(resolution=size, batch=batch, design=design)
        except GraphError as error:  # larger kernels may outgrow a small map
            last = error
    raise last
