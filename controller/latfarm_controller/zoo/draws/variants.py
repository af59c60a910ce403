"""Random variants of a family: each layer's channels and kernel size are redrawn.

There are two rules. "nn-meter" is that of nn-Meter's dataset (section 3): the output channels of
each layer are multiplied by a factor from [0.2, 1.8], its kernel size is drawn from {1, 3, 5, 7,
9}, and images have 224 pixels, or 32 where a family was published for small images. "wide" is
closer to real networks: resolutions vary too, most channels are multiples of 8, only every other
kernel size is redrawn, and no window is too large for its map to be used (`windows`).
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
from latfarm_controller.zoo.draws.windows import has_idle_windows

Rule = Literal["wide", "nn-meter"]
"""How variants are drawn, as described above."""
RULES: tuple[Rule, ...] = get_args(Rule)
RESOLUTIONS = (128, 160, 192, 224, 256)
"""Heights and widths of images, in pixels, that the rule "wide" draws from."""
NN_METER_RESOLUTION = 224
"""Height and width of images, in pixels, by the rule "nn-meter"."""
SCALE = (0.2, 1.8)
"""Range of the factors on numbers of channels."""
_DIVISORS = (1, 4, 8, 8)
"""What the rule "wide" rounds channels to multiples of; each entry is equally likely."""
_TINY_IMAGE = 64
"""Families for images of at most this resolution keep it."""


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
    """The variant of a family that `seed` draws; it is the same for the same arguments.

    Args:
        name: a family of the zoo; "family@seed" fixes the network that a drawn family starts from.
        seed: random seed of all draws.
        rule: how the variant is drawn.
        scale: range of the factors on numbers of channels.
        resolutions: resolutions to draw from, instead of those of the rule. Without them, language
            models and families for small images (up to 64 pixels) keep their own.
        batch: batch size of the input.
        label: the graph's name, instead of the family's.

    Raises:
        UsageError: there is no such family or rule.
        GraphError: the drawn kernels are too large for their maps at every resolution.
    """
    if rule not in RULES:
        raise UsageError(f"no rule {rule!r} for variants; known: {', '.join(RULES)}")
    family, chosen = find(name)
    draw = random.Random(f"variant {name} {seed}")
    own = chosen if family.drawn and "@" in name else seed
    if resolutions is not None:
        sizes = list(resolutions)
    elif family.task == "language" or family.resolution <= _TINY_IMAGE:
        sizes = [family.resolution]
    else:
        sizes = [NN_METER_RESOLUTION] if rule == "nn-meter" else list(RESOLUTIONS)
    draw.shuffle(sizes)
    if rule == "wide":
        sizes.append(family.resolution)
    last = GraphError(f"{name}: no resolution was given")
    for size in sizes:
        if rule == "wide":
            design: Design = RandomDesign(own, scale=scale, divisor=draw.choice(_DIVISORS))
        elif family.drawn:  # nn-Meter does not change the cells of NAS-Bench-201
            design = Design(seed=own)
        else:
            design = RandomDesign(own, scale=scale, change=1.0)
        try:
            graph = family.build(resolution=size, batch=batch, design=design, label=label)
        except GraphError as error:  # a drawn kernel is larger than its map
            last = error
            continue
        if rule == "nn-meter" or not has_idle_windows(graph):
            return graph
        last = GraphError(f"{name}: a drawn window is too large for its map at {size} pixels")
    raise last
