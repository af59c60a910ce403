"""The decisions of the measurement protocol as pure functions: when warm, when enough, what counts.

Warm-up goes on until two 5-run medians agree within 2 %; a session stops when the distribution-free
interval of its median is narrow enough; runs that others disturbed are dropped where enough remain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

PROTOCOL_VERSION = 1
"""Version of the protocol; results of different versions are never mixed."""

AGREEMENT = 0.02
"""Two 5-run medians within this share of each other: warm."""

WARMUP_CAP_MS = 60_000.0
PREEMPTED_SHARE = 0.05
PREEMPTED_MS = 0.02
PUBLISH_RUNS = 1024
PUBLISH_MS = 60_000.0
PUBLISH_KEPT_RUNS = 100_000
SLOWED = 1.15
"""A fixed loop that takes this many times its fastest: the core is slower than it can be."""

SPEED_FORGETTING = 1.0001
"""So much slower may the known fastest loop become each session, to follow a lasting change."""

OVERTIME = 3.0
"""A session of too long or too few clean runs may take this many times `max_ms` and `max_runs`."""

LEAST_RUNS = 3
"""Even then: below three runs there is no median to speak of."""

ENERGY_UNAVAILABLE = "ENERGY_UNAVAILABLE"
"""Why a good measurement has no energy: said in its conditions, never as a zero."""

ENERGY_SPANS = 5
"""The runs for energy are told in so many spans, so that a disturbed one can be left out."""

SETTLE_MS = 300.0
"""Before rest counts: runtimes' threads spin for up to 200 ms, and rails average over as much."""

LEAD_MS = 300.0
"""Runs before those that count, so that a rail that averages or lags has caught up."""

TAIL_MS = 100.0
"""Runs, or rest, after those that count: two samples of a rail lie around every end."""

MOST_REST_MS = 10_000.0


class SettingsError(ValueError):
    """Settings that contradict themselves; the message says which and what is allowed."""


@dataclass(frozen=True)
class TimingSettings:
    """How to measure, as in `agent.proto`. Times in milliseconds, counts are for one session."""

    tier: str = "survey"
    sessions: int = 3
    warmup_runs: int = 5
    warmup_ms: float = 50.0
    min_runs: int = 10
    max_runs: int = 200
    max_ms: float = 150.0
    cold_runs: int = 0
    compile_timeout_ms: float = 900_000.0
    run_timeout_ms: float = 60_000.0
    precision: float = 0.02
    energy_ms: float = 0.0

    @property
    def least_ms(self) -> float:
        """A session's timed part is at least this long.

        publish: 60 s in sum. survey: a tenth of `max_ms`, as ten runs of a 20 us kernel are over
        before the host's noise has shown itself.
        """
        if self.tier == "publish":
            return PUBLISH_MS / self.sessions
        return self.max_ms / 10

    @property
    def warmup_cap_ms(self) -> float:
        """Warm-up ends here even when it has not settled (publish: 60 s)."""
        if self.tier == "publish":
            return WARMUP_CAP_MS
        return min(WARMUP_CAP_MS, max(2 * self.warmup_ms, self.max_ms / 2))

    def to_json(self) -> dict[str, Any]:
        """As plain JSON types; `from_json` reads it back equal."""
        return dict(self.__dict__)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TimingSettings:
        """Read what `to_json` wrote."""
        return TimingSettings(**data)


UNSET = TimingSettings(
    tier="",
    sessions=0,
    warmup_runs=0,
    warmup_ms=0.0,
    min_runs=0,
    max_runs=0,
    max_ms=0.0,
    cold_runs=0,
    compile_timeout_ms=0.0,
    run_timeout_ms=0.0,
    precision=0.0,
    energy_ms=0.0,
)
"""Settings of a request that sets none; `effective` fills in the defaults."""


