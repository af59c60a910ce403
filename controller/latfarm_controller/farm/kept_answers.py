"""Answers that could not be stored because the disk was full, until their campaign is run again."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.scheduling.messages import MeasurementsDiscarded

MOST_KEPT = 10_000
"""Most answers that are kept; the oldest ones are forgotten first, and are measured again."""

Unstored = tuple[Delivery, MeasurementRequest]
"""An answer that is not stored yet, and its request."""


class KeptAnswers:
    """Answers by campaign. Use it from one event loop; it does no input or output.

    The boards keep these answers, too, because they are told to forget them only once they are
    stored. But a request that is asked again may go to another board.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Unstored] = {}  # by campaign and request

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, campaign_id: str, answers: Sequence[Unstored]) -> None:
        """Keep answers of a campaign; a newer one takes the place of an older one."""
        for delivery, request in answers:
            key = campaign_id, request.request_id
            self._kept.pop(key, None)
            self._kept[key] = delivery, request
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]

    def take(self, campaign_id: str) -> list[Unstored]:
        """The answers of a campaign, the oldest first; they are kept no more."""
        keys = [key for key in self._kept if key[0] == campaign_id]
        return [self._kept.pop(key) for key in keys]

    def discard(self, notice: MeasurementsDiscarded) -> list[str]:
        """Forget what a board measured that was quarantined; returns the ids of the requests."""
        keys = [
            key for key, (delivery, _) in self._kept.items() if notice.covers(delivery.measurement)
        ]
        for key in keys:
            del self._kept[key]
        return [request_id for _, request_id in keys]
