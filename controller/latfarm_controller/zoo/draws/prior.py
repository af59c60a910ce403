"""The prior of kernels: draws kernels as networks contain them.

All dimensions of a kernel are drawn together; nn-Meter (section 5.1) draws each by itself. A
family, a resolution and a width are drawn, the network is built and cut into kernels by the
platform's fusion rules, and a few of its kernels are taken. Each kind of kernel has a fixed share,
so that rare kinds are drawn as well.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.graph.totals import graph_totals
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload

from latfarm_controller.zoo import calibration_families
from latfarm_controller.zoo.design import Design, RandomDesign
from latfarm_controller.zoo.draws.kernel_kinds import SHARES, kind_of, op_of
from latfarm_controller.zoo.draws.windows import has_idle_windows, wide_windows
from latfarm_controller.zoo.family import Family

MAX_BYTES = 600_000_000
"""Largest size of a kernel's weights and activations together."""
MAX_MACS = 4_000_000_000
"""Most multiply-adds of a kernel."""

_LEAST_OF_AN_OP = 2
"""Kernels of an op that was drawn less often than this are taken before others of their kind, so
that no op of the families remains unmeasured."""
_SPARE = 0.06
"""Share of a draw that first kernels of an op may have beyond the share of their kind."""
_TOKENS = (16, 32, 48, 64, 96, 128, 128, 160, 192, 256, 384)
"""Lengths of the sequences of language models, in tokens; 128 is twice as likely as the others."""
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
_TURNS = {"synthetic": 6}
"""How many turns a lineage has, by the name of its first family; 1 for all others. The synthetic
family has the constructions that no other family has."""
_MOST_A_NETWORK = {"conv": 4, "view": 1, "reduce": 1, "row_eltwise": 1, "row_softmax": 1}
"""Largest number of kernels of a kind that one network gives."""
_MOST_OF_OTHERS = 2
"""Largest number of kernels of any other kind that one network gives."""
_WEIGHT = 0.5
"""Power of a kernel's work by which it is preferred within its network."""
_PATIENCE = 90
"""Number of networks without a new kernel of a kind after which the kind has no more."""
_TRIES = 3
"""Number of networks of a family that are drawn before the family is skipped for kinds that none of
them had."""
_FITTING_TRIES = 6
"""Number of networks of a family that are drawn in its turn until one has a size that is asked for.
With a single try, 60 networks had none of a family most of whose networks are too large, and so
nothing of the ops that no other family has."""
_DRAWN_TRIES = 16
"""The same number for a drawn family, each of whose networks has other constructions."""


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
        self._ops: Counter[tuple[str, str]] = Counter()  # of the kernels drawn so far
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
        spare = int(_SPARE * count)
        wanted = self._quotas(count - spare, list(self._shares))
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
            hits: Counter[str] = Counter()
            for kernel in self._rare_first(self._heavy_first(kernels)):
                kind = kind_of(kernel)
                if kind not in wanted or len(found) == count:
                    continue
                self._yields.setdefault(kind, set()).add(family.name)
                most = _MOST_A_NETWORK.get(kind, _MOST_OF_OTHERS)
                usual = wanted[kind] > 0 and hits[kind] < most
                first = spare > 0 and not self._ops[op_of(kernel)]
                if (usual or first) and self._is_new(kernel, barred):
                    self._drawn.add(kernel.kernel_id)
                    self._ops[op_of(kernel)] += 1
                    found.append(kernel)
                    hits[kind] += 1
                    spare -= not usual
                    wanted[kind] -= usual
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
            tries = _DRAWN_TRIES if family.drawn else _TRIES
            if family.name in useful or self._tried[family.name] < tries:
                break
        return family

    def _endless_turns(self) -> Iterator[Family]:
        """Families without end: all lineages in a random order, again and again.

        A turn takes a lineage and not a family, because most families are mobile networks. The
        families of a lineage come one after the other, in a random order.
        """
        lines: dict[frozenset[str], list[Family]] = {}
        for family in self._families:
            lines.setdefault(family.lineage, []).append(family)
        turn = [key for key, line in lines.items() for _ in range(_TURNS.get(line[0].name, 1))]
        left: dict[frozenset[str], list[Family]] = {}
        while True:
            self._random.shuffle(turn)
            for key in turn:
                if not left.get(key):
                    left[key] = self._random.sample(lines[key], len(lines[key]))
                yield left[key].pop()

    def networks(self, *, macs: tuple[float, float], wide: float = 0.0) -> Iterator[Graph]:
        """Whole networks like those that kernels are taken from, all different.

        They end only when the families have no more.

        Args:
            macs: least and most multiply-adds of a network.
            wide: share of networks that must have wide windows of stride 1, which plain draws
                hardly contain. Families without such windows wait for another network. Where no
                family has them, others take their turn.
        """
        found: set[str] = set()
        waiting: deque[Family] = deque()
        idle = 0
        while idle < _PATIENCE:
            wanted = math.floor((len(found) + 1) * wide) > math.floor(len(found) * wide)
            wanted = wanted and idle < _PATIENCE // 2
            family = waiting.popleft() if waiting and not wanted else next(self._turns)
            graph = self._fitting_network(family, macs, found, wide=wanted)
            idle += 1
            if graph is None and wanted:
                waiting.append(family)
            elif graph is not None:
                found.add(hash_of(graph))
                idle = 0
                yield graph

    def _fitting_network(
        self, family: Family, macs: tuple[float, float], barred: Collection[str], *, wide: bool
    ) -> Graph | None:
        """A network of a family with so many multiply-adds; None if a few tries find none.

        Args:
            family: what to build.
            macs: least and most multiply-adds.
            barred: hashes of networks that were found before.
            wide: whether it must have wide windows of stride 1.
        """
        for _ in range(_FITTING_TRIES):
            graph = self._drawn_network(family, wide=wide)
            if graph is None or hash_of(graph) in barred:
                continue
            if wide and wide_windows(graph) < _LEAST_WIDE:
                continue
            if macs[0] <= graph_totals(graph).macs <= macs[1]:
                return graph
        return None

    def _network(self, family: Family, rules: FusionRules) -> list[Kernel]:
        """The kernels of one drawn network of `family`."""
        graph = self._drawn_network(family)
        return [] if graph is None else split(graph, rules)

    def _drawn_network(self, family: Family, *, wide: bool = False) -> Graph | None:
        """A network of `family` with drawn sizes; None where these do not fit together.

        Windows that their maps are too small for do not fit, see `windows`.

        Args:
            family: what to build.
            wide: whether all windows are redrawn, most of them wide.
        """
        draw = self._random
        if family.task == "language":
            resolution = draw.choice(_TOKENS)
        elif family.resolution <= _TINY_IMAGE:
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
            graph = family.build(resolution=resolution, design=design)
        except GraphError:  # a kernel is larger than its map
            return None
        return None if has_idle_windows(graph) else graph

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

    def _rare_first(self, kernels: list[Kernel]) -> list[Kernel]:
        """The same order, but kernels of ops that were hardly drawn so far come first."""
        return sorted(kernels, key=lambda kernel: self._ops[op_of(kernel)] >= _LEAST_OF_AN_OP)

    def _is_new(self, kernel: Kernel, barred: frozenset[str]) -> bool:
        work = workload(kernel)
        size_bytes = work.input_bytes + work.output_bytes + work.weight_bytes
        if size_bytes > self._max_bytes or work.macs > self._max_macs:
            return False
        return kernel.kernel_id not in self._drawn and kernel.kernel_id not in barred