def effective(asked: TimingSettings) -> TimingSettings:
    """What is really done for what was asked: unset values filled, the publish tier's floors held.

    `sessions` 0 means that nothing was set of the timed part: the survey tier's defaults.

    Raises:
        SettingsError: an unknown tier, or a value out of bounds.
    """
    if asked.sessions == 0:
        asked = replace(TimingSettings(), tier=asked.tier or "survey", energy_ms=asked.energy_ms)
    settings = replace(
        asked,
        tier=asked.tier or "survey",
        min_runs=max(1, asked.min_runs),
        max_runs=asked.max_runs or TimingSettings.max_runs,
        compile_timeout_ms=asked.compile_timeout_ms or TimingSettings.compile_timeout_ms,
        run_timeout_ms=asked.run_timeout_ms or TimingSettings.run_timeout_ms,
    )
    if settings.tier == "publish":
        settings = replace(
            settings,
            min_runs=max(settings.min_runs, math.ceil(PUBLISH_RUNS / settings.sessions)),
            max_runs=min(
                max(settings.max_runs, math.ceil(PUBLISH_RUNS / settings.sessions)),
                PUBLISH_KEPT_RUNS // settings.sessions,
            ),
            max_ms=max(settings.max_ms, PUBLISH_MS / settings.sessions),
            warmup_runs=max(settings.warmup_runs, 10),
            warmup_ms=max(settings.warmup_ms, 2000.0),
        )
    settings = replace(settings, max_runs=max(settings.max_runs, settings.min_runs))
    bounds = {
        "sessions": (1, 100),
        "warmup_runs": (0, 10_000),
        "warmup_ms": (0.0, WARMUP_CAP_MS),
        "min_runs": (1, PUBLISH_KEPT_RUNS),
        "max_runs": (1, PUBLISH_KEPT_RUNS),
        "max_ms": (0.0, 600_000.0),
        "cold_runs": (0, 1000),
        "compile_timeout_ms": (1.0, 86_400_000.0),
        "run_timeout_ms": (1.0, 86_400_000.0),
        "precision": (0.0, 1.0),
        "energy_ms": (0.0, 600_000.0),
    }
    if settings.tier not in ("survey", "publish"):
        raise SettingsError(f"tier {settings.tier!r}: survey and publish are known")
    for name, (low, high) in bounds.items():
        value = getattr(settings, name)
        if not low <= value <= high:  # false for NaN too
            raise SettingsError(f"{name} {value!r}: must be within {low} and {high}")
    return settings


