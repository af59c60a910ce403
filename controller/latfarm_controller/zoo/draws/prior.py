"""The prior of kernels: draws kernels as networks contain them.

All dimensions of a kernel are drawn together; nn-Meter (section 5.1) draws each by itself. A
family, a resolution and a width are drawn, the network is built and cut into kernels by the
platform's fusion rules, and a few of its kernels are taken. Each kind of kernel has a fixed share,
so that rare kinds are drawn as well.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.families import family_of
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import main_node
from latfarm_predictors.kernels.workload import workload

from latfarm_controller.zoo import calibration_families
from latfarm_controller.zoo.design import Design, RandomDesign
from latfarm_controller.zoo.family import Family

SHARES: Mapping[str, float] = MappingProxyType(
    {
        "conv": 0.31,
        "grouped_conv": 0.04,
        "grouped_pointwise": 0.03,
        "dwconv": 0.07,
        "unaligned_conv": 0.05,
        "unaligned_dwconv": 0.05,
        "wide_conv": 0.03,
        "unit_wide_conv": 0.05,
        "wide_dwconv": 0.05,
        "fc": 0.06,
        "pool": 0.05,
        "global_pool": 0.02,
        "eltwise": 0.05,
        "concat": 0.04,
        "norm": 0.04,
        "lrn": 0.02,
        "softmax": 0.01,
        "move": 0.03,
    }
)
"""Share of each kind of kernel in a draw. Kinds are workload families, and besides them kernels for
which a runtime has other code and which plain draws hardly contain: grouped convolutions of 1 x 1
(ShuffleNet has them; those of k x k are RegNet's), convolutions whose channels 4 does not divide,
windows beyond the 3 x 3 and 5 x 5 for which libraries have special code (LiteRT's quantised
depthwise convolution of 9 x 9 takes several times as long as its work suggests), and windows beyond
3 x 3 of stride 1, for which some libraries have Winograd's scheme (MNN for 5 x 5 and 7 x 7)."""
MAX_BYTES = 600_000_000
"""Largest size of a kernel's weights and activations together."""
MAX_MACS = 4_000_000_000
"""Most multiply-adds of a kernel."""

_UNALIGNED, _WIDE, _UNIT = "unaligned_", "wide_", "unit_"
"""Beginnings of the names of kinds with unaligned channels, with wide windows, and with wide
windows of stride 1."""
_LANES = 4
"""Channels that this number does not divide are unaligned."""
_OWN_CODE = 5 * 5
"""Windows with more elements than this are wide: libraries have no special code for them."""
_SMALL_WINDOW = 3 * 3
"""Convolutions of stride 1 whose windows have more elements than this are a kind of their own."""
_WIDE_SIZES = (3, 5, 7, 9)
"""Kernel sizes of networks that must have wide windows of stride 1."""
_LEAST_WIDE = 3
"""Number of convolutions with such a window that such a network has at least."""
_RESOLUTIONS = tuple(range(96, 321, 32))
"""Heights and widths of images to draw from, in pixels."""
_USUAL_RESOLUTION, _USUAL = 224, 0.5
"""The resolution of most published networks, and the probability of taking it without a draw."""
_TINY_IMAGE = 64
"""Families for images of at most this resolution draw from `_SMALL_RESOLUTIONS`."""
_SMALL_RESOLUTIONS = (32, 32, 48, 64, 96)
"""Heights and widths of small images, in pixels; 32 is twice as likely as the others."""
_DIVISORS = {8: 0.62, 4: 0.13, 1: 0.25}
"""Probabilities of what channels are rounded to multiples of. Runtimes leave their blocked layouts
where 4 does not divide the channels: onnxruntime's depthwise convolutions then take 5 to 8 times as
long. Published networks have such layers."""
_REDRAWN = 0.35
"""Probability that the channels and the window of each layer are redrawn, as in architecture
search."""
_REDRAWN_KERNELS = 0.5
"""Probability that a kernel size is redrawn in such a network."""
_WIDTHS = (0.25, 1.6)
"""Range of the factors on channels of other networks, drawn uniformly by their logarithms."""
_PUBLISHED_CLASSES = 0.7
"""Probability that the classifier has as many outputs as published."""
_LOG_CLASSES = (2.3, 8.5)
"""Range of the logarithm of the number of outputs otherwise: 10 to 4,900."""
_TURNS = {"synthetic": 4}
"""How many turns a lineage has, by the name of its first family; 1 for all others. The synthetic
family has the constructions that no other family has."""
_MOST_A_NETWORK = {"conv": 4}
"""Largest number of kernels of a kind that one network gives."""
_MOST_OF_OTHERS = 2
"""Largest number of kernels of any other kind that one network gives."""
_WEIGHT = 0.5
"""Power of a kernel's work by which it is preferred within its network."""
_PATIENCE = 60
"""Number of networks without a new kernel of a kind after which the kind has no more."""
_TRIES = 3
"""Number of networks of a family that are drawn before the family is skipped for kinds that none of
them had."""


def kind_of(kernel: Kernel) -> str:
    """The kind of a kernel, a key of `SHARES`."""
    main = main_node(kernel.graph)
    family = family_of(kernel.graph, main)
    if family == "grouped_conv" and main.attrs.get("kernel_shape") == (1, 1):
        return "grouped_pointwise"
    if family in ("conv", "dwconv"):
        window = main.attrs["kernel_shape"]
        assert isinstance(window, tuple)
        area = math.prod(map(int, window))
        if family == "conv" and area > _SMALL_WINDOW and _stride_one(main):
            return _UNIT + _WIDE + family
        if area > _OWN_CODE:
            return _WIDE + family
        tensors = (main.inputs[0], main.outputs[0])
        channels = [kernel.graph.type_of(tensor).shape[1] for tensor in tensors]
        if any(count % _LANES and count > _LANES for count in channels):
            return _UNALIGNED + family
    return family


def base_of(kind: str) -> str:
    """The kind as a user names it, without the beginning for unaligned or wide kernels."""
    return kind.removeprefix(_UNALIGNED).removeprefix(_UNIT).removeprefix(_WIDE)


def _stride_one(node: Node) -> bool:
    """Whether the window of an op moves by one element in every direction."""
    strides = node.attrs.get("strides", ())
    return isinstance(strides, tuple) and all(step == 1 for step in strides)


def _wide_windows(graph: Graph) -> int:
    """Number of convolutions, neither grouped nor depthwise, with a wide window of stride 1."""
    return sum(
        node.op == "Conv"
        and family_of(graph, node) == "conv"
        and math.prod(_window(node)) > _SMALL_WINDOW
        and _stride_one(node)
        for node in graph.nodes
    )


def _window(node: Node) -> Sequence[int]:
    window = node.attrs.get("kernel_shape", ())
    return [int(side) for side in window] if isinstance(window, tuple) else []


class KernelPrior:
    """Draws kernels; the same seed and the same calls give the same kernels.

    Args:
        families: the families to draw from; by default `calibration_families()`, all that are
            `sampled`.
        seed: random seed of all draws.
        shares: weight of each kind of kernel; kinds that are left out are not drawn.
        max_bytes: largest size of a kernel's weights and activations together.
        max_macs: most multiply-adds of a kernel.
    """

    def __init__(
        self,
        families: Mapping[str, Family] | None = None,
        seed: int = 0,
        *,
        shares: Mapping[str, float] = SHARES,
        max_bytes: int = MAX_BYTES,
        max_macs: int = MAX_MACS,
    ) -> None:
        self._families = list((calibration_families() if families is None else families).values())
        self._shares = {kind: share for kind, share in shares.items() if share > 0}
        if not self._families or not self._shares:
            raise ValueError("a prior needs families and shares")
        self._max_bytes = max_bytes
        self._max_macs = max_macs
        self._random = random.Random(f"kernel prior {seed}")
        self._turns = self._endless_turns()
        self._drawn: set[str] = set()
        self._yields: dict[str, set[str]] = {}  # kind -> names of families that had such a kernel
        self._tried: Counter[str] = Counter()  # name of a family -> number of networks drawn

    def draw(
        self, count: int, rules: FusionRules, *, exclude: Collection[str] = ()
    ) -> list[Kernel]:
        """`count` kernels whose ids are new to this prior and not in `exclude`.

        When a kind has no more kernels, the others get its share. Fewer than `count` kernels come
        back only when no kind has more.

        Args:
            count: how many kernels.
            rules: the platform's fusion rules, which decide what a kernel is.
            exclude: ids of kernels that must not be drawn, for example those of held-out networks.
        """
        barred = frozenset(exclude)
        wanted = self._quotas(count, list(self._shares))
        idle = dict.fromkeys(self._shares, 0)
        found: list[Kernel] = []
        while len(found) < count:
            if not any(wanted.values()):
                alive = [kind for kind, tries in idle.items() if tries < _PATIENCE]
                if not alive:
                    break
                wanted |= self._quotas(count - len(found), alive)
            family = self._next_family(wanted)
            self._tried[family.name] += 1
            kernels = self._network(family, rules)
            hits: dict[str, int] = {}
            for kernel in self._heavy_first(kernels):
                kind = kind_of(kernel)
                if kind not in wanted:
                    continue
                self._yields.setdefault(kind, set()).add(family.name)
                if wanted[kind] == 0 or hits.get(kind, 0) >= _MOST_A_NETWORK.get(
                    kind, _MOST_OF_OTHERS
                ):
                    continue
                if self._is_new(kernel, barred):
                    self._drawn.add(kernel.kernel_id)
                    found.append(kernel)
                    hits[kind] = hits.get(kind, 0) + 1
                    wanted[kind] -= 1
            for kind, left in wanted.items():
                if left:
                    idle[kind] = 0 if kind in hits else idle[kind] + 1
                    if idle[kind] >= _PATIENCE:
                        wanted[kind] = 0
        self._random.shuffle(found)
        return found

    def _quotas(self, count: int, kinds: list[str]) -> dict[str, int]:
        """`count` divided among `kinds` by their shares; the largest remainders are rounded up."""
        total = sum(self._shares[kind] for kind in kinds)
        exact = {kind: count * self._shares[kind] / total for kind in kinds}
        quotas = {kind: int(share) for kind, share in exact.items()}
        rest = sorted(kinds, key=lambda kind: quotas[kind] - exact[kind])
        for kind in rest[: count - sum(quotas.values())]:
            quotas[kind] += 1
        return quotas

    def _next_family(self, wanted: Mapping[str, int]) -> Family:
        """The next family in turn, without those that were tried and lack the missing kinds."""
        missing = [kind for kind, left in wanted.items() if left]
        useful = {name for kind in missing for name in self._yields.get(kind, ())}
        for _ in range(_PATIENCE):
            family = next(self._turns)
            if family.name in useful or self._tried[family.name] < _TRIES:
                break
        return family

    def _endless_turns(self) -> Iterator[Family]:
        """Families without end: all lineages in a random order, again and again.

        A turn takes a lineage and not a family, because most families are mobile networks.
        """
        lines: dict[frozenset[str], list[Family]] = {}
        for family in self._families:
            lines.setdefault(family.lineage, []).append(family)
        turn = [line for line in lines.values() for _ in range(_TURNS.get(line[0].name, 1))]
        while True:
            self._random.shuffle(turn)
            yield from (self._random.choice(line) for line in turn)

    def networks(self, *, macs: tuple[float, float], wide: float = 0.0) -> Iterator[Graph]:
        """Whole networks like those that kernels are taken from, all different.

        They end only when the families have no more.

        Args:
            macs: least and most multiply-adds of a network.
            wide: share of networks that must have wide windows of stride 1, which plain draws
                hardly contain. Others take their turn where no family has them.
        """
        found: set[str] = set()
        idle = 0
        while idle < _PATIENCE:
            wanted = math.floor((len(found) + 1) * wide) > math.floor(len(found) * wide)
            wanted = wanted and idle < _PATIENCE // 2
            graph = self._drawn_network(next(self._turns), wide=wanted)
            idle += 1
            if graph is None or hash_of(graph) in found:
                continue
            if wanted and _wide_windows(graph) < _LEAST_WIDE:
                continue
            if macs[0] <= graph_totals(graph).macs <= macs[1]:
                found.add(hash_of(graph))
                idle = 0
                yield graph

    def _network(self, family: Family, rules: FusionRules) -> list[Kernel]:
        """The kernels of one drawn network of `family`."""
        graph = self._drawn_network(family)
        return [] if graph is None else split(graph, rules)

    def _drawn_network(self, family: Family, *, wide: bool = False) -> Graph | None:
        """A network of `family` with drawn sizes; None where these do not fit together.

        Args:
            family: what to build.
            wide: whether all windows are redrawn, most of them wide.
        """
        draw = self._random
        if family.resolution <= _TINY_IMAGE:
            resolution = draw.choice(_SMALL_RESOLUTIONS)
        else:
            usual = draw.random() < _USUAL
            resolution = _USUAL_RESOLUTION if usual else draw.choice(_RESOLUTIONS)
        published = draw.random() < _PUBLISHED_CLASSES
        classes = None if published else round(math.exp(draw.uniform(*_LOG_CLASSES)))
        divisor = draw.choices(tuple(_DIVISORS), tuple(_DIVISORS.values()))[0]
        seed = draw.randrange(2**31)
        if wide:
            design: Design = RandomDesign(
                seed, kernels=_WIDE_SIZES, change=1.0, divisor=divisor, classes=classes
            )
        elif draw.random() < _REDRAWN:
            design = RandomDesign(seed, change=_REDRAWN_KERNELS, divisor=divisor, classes=classes)
        else:
            width = math.exp(draw.uniform(*map(math.log, _WIDTHS)))
            design = Design(width, divisor, classes, seed)
        try:
            return family.build(resolution=resolution, design=design)
        except GraphError:  # a kernel is larger than its map
            return None

    def _heavy_first(self, kernels: list[Kernel]) -> list[Kernel]:
        """A random order in which kernels with more work tend to come earlier.

        It is weighted sampling without replacement (Efraimidis and Spirakis 2006). If all kernels
        were equally likely, most would be tiny layers of squeeze-and-excite blocks, and the layers
        that decide a network's latency would be rare.
        """

        def key(kernel: Kernel) -> float:
            work = workload(kernel)
            moved = work.input_bytes + work.output_bytes + work.weight_bytes
            weight = math.pow(work.macs / 4 + moved + 1, _WEIGHT)
            return math.log(1.0 - self._random.random()) / weight

        return sorted(kernels, key=key, reverse=True)

    def _is_new(self, kernel: Kernel, barred: frozenset[str]) -> bool:
        work = workload(kernel)
        size_bytes = work.input_bytes + work.output_bytes + work.weight_bytes
        if size_bytes > self._max_bytes or work.macs > self._max_macs:
            return False
        return kernel.kernel_id not in self._drawn and kernel.kernel_id not in barred
