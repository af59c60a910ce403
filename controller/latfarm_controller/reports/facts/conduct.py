"""How a characterisation went: its duration, failures, conditions of the boards, and drift."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import (
    SLOWER_CLOCK,
    SlowCore,
    clock_slowdown_of,
    throttled_throughout,
)

from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.reports.facts.platform_record import PlatformRecord

UNKNOWN = "unknown"
"""Reading of a sensor that a board does not have."""
_MOST_VALUES = 4
"""Most different readings of one sensor that are listed."""
_CLOCK_DROP = 0.02
"""A clock counts as fallen if it fell by more than this share during a measurement."""


def duration(record: PlatformRecord) -> dict[str, Any]:
    """Measurements and board time by purpose, and the totals that the campaign itself counted."""
    campaign = record.campaign
    return {
        "measurements": len(record.all_measured),
        "board_ms": sum(m.board_ms for m in record.all_measured),
        "wall_ms": 0.0 if campaign is None else campaign.wall_ms,
        "started_at_s": 0.0 if campaign is None else campaign.started_at_s,
        "finished_at_s": 0.0 if campaign is None else campaign.finished_at_s,
        "purposes": [
            {
                "purpose": purpose,
                "measurements": len(found),
                "board_ms": sum(m.board_ms for m in found),
                "failed": sum(not m.ok for m in found),
                "unstable": sum(m.ok and m.unstable for m in found),
            }
            for purpose, found in record.measured.items()
        ],
        "spent": dict(record.outcome.get("spent", {})),
        "boards": {
            board: dict(figures) for board, figures in record.outcome.get("boards", {}).items()
        },
    }


def failures(measurements: Iterable[Measurement]) -> list[dict[str, Any]]:
    """Failures by outcome, code and purpose, the most frequent first, each with one example."""
    kinds: dict[tuple[str, str, str], list[Measurement]] = {}
    for m in measurements:
        if not m.ok:
            kinds.setdefault((str(m.outcome), m.error_code or UNKNOWN, m.purpose), []).append(m)
    return [
        {
            "outcome": outcome,
            "code": code,
            "purpose": purpose,
            "count": len(found),
            "graphs": len({m.graph_hash for m in found}),
            "example": next((m.error_message for m in found if m.error_message), ""),
        }
        for (outcome, code, purpose), found in sorted(
            kinds.items(), key=lambda item: (-len(item[1]), item[0])
        )
    ]


def conditions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """Conditions of the boards: throttling and clocks first, then all other sensors.

    A sensor that a board does not have is `unknown`; it counts as neither good nor bad.
    """
    good = [m for m in measurements if m.ok]
    values: dict[str, list[str]] = {}
    for m in good:
        for name, value in m.conditions.items():
            values.setdefault(name, []).append(value)
    throttled = [v for v in values.get("throttling", ()) if v != UNKNOWN]
    throughout = [each for m in good if (each := throttled_throughout(m)) is not None]
    slower = [times for m in good if (times := clock_slowdown_of(m)) is not None]
    drops = [drop for m in good if (drop := _clock_drop(m.conditions)) is not None]
    return {
        "measurements": len(good),
        "boards": dict(sorted(Counter(m.board_id for m in good).items())),
        "fingerprints": dict(Counter(m.fingerprint for m in good).most_common()),
        "throttling": {
            "known": len(throttled),
            "throttled": sum(v not in ("0", "no", "none", "false") for v in throttled),
        },
        "throttled_throughout": {"known": len(throughout), "throttled": sum(throughout)},
        "clock": {
            "known": len(drops),
            "dropped": sum(drop > _CLOCK_DROP for drop in drops),
            "worst_drop": max(drops) if drops else None,
            "compared": len(slower),
            "lower": sum(times > SLOWER_CLOCK for times in slower),
            "worst_slowdown": max(slower) if slower else None,
        },
        "rejected_runs": sum(m.rejected_runs for m in good),
        "unstable": sum(m.unstable for m in good),
        "sensors": [_sensor(name, found, len(good)) for name, found in sorted(values.items())],
    }


def _clock_drop(told: Mapping[str, str]) -> float | None:
    before, after = (_number(told.get(f"clock_mhz_{when}", "")) for when in ("before", "after"))
    return None if not before or after is None else 1.0 - after / before


def _sensor(name: str, found: Sequence[str], count: int) -> dict[str, Any]:
    """Readings of a sensor: their range if they are numbers, else the most frequent ones."""
    told = [value for value in found if value != UNKNOWN]
    numbers = [number for value in told if (number := _number(value)) is not None]
    row: dict[str, Any] = {"sensor": name, "known": len(told), "of": count}
    if numbers and len(numbers) == len(told) and len(set(numbers)) > 1:
        return row | {"least": min(numbers), "median": median(numbers), "most": max(numbers)}
    counts = Counter(told).most_common(_MOST_VALUES)
    return row | {"values": [value for value, _ in counts], "distinct": len(set(told))}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None


def drift(record: PlatformRecord) -> dict[str, Any]:
    """Drift of the sentinel, measurements that are void because of it, and the host's noise."""
    outcome = record.outcome
    kernels = outcome.get("kernels", {})
    noise = HostNoise.from_json(record.provenance.get("host_noise"))
    return {
        "sentinels": [dict(each) for each in outcome.get("sentinel", ())],
        "void": len(outcome.get("void", ())),
        "measured_again": int(kernels.get("measured_again", 0)),
        "left_out": dict(record.left_out),
        "slow_core": SlowCore.from_json(record.provenance.get("slow_core")).to_json(),
        "host_noise": {**noise.to_json(), "sentence": noise.sentence},
        "steadiness": dict(record.provenance.get("steadiness", {})),
    }
