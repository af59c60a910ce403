"""Random variants of a family: each layer's channels and kernel size redrawn.

Two rules. "nn-meter" is that of nn-Meter's dataset (section 3): output channels of each layer times
a factor from [0.2, 1.8], its kernel size from {1, 3, 5, 7, 9}, images of 224 or, where a family was
published for small ones, 32 pixels. "wide" goes beyond it where real networks do: resolutions too,
channels mostly multiples of 8, and only every other kernel redrawn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, get_args

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import UsageError
from latfarm_controller.zoo import find
from latfarm_controller.zoo.design import Design, RandomDesign

Rule = Literal["wide", "nn-meter"]
RULES: tuple[Rule, ...] = get_args(Rule)
RESOLUTIONS = (128, 160, 192, 224, 256)
NN_METER_RESOLUTION = 224
SCALE = (0.2, 1.8)


def variant(
    name: str,
    seed: int,
    *,
    rule: Rule = "wide",
    scale: tuple[float, float] = SCALE,
    resolutions: Sequence[int] | None = None,
    batch: int = 1,
    label: str = "",
) -> Graph:
    """The variant of family `name` that `seed` draws; the same for the same arguments.

    Args:
        name: a family of the zoo; "family@seed" fixes the network that a drawn family starts from.
        seed: of all draws.
        rule: see above.
        scale: factors of the channel counts.
        resolutions: to choose from, in place of the rule's own. Unless given, language models and
            families published for small images (up to 64 pixels) keep theirs.
        batch: of the input.
        label: the graph's name, in place of the family's.

    Raises:
        UsageError: no such family or rule.
        GraphError: the drawn kernels outgrow their maps at every resolution.
    """
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r} for variants; known: {', '.join(RULES)}")
    family, chosen = find(name)
    draw = random.Random(f"variant {name} {seed}")
    own = chosen if family.drawn and "@" in name else seed
    if resolutions is not None:
        sizes = list(resolutions)
    elif family.task == "language" or family.resolution <= 64:
        sizes = [family.resolution]
    else:
        sizes = [NN_METER_RESOLUTION] if rule == "nn-meter" else list(RESOLUTIONS)
    draw.shuffle(sizes)
    if rule == "wide":
        sizes.append(family.resolution)
    last = GraphError(f"{name}: no resolution was given")
    for size in sizes:
        if rule == "wide":
            design: Design = RandomDesign(own, scale=scale, divisor=draw.choice((1, 4, 8, 8)))
        elif family.drawn:  # nn-Meter takes NAS-Bench-201's cells as they are
            design = Design(seed=own)
        else:
            design = RandomDesign(own, scale=scale, change=1.0)
        try:
            return family.build(resolution=size, batch=batch, design=design, label=label)
        except GraphError as error:  # larger kernels may outgrow a small map
            last = error
    raise last
