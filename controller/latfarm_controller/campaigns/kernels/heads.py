"""Heads of networks, profiled: the first kernels of redrawn networks, beginning at the image.

A network's first convolution differs from all others: few channels, the largest map, a wide window.
It takes a tenth of a network's time, or half of it where the hardware has no good way to compute
its window. Drawn networks contain one such kernel each, nearly always with a window of 3 or 7. Here
every window is redrawn. The kernels after the first are kept, because a compiler decides for all of
them at once where tensors are kept and how a chain of kernels runs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import macs_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import find_parts
from latfarm_predictors.kernels.kernel import extract
from latfarm_predictors.measurement import Settings

from latfarm_controller import zoo
from latfarm_controller.campaigns.kernels.survey import SETTINGS
from latfarm_controller.campaigns.pads.models import is_image, padded
from latfarm_controller.campaigns.profiles.profiled_draw import ProfiledDraw
from latfarm_controller.zoo.design import RandomDesign

STEPS = 3
"""Longest way from the first kernel to another kernel of the head, in kernels."""
RESOLUTIONS = tuple(range(96, 257, 32))
"""Heights and widths of images to choose from, in pixels."""
DIVISORS = (8, 8, 4, 1)
"""What numbers of channels are divisible by; 8 is drawn twice as often as the others."""
MOST_KERNELS = 8
"""Largest number of kernels in a head."""
MOST_MACS = 1_000_000_000
"""Largest number of multiply-adds of a head."""
_PATIENCE = 20
"""Largest number of draws for each head that is wanted."""
_TINY_IMAGE = 64
"""Families for images of at most this resolution are left out."""


def head_of(graph: Graph, rules: FusionRules) -> Graph | None:
    """The first kernels of a network, with pads that reduce their outputs to one channel.

    Args:
        graph: the network.
        rules: the fusion rules that cut it into kernels.

    Returns:
        The head; None where the network does not begin with an image, or the head is too large to
        be worth its time.
    """
    if not is_image(graph.type_of(graph.inputs[0])):
        return None
    parts = find_parts(graph, rules)
    maker = {tensor: at for at, part in enumerate(parts) for tensor in part.outputs}
    depth: list[int] = []
    for part in parts:
        steps = [depth[maker[tensor]] + 1 for tensor in part.inputs if tensor in maker]
        depth.append(max(steps, default=0))
    indices = sorted(
        index
        for part, steps in zip(parts, depth, strict=True)
        if steps <= STEPS
        for index in part.nodes
    )
    if sum(steps <= STEPS for steps in depth) > MOST_KERNELS:
        return None
    try:
        cut = extract(graph, [graph.nodes[index] for index in indices])
        found = padded(cut, images=True).graph
    except GraphError:  # an output that no pad can read
        return None
    return found if macs_of(found) <= MOST_MACS else None


class HeadsCampaign(ProfiledDraw):
    """Measures heads once each, with their layers' times.

    Args:
        platform: a platform whose runtime profiles.
        count: how many heads.
        rules: the fusion rules that cut networks into kernels.
        seed: random seed of the draw.
        exclude_lineages: lineages whose families are left out.
        settings: the settings of each measurement.
    """

    kind = "heads"

    def __init__(
        self,
        platform: str,
        count: int,
        rules: FusionRules,
        *,
        seed: int,
        exclude_lineages: Collection[str] = (),
        settings: Settings = SETTINGS,
    ) -> None:
        super().__init__(platform, count, settings)
        self._rules = rules
        self._seed = seed
        self._exclude_lineages = exclude_lineages

    def draw(self) -> Iterator[Graph]:
        """Heads of redrawn networks."""
        seen: set[str] = set()
        for graph in self._networks():
            head = head_of(graph, self._rules)
            if head is not None and hash_of(head) not in seen:
                seen.add(hash_of(head))
                yield head

    def _networks(self) -> Iterator[Graph]:
        """Redrawn networks of families chosen at random."""
        draw = random.Random(f"heads {self._seed}")
        families = [f for f in zoo.calibration_families(self._exclude_lineages).values()]
        for _ in range(_PATIENCE * self._count):
            family = draw.choice(families)
            design = RandomDesign(draw.randrange(2**31), change=1.0, divisor=draw.choice(DIVISORS))
            resolution = draw.choice(RESOLUTIONS)
            if family.task == "language" or family.resolution <= _TINY_IMAGE:
                continue
            try:
                yield family.build(resolution=resolution, design=design)
            except GraphError:  # a window larger than its map
                continue
