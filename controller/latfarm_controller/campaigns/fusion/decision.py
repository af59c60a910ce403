"""Whether the measured times of two ops, alone and connected, say that they run as one kernel.

The rule is nn-Meter's inequation 1: T1 + T2 - T12 > alpha * min(T1, T2), where T1 and T2 are the
times of the ops alone and T12 is the time of the connected model. The time of the empty model is
subtracted from all three. The answer is `undecided` where the measurements spread too much to tell.
All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.fusion.cases import Branch

Answer = Literal["fused", "separate", "undecided"]

NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
MEDIAN_ERROR = 1.2533
"""Standard error of the median of normal samples over that of their mean: sqrt(pi / 2)."""

_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""Factor by which the median absolute deviation of so few normal samples must be enlarged on top of
`NORMAL_MAD` (Croux and Rousseeuw 1992). Without it, three rounds that agree by chance would look
certain."""
_LARGE_SAMPLE = 1.05
"""The factor for the median absolute deviation of ten samples and more."""

_STUDENT = {2: 78.6, 3: 6.4, 4: 3.07, 5: 2.21, 6: 1.84, 7: 1.63, 8: 1.51, 9: 1.43, 10: 1.36}
"""Factor by which three standard errors must be enlarged where the error was estimated from so few
values: quantiles of Student's t at the probability of three normal deviations, over three."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
"""Ops with weights, which runtimes fuse with what follows them."""
_APPENDED = frozenset({"BatchNormalization", "Relu", "Clip"})
"""Ops that runtimes fuse with an op with weights before them."""
_LIKELY, _UNLIKELY = math.log(4.0), math.log(1.0 / 9.0)
"""Log odds of fusion before any measurement, for such pairs and for all others."""
_CACHED_SHARE = 0.25
"""Standard deviation of what connecting two ops saves besides a kernel, as a share of the cheaper
op's time: a tensor that is still in the cache makes the second op faster."""
_LEAST_ORDER_GAP = 0.01
"""A difference between two orders of branches below this share of the whole time is chance."""
_LEAST_SHOWN = 4
"""Number of rounds from which their own spread counts beside a noise that is known already."""
_LEAST_ORDER_ROUNDS = 3
"""Number of rounds from which two orders of branches are compared."""


@dataclass(frozen=True, slots=True)
class Triple:
    """One round of a pair: Op1 alone, Op2 alone and both connected, measured one after the other.

    Attributes:
        first: Op1 alone.
        second: Op2 alone.
        connected: Op1 followed by Op2.
        empty_ms: the time of the empty model in the same round.
    """

    first: Measurement
    second: Measurement
    connected: Measurement
    empty_ms: float

    @property
    def ok(self) -> bool:
        """Whether all three measurements succeeded."""
        return self.first.ok and self.second.ok and self.connected.ok


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When times are clear enough for an answer.

    Attributes:
        alpha: the threshold of inequation 1.
        gate: the answer is `undecided` unless min(T1, T2) exceeds this many standard errors of T12.
        sureness: the answer is `undecided` unless the inequation holds or fails by this many
            standard errors.
        paired: the gate uses the standard error of min(T1, T2), as each round shows it, instead of
            that of T12. This is right where all models of a round share most of their time, so that
            a disturbance cancels.
        least_base_ms: the answer is `undecided` where min(T1, T2) is not longer than this: such an
            op is no kernel of its own even when it stands alone.
        noise: relative standard deviation of a measurement, as repeats of other models show it.
            With it, few rounds are enough, because a pair need not show its own spread. 0: the
            pair's own rounds alone show it, of which it needs at least two.
    """

    alpha: float = 0.5
    gate: float = 5.0
    sureness: float = 2.0
    paired: bool = False
    least_base_ms: float = 0.0
    noise: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What the times of one test case say.

    Attributes:
        answer: fused, separate or undecided.
        gain_ms: T1 + T2 - T12, without the time of the empty model.
        base_ms: min(T1, T2), without the time of the empty model.
        connected_ms: T12, without the time of the empty model.
        connected_spread_ms: standard error of T12.
        score_spread_ms: standard error of gain - alpha * base, which decides the inequation.
        log_odds: log odds of fused against separate, by the times alone.
        rounds: number of rounds in which all measurements succeeded.
        base_spread_ms: standard error of `base_ms`.
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
        """Share of the cheaper op's time that connecting saves: about 0 separate, about 1 fused."""
        return self.gain_ms / self.base_ms if self.base_ms > 0 else 0.0

    @property
    def margin(self) -> float:
        """How clear the answer is: the absolute value of the log odds."""
        return abs(self.log_odds)


def standard_error(values: Sequence[float]) -> float:
    """Robust standard error of the median of `values`; infinite for fewer than two."""
    count = len(values)
    if count < 2:
        return math.inf
    middle = median(values)
    deviation = median(abs(v - middle) for v in values)
    enlarged = NORMAL_MAD * _SMALL_SAMPLE.get(count, _LARGE_SAMPLE)
    return enlarged * deviation * MEDIAN_ERROR / math.sqrt(count)


def student(rounds: int) -> float:
    """Return the factor that enlarges an error which was estimated from so few rounds."""
    if rounds < 2:
        return math.inf
    return _STUDENT.get(rounds, 1.0 + 3.0 / (rounds - 1))


def _own_error(measurement: Measurement) -> float:
    """Standard error of a measurement's median, by the spread of its own runs.

    It is the least error that is assumed, since a few rounds may agree by chance.
    """
    deviation = MEDIAN_ERROR * NORMAL_MAD * (measurement.mad_ms or 0.0)
    return deviation / math.sqrt(max(1, measurement.runs))


