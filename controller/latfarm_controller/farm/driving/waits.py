"""When a campaign waits for its boards, why, and when it goes on.

Everything here is pure: times and what is seen of the farm are passed in, and a caller acts on the
answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.doubling_wait import doubling_wait_s
from latfarm_controller.errors import FarmError

FAILURES_IN_A_ROW = 10
"""A run of a campaign stops after this many answers in a row that failed by no fault of the
request."""
GRACE_S = 5.0
"""Seconds without a working board before a campaign counts as waiting.

An agent that is restarted is back within that time, and nobody needs to hear of it.
"""
FIRST_RETRY_S = 15.0
"""Seconds before a campaign that could not go on is run again; each wait is twice as long as the
one before, until a measurement succeeds."""
RETRY_CAP_S = 600.0
"""The longest such wait, in seconds."""
LEAST_RETRY_S = 2.0
"""Seconds before a campaign is run again at the earliest, where something has come back."""


@dataclass(frozen=True, slots=True)
class FarmSight:
    """What a campaign sees of its farm at one moment.

    Attributes:
        away: why the processes behind the farm cannot be used; empty while they can.
        working: for each platform that the campaign waits for, whether a board of it works.
        story: what boards tell about why they do not work.
    """

    away: str = ""
    working: Mapping[str, bool] = field(default_factory=dict)
    story: str = ""

    @property
    def trouble(self) -> str:
        """Why nothing can be measured now; empty while something can."""
        if self.away:
            return self.away
        if not self.working or any(self.working.values()):
            return ""
        told = f" ({self.story})" if self.story else ""
        return f"no board of {', '.join(sorted(self.working))} works{told}"


class CampaignWaits:
    """Says whether a running campaign waits. `reason` says why it does; it is empty otherwise.

    Args:
        patience_s: how long the campaign waits before its run ends, in seconds; infinite: without
            end.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._failed_in_a_row = 0
        self.reason = ""

    def judge(self, measurement: Measurement) -> None:
        """Count an answer.

        Raises:
            FarmError: too many answers in a row failed by no fault of the request.
        """
        if measurement.outcome is not Outcome.INFRASTRUCTURE_ERROR:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= FAILURES_IN_A_ROW:
            raise FarmError(
                f"the last {FAILURES_IN_A_ROW} requests failed, none by its own fault; the last: "
                f"{measurement.error_code} {measurement.error_message}"
            )

    def look(self, sight: FarmSight, now_s: float) -> None:
        """Look at the farm, and change `reason` accordingly.

        Raises:
            FarmError: nothing could be measured for longer than the campaign is patient.
        """
        trouble = sight.trouble
        if not trouble:
            self._since_s, self.reason = None, ""
            return
        if self._since_s is None:
            self._since_s = now_s
        waited_s = now_s - self._since_s
        if waited_s > self._patience_s:
            raise FarmError(
                f"{trouble} for {self._patience_s:.0f} s; resume the campaign when it is mended"
            )
        if sight.away or waited_s >= GRACE_S:
            self.reason = trouble


class RetryPlan:
    """Says when a campaign whose run could not go on is run again.

    Args:
        patience_s: how long it is tried without any new measurement, in seconds; infinite: without
            end.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._since_s: float | None = None
        self._tries = 0
        self._measured = 0
        self._stopped_s = 0.0
        self._recoveries = 0

    def stop(self, now_s: float, measured: int, recoveries: int) -> bool:
        """A run stopped; whether to wait and to run again.

        Args:
            now_s: the time.
            measured: how many measurements the campaign has; more than before is progress.
            recoveries: how often something of the farm came back so far.
        """
        if self._since_s is None or measured > self._measured:
            self._since_s, self._tries = now_s, 0
        self._tries += 1
        self._measured, self._stopped_s, self._recoveries = measured, now_s, recoveries
        return now_s - self._since_s < self._patience_s

    @property
    def retry_at_s(self) -> float:
        """When it is run again, if nothing comes back before."""
        return self._stopped_s + doubling_wait_s(FIRST_RETRY_S, RETRY_CAP_S, self._tries)

    def due(self, now_s: float, recoveries: int) -> bool:
        """Whether to run it again now: its time has come, or something came back."""
        back = recoveries > self._recoveries and now_s >= self._stopped_s + LEAST_RETRY_S
        return back or now_s >= self.retry_at_s
