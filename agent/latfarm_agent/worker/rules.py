"""The decisions of the measurement protocol as pure functions.

Warm-up continues until the medians of two groups of five runs agree within 2 %. A session stops
when the distribution-free interval of its median is narrow enough. Runs that other programs
disturbed are dropped if enough runs remain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

AGREEMENT = 0.02
"""The model is warm when two medians of five runs differ by at most this share."""

WARMUP_CAP_MS = 60_000.0
"""Longest warm-up."""

PREEMPTED_SHARE = 0.05
PREEMPTED_MS = 0.02
"""A run lost its core if its wall time exceeds its CPU time by more than this share plus this."""

PUBLISH_RUNS = 1024
PUBLISH_MS = 60_000.0
"""The publish tier takes at least so many runs, and so much time, over all sessions together."""

PUBLISH_KEPT_RUNS = 100_000
"""Most runs that a result of the publish tier records."""

SLOWED = 1.15
"""The core counts as slow if the probe takes this many times its fastest time."""

SPEED_FORGETTING = 1.0001
"""The known fastest probe becomes slower by this factor each session, to follow lasting changes."""

OVERTIME = 3.0
"""A session may take this many times `max_ms` if its runs are long or few of them are clean."""

LEAST_RUNS = 3
"""Least number of runs of a session: fewer than three have no useful median."""

ENERGY_UNAVAILABLE = "ENERGY_UNAVAILABLE"
"""Begins the condition that tells why a good measurement has no energy."""

ENERGY_SPANS = 5
"""The runs for energy are divided into so many spans, so that disturbed ones can be left out."""

SETTLE_MS = 300.0
"""How long to wait before a rest counts.

Threads of runtimes spin for up to 200 ms after a run, and rails average over as long a time.
"""

LEAD_MS = 300.0
"""How long the model runs before its runs count, as rails average or lag behind."""

TAIL_MS = 100.0
"""How long to continue after what counts, so that a rail is sampled on both sides of each end."""

MOST_REST_MS = 10_000.0
"""Longest rest before and after the runs for energy."""


class SettingsError(ValueError):
    """Settings that contradict themselves; the message says which ones, and what is allowed."""


@dataclass(frozen=True)
class TimingSettings:
    """How to measure; the fields are those of `Settings` in `agent.proto`.

    Times are in milliseconds; counts are for one session.
    """

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
        """Least duration of the timed part of a session.

        In the publish tier the sessions take 60 s together. In the survey tier it is a tenth of
        `max_ms`, because ten runs of a kernel of 20 us are too short to show the host's noise.
        """
        if self.tier == "publish":
            return PUBLISH_MS / self.sessions
        return self.max_ms / 10

    @property
    def warmup_cap_ms(self) -> float:
        """Longest warm-up, even if the latencies have not settled (publish tier: 60 s)."""
        if self.tier == "publish":
            return WARMUP_CAP_MS
        return min(WARMUP_CAP_MS, max(2 * self.warmup_ms, self.max_ms / 2))

    def to_json(self) -> dict[str, Any]:
        """Return this object as plain JSON types, which `from_json` reads."""
        return dict(self.__dict__)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TimingSettings:
        """Settings from what `to_json` gave."""
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
    """The settings that are used: with defaults, and with the publish tier's least values.

    `sessions` 0 means that the request sets nothing of the timed part; then the survey tier's
    defaults are used.

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
    """Duration of each rest before and after the runs for energy: a quarter of the runs' time."""
    return min(max(250.0, settings.energy_ms / 4), MOST_REST_MS)


def median(values: Sequence[float]) -> float:
    """The median of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median from order statistics, for any distribution.

    The ranks n/2 +- 0.98 sqrt(n) come from the normal approximation of the binomial distribution.
    With fewer than six values no two ranks reach 95 %; the interval is then infinite.
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
    """Whether half the median's interval is at most `precision` of the median; never for 0."""
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
    """Whether the warm-up may stop.

    It takes at least one run. It stops after `warmup_runs` and `warmup_ms` when two medians agree,
    or at its longest duration.

    Args:
        values: latencies of the warm-up's runs; the session's first run is not among them.
        elapsed_ms: duration of the warm-up so far.
        settings: the settings of the measurement.
        settles: False: time does not matter, only the number of runs.
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
    """Whether a run lost its core: wall time exceeds CPU time by more than 5 % + 20 us."""
    return wall_ms - cpu_ms > PREEMPTED_SHARE * cpu_ms + PREEMPTED_MS


def fastest(probes_us: Sequence[float], known_us: float) -> float:
    """Time of the probe on an undisturbed core: the 5 % quantile, or what was known before.

    `known_us` 0 means that nothing was known.
    """
    here = sorted(probes_us)[len(probes_us) // 20]
    return min(here, known_us * SPEED_FORGETTING) if known_us else here


def slowdown(probes_us: Sequence[float], before: Sequence[int], fastest_us: float) -> list[float]:
    """For each run, how many times slower the core was than it can be; at least 1.

    `before` holds for each run the index of the last probe before it; the next probe follows it.
    A core may share its execution units with another one, which a virtual machine does not see. A
    busy neighbour then makes wall time and CPU time longer alike, up to twice. Only work of a known
    length shows that.
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
    """The runs that count, in order, and the core's slowdown during each of them.

    `preempted_kept`: most runs lost the core, so runs that lost it are kept too.
    """

    runs_ms: list[float]
    slowdown: list[float]
    preempted_kept: bool = False

    @property
    def quick_ms(self) -> list[float]:
        """Estimated latencies on an undisturbed core: each latency divided by its slowdown."""
        return [run / slow for run, slow in zip(self.runs_ms, self.slowdown)]


def kept(
    runs_ms: Sequence[float],
    preempted: Sequence[bool],
    slow: Sequence[float],
    min_runs: int,
) -> KeptRuns:
    """Drop runs that lost the core, unless fewer than half of the runs would remain.

    Half of `min_runs` must remain as well.
    """
    chosen = [index for index, bad in enumerate(preempted) if not bad]
    too_few = len(chosen) * 2 < max(len(runs_ms), min_runs) and len(chosen) < len(runs_ms)
    if too_few:
        chosen = list(range(len(runs_ms)))
    return KeptRuns([runs_ms[i] for i in chosen], [slow[i] for i in chosen], too_few)


def enough(found: KeptRuns, runs: int, elapsed_ms: float, settings: TimingSettings) -> bool:
    """Whether a session may stop after `runs` timed runs, of which `found` would count.

    It stops at `max_runs`. With at least `min_runs` it stops at `max_ms`, or once the median is
    precise enough and `least_ms` have passed. With fewer runs, because they are long, it stops
    before a run that would end after 3 x `max_ms`, but not below three runs.
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
    """The number of runs at which to check again, as a check costs more than a short run."""
    if runs < settings.min_runs or runs < 10:
        return runs + 1
    return runs + min(max(1, runs // 8), max(1, settings.max_runs - runs))


def stride(run_ms: float, settings: TimingSettings) -> int:
    """Say of how many runs one is recorded.

    That is 1, unless a session of the publish tier with very short runs would record more than
    `max_runs` within its time.
    """
    if settings.tier != "publish" or run_ms <= 0:
        return 1
    return max(1, math.ceil(settings.least_ms / run_ms / settings.max_runs))