def paper_says(triples: Sequence[Triple], alpha: float = 0.5) -> Answer:
    """Inequation 1 as printed: with the times as measured, the call's included, and no spread.

    The answer is `undecided` only where nothing was measured.
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
    thresholds: Thresholds = Thresholds(),
    offsets_ms: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Decision:
    """Apply the rule to the rounds of a test case.

    Args:
        triples: the rounds; those with a failed measurement are left out.
        thresholds: when times are clear enough for an answer.
        offsets_ms: what to subtract from Op1, Op2 and the connected model in addition to the time
            of the empty model: the difference between their pads and the pads that stand for the
            empty model.
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
    scores = [g - thresholds.alpha * b for g, b in zip(gains, bases, strict=True)]
    per_round = median(
        math.sqrt(sum(_own_error(m) ** 2 for m in (t.first, t.second, t.connected))) for t in good
    )
    if thresholds.noise:
        per_round = max(per_round, thresholds.noise * median(map(_root_of_squares_ms, good)))
    own_connected = max(
        median(_own_error(t.connected) for t in good), thresholds.noise * median(connected)
    )
    shown = [_shown_error(values, thresholds) for values in (scores, connected, bases)]
    score_error = max(shown[0], per_round / math.sqrt(len(good)))
    connected_error = max(shown[1], own_connected / math.sqrt(len(good)))
    base_error = max(shown[2], per_round / math.sqrt(len(good)))
    gate_error = base_error if thresholds.paired else connected_error
    return Decision(
        _answer(gain, base, score_error, gate_error, thresholds),
        gain,
        base,
        median(connected) - median(empty),
        connected_error,
        score_error,
        _log_odds(gain, base, score_error),
        len(good),
        base_error,
    )


def _root_of_squares_ms(triple: Triple) -> float:
    """The root of the sum of the squares of a round's four times."""
    times = [m.latency_ms or 0.0 for m in (triple.first, triple.second, triple.connected)]
    return math.hypot(*times, triple.empty_ms)


def _shown_error(values: Sequence[float], thresholds: Thresholds) -> float:
    """The standard error that the rounds show; 0 for too few rounds beside a known noise."""
    if thresholds.noise and len(values) < _LEAST_SHOWN:
        return 0.0
    return standard_error(values)


def _answer(
    gain_ms: float, base_ms: float, score_error: float, gate_error: float, thresholds: Thresholds
) -> Answer:
    score = gain_ms - thresholds.alpha * base_ms
    known_ms = max(thresholds.gate * gate_error, thresholds.least_base_ms)
    if base_ms <= known_ms or abs(score) <= thresholds.sureness * score_error:
        return "undecided"
    return "fused" if score > 0 else "separate"


def _log_odds(gain_ms: float, base_ms: float, error_ms: float) -> float:
    # If the ops are fused, the gain is the cheaper op's time; if they are separate, it is 0. Both
    # hold up to `_CACHED_SHARE` of that time and the measurement error.
    if base_ms <= 0 or not math.isfinite(error_ms):
        return 0.0
    variance = error_ms**2 + (_CACHED_SHARE * base_ms) ** 2
    return base_ms * (2 * gain_ms - base_ms) / (2 * variance)


def prior_log_odds(first: str, second: str) -> float:
    """Log odds of fusion before any measurement, by the names of the ops.

    All runtimes of the papers fold a batch-norm or a clamp into the convolution or matrix product
    before it. The odds are 4 : 1 for such pairs, so that measurements can still overrule them, and
    1 : 9 for all other pairs, which are rarely fused.
    """
    return _LIKELY if first in _WEIGHTED and second in _APPENDED else _UNLIKELY


def closest_plan(
    measured_ms: float, plans: Mapping[Branch, float], spread_ms: float
) -> tuple[Branch, bool]:
    """The plan of nn-Meter's Fig. 4 whose time is closest, and whether the choice is clear.

    Both plans that fuse a branch save the same memory traffic, so that their times are often equal
    within the spread. Then the first branch is taken, which is visited first, and the choice counts
    as not clear.

    Args:
        measured_ms: time of the connected model.
        plans: time of each plan, by the branch that it fuses (0: none).
        spread_ms: standard error of the measured time.
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
    first_ms: Sequence[float],
    last_ms: Sequence[float],
    sureness: float = 3.0,
    noise: float = 0.0,
) -> Branch | None:
    """The branch that a join is fused with, by the times of a wide branch in either place.

    The join is fused with the wide branch in the faster order. None: neither order is clearly
    faster. With `noise` it may be asked after each round: a few rounds that agree by chance are no
    answer, because the noise of all models bounds their error from below.

    Args:
        first_ms: times with the wide branch as the first, in ms.
        last_ms: times with the wide branch as the last, in ms, of the same rounds.
        sureness: standard errors by which one order must be faster.
        noise: relative standard deviation of a measurement, as repeats of other models show it; 0:
            the rounds alone show it.
    """
    gaps = [last - first for first, last in zip(first_ms, last_ms, strict=True)]
    if len(gaps) < _LEAST_ORDER_ROUNDS:
        return None
    gap, middle_ms = median(gaps), median(first_ms)
    error_ms = standard_error(gaps)
    of_gap_ms = math.sqrt(2.0) * noise * middle_ms
    error_ms = max(error_ms, MEDIAN_ERROR * of_gap_ms / math.sqrt(len(gaps)))
    if abs(gap) <= max(sureness * error_ms, _LEAST_ORDER_GAP * middle_ms):
        return None
    return 1 if gap > 0 else 2
