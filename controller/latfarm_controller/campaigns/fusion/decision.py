"""Deciding from times, and from profiles, whether two ops run as one kernel. Pure functions.

Rule (nn-Meter, inequation 1): T1 + T2 - T12 > alpha * min(T1, T2), with the time of the empty model
taken off all three, and `undecided` as third answer where the measured spread drowns the question.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from latfarm_predictors.graph.graph import Node
from latfarm_predictors.measurement import Measurement, ProfiledLayer

from latfarm_controller.campaigns.fusion.cases import Branch
from latfarm_controller.campaigns.profiles.profiled_networks import LAYOUT_OPS

Answer = Literal["fused", "separate", "undecided"]

# Consistency of the median absolute deviation of few normal samples (Croux and Rousseeuw 1992), on
# top of 1.4826: without it, three rounds that agree by chance would look certain.
_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}

# An exporter's or a compiler's changes of layout or element type are no op of the model, nor are
# its constants. MNN's rasters move data: they change a layout, and do a concatenation on the way.
_LAYOUT_LAYERS = LAYOUT_OPS | {
    "Raster",
    "MemoryData",
    "DequantizeLinear",
    "QuantizeLinear",
    "Reformat",
    "Transpose",
    "Reshape",
    "Cast",
    "Copy",
    "Identity",
}

ABSORBED = 0.5
"""Not what a warm cache saves, nor what noise of one profile does."""

# How many times farther than three standard errors a rare value lies where the error itself was
# told from few values: quantiles of Student's t at the probability of three normal deviations.
_STUDENT = {2: 78.6, 3: 6.4, 4: 3.07, 5: 2.21, 6: 1.84, 7: 1.63, 8: 1.51, 9: 1.43, 10: 1.36}

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_APPENDED = frozenset({"BatchNormalization", "Relu", "Clip"})


@dataclass(frozen=True, slots=True)
class Triple:
    """One round of a pair: Op1 alone, Op2 alone, connected, and the empty model, taken together."""

    first: Measurement
    second: Measurement
    connected: Measurement
    empty_ms: float

    @property
    def ok(self) -> bool:
        """Whether all three have a latency."""
        return self.first.ok and self.second.ok and self.connected.ok


@dataclass(frozen=True, slots=True)
class Decision:
    """What the times of one case say.

    `gain_ms` is T1 + T2 - T12, `base_ms` min(T1, T2), both without the empty model's time;
    `ratio` their quotient: about 0 for separate ops, about 1 for fused ones. `log_odds` are those
    of fused against separate by the times alone.
    """

    answer: Answer
    gain_ms: float
    base_ms: float
    connected_ms: float
    connected_spread_ms: float
    score_spread_ms: float
    log_odds: float
    rounds: int
    base_spread_ms: float = math.inf

    @property
    def ratio(self) -> float:
        """Share of the cheaper op's time that connecting saved."""
        return self.gain_ms / self.base_ms if self.base_ms > 0 else 0.0

    @property
    def margin(self) -> float:
        """How far the answer is from the threshold, in standard errors."""
        return abs(self.log_odds)


def standard_error(values: Sequence[float]) -> float:
    """Robust standard error of the median of `values`; infinite for fewer than two."""
    count = len(values)
    if count < 2:
        return math.inf
    middle = median(values)
    deviation = median(abs(v - middle) for v in values)
    return 1.4826 * _SMALL_SAMPLE.get(count, 1.05) * deviation * 1.2533 / math.sqrt(count)


def student(rounds: int) -> float:
    """By how much more doubt a spread of so few rounds leaves than one that is well known."""
    if rounds < 2:
        return math.inf
    return _STUDENT.get(rounds, 1.0 + 3.0 / (rounds - 1))


def _own_error(measurement: Measurement) -> float:
    # Standard error of a measurement's median by its own runs alone: a floor under what the rounds
    # show, which by chance may agree.
    return 1.2533 * 1.4826 * (measurement.mad_ms or 0.0) / math.sqrt(max(1, measurement.runs))