def rest_ms(settings: TimingSettings) -> float:
    """How long the board rests before and after the runs for energy: a quarter of these, each."""
    return min(max(250.0, settings.energy_ms / 4), MOST_REST_MS)


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def mad(values: Sequence[float]) -> float:
    """Median absolute deviation from the median, not scaled."""
    centre = median(values)
    return median([abs(value - centre) for value in values])


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median from order statistics, without a distribution.

    The ranks are those of the binomial's normal approximation, n/2 +- 0.98 sqrt(n); below six
    values no two of them reach 95 %: the interval is then infinite.
    """
    count = len(values)
    if count < 6:
        return (-math.inf, math.inf)
    ordered = sorted(values)
    reach = 0.98 * math.sqrt(count)
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach) - 1)
    return (ordered[low], ordered[high])


def precise(values: Sequence[float], precision: float) -> bool:
    """Whether half the interval of the median is within `precision` of it; 0 is never reached."""
    if precision <= 0 or not values:
        return False
    low, high = median_interval(values)
    return (high - low) / 2 <= precision * median(values)


def settled(values: Sequence[float]) -> bool:
    """Whether the medians of the last two groups of five runs agree within 2 %."""
    if len(values) < 10:
        return False
    before, now = median(values[-10:-5]), median(values[-5:])
    return abs(now - before) <= AGREEMENT * max(now, before)


def warm(
    values: Sequence[float], elapsed_ms: float, settings: TimingSettings, *, settles: bool
) -> bool:
    """Whether to stop warming up after these run times, the first run of the session left out.

    At least one run, then `warmup_runs` and `warmup_ms` and two medians that agree, or the cap.
    `settles`: False where time does not matter, only the count.
    """
    if not values:
        return False
    if elapsed_ms >= settings.warmup_cap_ms:
        return True
    if len(values) < settings.warmup_runs:
        return False
    if not settles:
        return True
    if elapsed_ms < settings.warmup_ms:
        return False
    return settings.warmup_runs == 0 or settled(values)


def preempted(wall_ms: float, cpu_ms: float) -> bool:
    """Whether a run spent time off its core: wall time over CPU time by more than 5 % + 20 us."""
    return wall_ms - cpu_ms > PREEMPTED_SHARE * cpu_ms + PREEMPTED_MS


def fastest(probes_us: Sequence[float], known_us: float) -> float:
    """The loop time of an undisturbed core: the 5 % quantile of these, or what was known before.

    `known_us` 0: nothing known.
    """
    here = sorted(probes_us)[len(probes_us) // 20]
    return min(here, known_us * SPEED_FORGETTING) if known_us else here


def slowdown(probes_us: Sequence[float], before: Sequence[int], fastest_us: float) -> list[float]:
    """For each run how many times slower than it can be the core was around it; 1 at least.

    `before` holds for each run the index of the last probe before it; the next one follows it. On a
    core that shares its execution units with another (a virtual machine's hidden sibling), a busy
    neighbour stretches wall and CPU time alike, up to twice: only work of known length tells.
    """
    if fastest_us <= 0:
        return [1.0] * len(before)
    last = len(probes_us) - 1
    return [
        max(1.0, (probes_us[index] + probes_us[min(index + 1, last)]) / (2 * fastest_us))
        for index in before
    ]


@dataclass(frozen=True)
class KeptRuns:
    """The runs that count, in order, with the core's slowdown beside each.

    `preempted_kept`: most runs lost the core, so those stayed among them.
    """

    runs_ms: list[float]
    slowdown: list[float]
    preempted_kept: bool = False

    @property
    def quick_ms(self) -> list[float]:
        """The runs as on an undisturbed core, to first order."""
        return [run / slow for run, slow in zip(self.runs_ms, self.slowdown)]


def kept(
    runs_ms: Sequence[float],
    preempted: Sequence[bool],
    slow: Sequence[float],
    min_runs: int,
) -> KeptRuns:
    """Drop preempted runs, unless fewer than half of all, or of `min_runs`, would remain."""
    chosen = [index for index, bad in enumerate(preempted) if not bad]
    too_few = len(chosen) * 2 < max(len(runs_ms), min_runs) and len(chosen) < len(runs_ms)
    if too_few:
        chosen = list(range(len(runs_ms)))
    return KeptRuns([runs_ms[i] for i in chosen], [slow[i] for i in chosen], too_few)


def enough(found: KeptRuns, runs: int, elapsed_ms: float, settings: TimingSettings) -> bool:
    """Whether a session may stop after `runs` timed runs, of which `found` would count.

    It stops at `max_runs`; at `max_ms` with `min_runs`; as soon as `min_runs` made the median
    precise enough and `least_ms` have passed. Where there are fewer because they are too long, it
    stops before a run that would end beyond 3 x `max_ms`, but not under three runs.
    """
    if runs >= settings.max_runs:
        return True
    if len(found.runs_ms) >= settings.min_runs:
        if elapsed_ms >= max(settings.max_ms, settings.least_ms):
            return True
        return elapsed_ms >= settings.least_ms and precise(found.quick_ms, settings.precision)
    if runs < LEAST_RUNS or settings.tier == "publish":
        return False
    return elapsed_ms + elapsed_ms / runs > OVERTIME * settings.max_ms


def next_check(runs: int, settings: TimingSettings) -> int:
    """At how many runs to look again: sorting after each run would cost more than short runs do."""
    if runs < settings.min_runs or runs < 10:
        return runs + 1
    return runs + min(max(1, runs // 8), max(1, settings.max_runs - runs))


def stride(run_ms: float, settings: TimingSettings) -> int:
    """Every how many runs one is recorded.

    1, except where a publish session of very short runs would record more than `max_runs` before
    its time is over.
    """
    if settings.tier != "publish" or run_ms <= 0:
        return 1
    return max(1, math.ceil(settings.least_ms / run_ms / settings.max_runs))
