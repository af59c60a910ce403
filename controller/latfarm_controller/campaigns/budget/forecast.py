"""What a characterisation will cost, before it is started: measurements and minutes by stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.campaigns.budget.shares import Shares

LEAST_KNOWN = 5
"""Number of earlier measurements of a purpose from which their mean duration is believed."""
PURPOSES: Mapping[str, str] = {
    "fusion tests": "fusion",
    "profiled networks": "context",
    "probes": "probe",
    "kernels": "kernel",
    "sentinels": "sentinel",
    "calibration networks": "network",
}
"""The purpose of the measurements of each stage, in the order in which stages are told."""


@dataclass(frozen=True)
class StageForecast:
    """What one stage will cost at most.

    Attributes:
        stage: its name.
        measurements: largest number of measurements.
        minutes: board time of these, in minutes.
        known: whether earlier measurements on the platform tell the time; otherwise it is the
            longest time that the settings of the measurements allow.
    """

    stage: str
    measurements: int
    minutes: float
    known: bool


@dataclass(frozen=True)
class Forecast:
    """What all stages will cost at most.

    Attributes:
        stages: the stages.
        limit_minutes: longest board time of all of them together; None: no limit.
    """

    stages: tuple[StageForecast, ...]
    limit_minutes: float | None = None

    @property
    def asked_minutes(self) -> float:
        """Board time of all measurements, in minutes, as if there were no limit of time."""
        return sum(stage.minutes for stage in self.stages)

    @property
    def minutes(self) -> float:
        """Board time in minutes, within the limit."""
        limit = self.limit_minutes
        return self.asked_minutes if limit is None else min(limit, self.asked_minutes)

    @property
    def asked(self) -> int:
        """Number of measurements, as if there were no limit of time."""
        return sum(stage.measurements for stage in self.stages)

    @property
    def measurements(self) -> int:
        """Number of measurements that fit into the limit of time."""
        if self.asked_minutes <= 0:
            return self.asked
        return round(self.asked * self.minutes / self.asked_minutes)

    @property
    def known(self) -> bool:
        """Whether earlier measurements tell the time of most measurements."""
        told = sum(stage.measurements for stage in self.stages if stage.known)
        return 2 * told > self.asked

    @property
    def sentence(self) -> str:
        """The cost in one clause."""
        how = "about" if self.known else "at most about"
        told = f"{self.measurements} measurements, {how} {_told(self.minutes)} of board time"
        left = self.asked - self.measurements
        if left <= 0:
            return told
        return f"{told}, because --budget-minutes leaves out some {left} of {self.asked}"

    def to_json(self) -> dict[str, Any]:
        """The forecast as plain JSON types."""
        return {
            "measurements": self.measurements,
            "minutes": self.minutes,
            "limit_minutes": self.limit_minutes,
            "known": self.known,
            "stages": [asdict(stage) for stage in self.stages],
        }


def forecast(
    shares: Shares,
    earlier: Iterable[Measurement],
    settings: Mapping[str, Settings],
    limit_minutes: float | None = None,
) -> Forecast:
    """What a characterisation will cost at most.

    Args:
        shares: how its budget is shared.
        earlier: measurements that were made on the platform before.
        settings: the settings of the measurements, by their purpose.
        limit_minutes: longest board time of all stages together; None: no limit.
    """
    times: dict[str, list[float]] = {}
    for measurement in earlier:
        if measurement.board_ms > 0:
            times.setdefault(measurement.purpose, []).append(measurement.board_ms)
    found = []
    for stage, count in _counts(shares).items():
        purpose = PURPOSES[stage]
        told = times.get(purpose, [])
        known = len(told) >= LEAST_KNOWN
        each_ms = sum(told) / len(told) if known else longest_ms(settings[purpose])
        found.append(StageForecast(stage, count, count * each_ms / 60_000.0, known))
    return Forecast(tuple(found), limit_minutes)


def longest_ms(settings: Settings) -> float:
    """Longest time of a measurement with these settings, in ms, without loading the model."""
    return settings.sessions * (settings.warmup_ms + settings.max_ms)


def _counts(shares: Shares) -> dict[str, int]:
    """Largest number of measurements of each stage; together they are the whole budget."""
    fixed = {
        "fusion tests": shares.fusion,
        "profiled networks": shares.profiled,
        "probes": shares.probes,
        "calibration networks": shares.kept,
    }
    left = max(0, shares.measurements - sum(fixed.values()))
    sentinels = min(left, shares.sentinels(left))
    counts = {**fixed, "kernels": left - sentinels, "sentinels": sentinels}
    return {stage: counts[stage] for stage in PURPOSES}


def _told(minutes: float) -> str:
    if minutes < 1.5:
        return f"{60 * minutes:.0f} seconds"
    return f"{minutes:.0f} minutes" if minutes >= 10 else f"{minutes:.1f} minutes"
