"""Heads of networks, profiled: the first kernels of redrawn networks, from the image on.

A network's first convolution is like no other: few channels, the largest map, a wide window. It
takes a tenth of a network's time and, with a window that its hardware has no good way for, half of
it. Draws of whole networks hold one each, nearly all with a window of 3 or 7. Here every window is
redrawn, and behind the first kernel stand those that would: where tensors are kept and how a chain
is run is decided for all of them at once.
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
from latfarm_controller.campaigns.kernels.kernels import SETTINGS
from latfarm_controller.campaigns.pads.models import is_image, padded
from latfarm_controller.campaigns.profiles.profiled_draw import ProfiledDraw
from latfarm_controller.zoo.design import RandomDesign

STEPS = 3
"""Kernels behind the first."""
RESOLUTIONS = tuple(range(96, 257, 32))
DIVISORS = (8, 8, 4, 1)
MOST_KERNELS = 8
MOST_MACS = 1_000_000_000
_PATIENCE = 20
"""Draws for each head that is wanted."""


def head_of(graph: Graph, rules: FusionRules) -> Graph | None:
    """The first kernels of a network, what leaves them led to one channel (`padding_models`).

    Args:
        graph: the network.
        rules: cut it into kernels.

    Returns:
        None where it does not begin with an image, or the head is too large to be worth it.
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
    except GraphError:  # something that no pad leads out of
        return None
    return found if macs_of(found) <= MOST_MACS else None


class HeadsCampaign(ProfiledDraw):
    """Measures heads once each, with their layers' times.

    Args:
        platform: one that profiles.
        count: how many.
        rules: cut networks into kernels.
        seed: of the draw.
        exclude_lineages: lines whose families are left out.
        settings: of each measurement.
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
        """Redrawn networks, the families in random turns."""
        draw = random.Random(f"heads {self._seed}")
        families = [f for f in zoo.calibration_families(self._exclude_lineages).values()]
        for _ in range(_PATIENCE * self._count):
            family = draw.choice(families)
            design = RandomDesign(draw.randrange(2**31), change=1.0, divisor=draw.choice(DIVISORS))
            resolution = draw.choice(RESOLUTIONS)
            if family.task == "language" or family.resolution <= 64:
                continue
            try:
                yield family.build(resolution=resolution, design=design)
            except GraphError:  # a window that outgrew its map
                continue
