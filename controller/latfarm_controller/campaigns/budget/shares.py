"""How a budget is shared by the stages of a characterisation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from latfarm_controller.campaigns.sentinels import marks_among

DEFAULT_MEASUREMENTS = 500
"""Measurements of a characterisation whose configuration limits its board time alone."""
CALIBRATION_SHARE = 0.09
"""Share of a budget for calibration networks: at 100 measurements the nine networks from which a
90 % interval can be calibrated."""
LEAST_CALIBRATION = 4
"""Least number of calibration networks, however small the budget is."""
TWO_PASSES = 400
"""Budget from which each calibration network is measured as often as the configuration says; below,
once."""
PROFILED_SHARE = 0.12
"""Share of a budget for profiled networks, each of which shows some twenty kernels."""
FUSION_SHARE = 0.2
"""Largest share of a budget for fusion tests; few are needed where networks are profiled."""
PROBES_SHARE, MOST_PROBES = 0.04, 16
"""Share of a budget, and number at most, for kernels that are measured alone to compare their times
with those inside profiled networks."""
REPEATS_SHARE = 0.1
"""Share of the kernels measured alone that are measured once more, because their runs spread."""
LEAST_KERNELS = 12
"""Number of kernels that are measured alone although a small budget then leaves few measurements
for the same kernels between pads: a predictor cannot be fitted to fewer."""
SENTINEL_EVERY = 16
"""Number of kernels between two sentinels."""
BATCH = 50
"""Number of kernels in a batch of a sampler, and within a budget most kernels that are asked at
once."""
PROFILED_TIME, FUSION_TIME, PROBES_TIME, CALIBRATION_TIME = 0.35, 0.2, 0.05, 0.2
"""Shares of the board time for profiled networks, for fusion and for probes, and the least share
that is kept for calibration networks. The rest is for kernels."""
MOST_CALIBRATION_TIME = 0.45
"""Largest share of the board time that is kept for calibration networks: what they will take, as
far as the profiled networks tell it."""


@dataclass(frozen=True)
class Shares:
    """Measurements of each stage.

    Attributes:
        measurements: the whole budget.
        calibration: number of calibration networks.
        calibration_passes: how often each of them is measured.
        profiled: number of profiled networks, where the runtime profiles.
        fusion: largest number of fusion tests.
        probes: number of kernels that are measured alone before it is decided whether others are.
    """

    measurements: int
    calibration: int
    calibration_passes: int
    profiled: int
    fusion: int
    probes: int

    @property
    def kept(self) -> int:
        """Measurements that earlier stages must leave for the calibration networks."""
        return self.calibration * self.calibration_passes

    def kept_ms(self, all_ms: float, network_ms: float | None) -> float:
        """Board time that earlier stages must leave for the calibration networks, in milliseconds.

        Networks take some thirty times as long as kernels, so that a share of the measurements
        tells little of the time that they need.

        Args:
            all_ms: longest board time of all stages together, in milliseconds.
            network_ms: what all sessions of a calibration network take, in milliseconds; None:
                nothing is known yet, and the least share of the time is kept.
        """
        least = CALIBRATION_TIME * all_ms
        if network_ms is None:
            return least
        return min(max(least, self.calibration * network_ms), MOST_CALIBRATION_TIME * all_ms)

    def kernels(self, left: float) -> int:
        """How many kernels can be measured alone, with their sentinels and repeats.

        Args:
            left: number of measurements that are left for them.
        """
        return max(0, int((left - 4) / (1 + 1 / SENTINEL_EVERY + REPEATS_SHARE)))

    def sentinels(self, left: float) -> int:
        """How many sentinels stand among the kernels that are measured alone, and their repeats.

        Kernels are measured in parts of `BATCH`, with a sentinel at either end of each part. The
        repeats are a part of their own.

        Args:
            left: number of measurements that are left for kernels, sentinels and repeats.
        """
        kernels = self.kernels(left)
        whole, rest = divmod(kernels, BATCH)
        parts = [BATCH] * whole + [rest, int(REPEATS_SHARE * kernels)]
        return sum(marks_among(part, SENTINEL_EVERY) for part in parts)

    def to_json(self) -> dict[str, Any]:
        """The shares as plain JSON types."""
        return asdict(self)


def shares_of(
    measurements: int, calibration: int, passes: int, profiled: int | None = None
) -> Shares:
    """How a budget is shared.

    Args:
        measurements: the whole budget.
        calibration: number of calibration networks that is wanted; a small budget gets fewer.
        passes: how often each of them is measured; once with a small budget.
        profiled: number of profiled networks that is asked for; None: a share of the budget.
    """
    networks = min(calibration, max(LEAST_CALIBRATION, int(CALIBRATION_SHARE * measurements)))
    return Shares(
        measurements=measurements,
        calibration=networks,
        calibration_passes=passes if measurements >= TWO_PASSES else 1,
        profiled=int(PROFILED_SHARE * measurements) if profiled is None else profiled,
        fusion=int(FUSION_SHARE * measurements),
        probes=min(MOST_PROBES, int(PROBES_SHARE * measurements)),
    )