def paper_says(triples: Sequence[Triple], alpha: float = 0.5) -> Answer:
    """Inequation 1 as printed: the times as measured, the call's own included, and no doubt.

    Undecided only where nothing was measured.
    """
    good = [t for t in triples if t.ok]
    if not good:
        return "undecided"
    first, second, connected = (
        median(m.latency_ms or 0.0 for m in found)
        for found in (
            [t.first for t in good],
            [t.second for t in good],
            [t.connected for t in good],
        )
    )
    saved_ms = first + second - connected
    return "fused" if saved_ms > alpha * min(first, second) else "separate"


def decide(
    triples: Sequence[Triple],
    *,
    alpha: float = 0.5,
    gate: float = 5.0,
    sureness: float = 2.0,
    offsets_ms: tuple[float, float, float] = (0.0, 0.0, 0.0),
    paired: bool = False,
    least_base_ms: float = 0.0,
) -> Decision:
    """Apply the rule to a case's rounds.

    Args:
        triples: the rounds; those with a failure are left out.
        alpha: the paper's threshold.
        gate: `undecided` unless min(T1, T2) exceeds this many standard errors of T12.
        sureness: `undecided` unless the rule holds or fails by this many standard errors.
        offsets_ms: to be taken off Op1, Op2 and the connected model beside the empty model's time:
            by how much their pads differ from those that stand for the empty model.
        paired: the gate is about min(T1, T2) as each round shows it, in place of T12: where all of
            a round's models share most of their time, what disturbs it cancels.
        least_base_ms: an op that takes less is no kernel of its own even when it stands alone.
    """
    good = [t for t in triples if t.ok]
    if not good:
        return Decision("undecided", 0.0, 0.0, 0.0, math.inf, math.inf, 0.0, 0)
    first = [(t.first.latency_ms or 0.0) - offsets_ms[0] for t in good]
    second = [(t.second.latency_ms or 0.0) - offsets_ms[1] for t in good]
    connected = [(t.connected.latency_ms or 0.0) - offsets_ms[2] for t in good]
    empty = [t.empty_ms for t in good]
    gains = [a + b - c - e for a, b, c, e in zip(first, second, connected, empty, strict=True)]
    bases = [min(a, b) - e for a, b, e in zip(first, second, empty, strict=True)]
    gain, base = median(gains), median(bases)
    scores = [g - alpha * b for g, b in zip(gains, bases, strict=True)]
    per_round = median(
        math.sqrt(sum(_own_error(m) ** 2 for m in (t.first, t.second, t.connected))) for t in good
    )
    score_error = max(standard_error(scores), per_round / math.sqrt(len(good)))
    connected_error = max(
        standard_error(connected),
        median(_own_error(t.connected) for t in good) / math.sqrt(len(good)),
    )
    base_error = max(standard_error(bases), per_round / math.sqrt(len(good)))
    score = gain - alpha * base
    answer: Answer
    known_ms = max(gate * (base_error if paired else connected_error), least_base_ms)
    if base <= known_ms or abs(score) <= sureness * score_error:
        answer = "undecided"
    else:
        answer = "fused" if score > 0 else "separate"
    return Decision(
        answer,
        gain,
        base,
        median(connected) - median(empty),
        connected_error,
        score_error,
        _log_odds(gain, base, score_error),
        len(good),
        base_error,
    )


def _log_odds(gain_ms: float, base_ms: float, error_ms: float) -> float:
    # Fused: the gain is the cheaper op's time. Separate: no gain. Either is true to about a quarter
    # of that time, since a tensor that is still in the cache makes the second op faster.
    if base_ms <= 0 or not math.isfinite(error_ms):
        return 0.0
    variance = error_ms**2 + (0.25 * base_ms) ** 2
    return base_ms * (2 * gain_ms - base_ms) / (2 * variance)


def prior_log_odds(first: str, second: str) -> float:
    """Log odds of fusion before any measurement, by the ops' names.

    Every runtime of the papers folds a batch-norm or a clamp into the convolution or matrix product
    before it (4 : 1 here, to leave room for measurement); other pairs are rarely fused (1 : 9).
    """
    if first in _WEIGHTED and second in _APPENDED:
        return math.log(4.0)
    return math.log(1.0 / 9.0)


def work_layers(layers: Sequence[ProfiledLayer]) -> list[ProfiledLayer]:
    """The layers that are ops of the model: without layout changes and copies."""
    return [layer for layer in layers if layer.op not in _LAYOUT_LAYERS]


def profile_says_fused(parts: Sequence[Measurement], connected: Measurement) -> bool | None:
    """Whether the runtime's own profile shows fewer layers than its parts have.

    None: it tells nothing.
    Counting layers, rather than looking for names, bears runtimes that run one op as two layers.
    """
    counts = [len(work_layers(m.layers)) for m in (*parts, connected)]
    if any(count == 0 for count in counts):
        return None
    return counts[-1] < sum(counts[:-1])


def absorbed(parts: Sequence[Measurement], connected: Measurement) -> bool:
    """Whether a profile shows that one of two ops is not run behind the other as it is alone.

    Connected, both take less than `ABSORBED` of what the dearer one takes by itself: a clamp of
    XNNPACK behind a quantised sum, where a Relu alone is a kernel of another library and a hundred
    times as slow. Whatever layers are shown, what the two take is known of both together alone.
    To be asked of a second op that a file may write into the first: of others, what is saved may
    be the moving of tensors, which halves two convolutions in Vela's profiles.
    """
    alone = [sum(layer.latency_ms for layer in m.layers) for m in parts]
    both = sum(layer.latency_ms for layer in connected.layers)
    return 0.0 < both < ABSORBED * max(alone)


def closest_plan(
    measured_ms: float, plans: Mapping[Branch, float], spread_ms: float
) -> tuple[Branch, bool]:
    """Fig. 4: the plan whose time is closest, and whether it is clear.

    Both fused plans save the same memory traffic, so they often tie within the spread: then the
    first branch is taken, as the one visited first, and the answer is clear only if not fusing is
    farther away than the spread.
    """
    distance = {plan: abs(measured_ms - cost) for plan, cost in plans.items()}
    best = min(distance, key=lambda plan: (distance[plan], plan))
    if best == 0:
        others = [d for plan, d in distance.items() if plan != 0]
        return 0, not others or min(others) - distance[0] > spread_ms
    clear = 0 not in distance or distance[0] - distance[best] > spread_ms
    if best == 2 and 1 in distance and distance[1] - distance[2] <= spread_ms:
        return 1, False
    if best == 1 and 2 in distance and distance[2] - distance[1] <= spread_ms:
        return 1, False
    return best, clear


def which_order(
    first_ms: Sequence[float], last_ms: Sequence[float], sureness: float = 3.0
) -> Branch | None:
    """Into which branch a join is merged, by a wide branch's times as the first and as the last.

    The faster order is the one in which it runs with the wide branch. None: no order is surely
    faster; what makes up less than a hundredth of the whole is chance.
    """
    gaps = [last - first for first, last in zip(first_ms, last_ms, strict=True)]
    if len(gaps) < 3:
        return None
    gap = median(gaps)
    if abs(gap) <= max(sureness * standard_error(gaps), 0.01 * median(first_ms)):
        return None
    return 1 if gap > 0 else 2


def together(layers: Sequence[ProfiledLayer], first: Node, second: Node) -> bool | None:
    """Whether one layer covers both nodes, for runtimes that name what a layer covers ("a+b").

    None: one of the nodes is not named by any layer.
    """
    found = [
        {i for i, layer in enumerate(layers) if _covers(layer, node)} for node in (first, second)
    ]
    return bool(found[0] & found[1]) if all(found) else None


def merged_branch(
    layers: Sequence[ProfiledLayer], first: Node, last: Node, join: Node
) -> Branch | None:
    """Which of two branches a join was merged into; None: unknown.

    Told by a layer that covers both; failing that by order: the merged branch runs last, as it
    needs the other's result.
    """
    work = work_layers(layers)
    if together(work, first, join):
        return 1
    if together(work, last, join):
        return 2
    order: list[Branch] = []
    for layer in work:
        if _covers(layer, first):
            order.append(1)
        if _covers(layer, last):
            order.append(2)
    return order[-1] if {1, 2} == set(order) else None


def _covers(layer: ProfiledLayer, node: Node) -> bool:
    names = (node.name, *(name for name in node.outputs if name))
    return any(_names_match(part, name) for part in layer.name.split("+") for name in names)


def _names_match(layer: str, name: str) -> bool:
    # Runtimes append their own words to a name: conv_1_nchwc, but conv_10 is another node.
    if not layer.startswith(name):
        return False
    return layer[len(name) : len(name) + 1] in ("", "_", "/", ":", ";", " ")
