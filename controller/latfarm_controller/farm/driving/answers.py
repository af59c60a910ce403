"""The requests of one campaign run and their answers: under way, not stored yet, not told yet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from latfarm_predictors.measurement import Measurement, Outcome

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.kept_answers import Unstored
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.scheduling.messages import MeasurementsDiscarded

RECENT = 2000
"""Answered requests that can be asked again when the answers of a board are discarded.

About 20 requests lie between two sentinels of a board, so this is enough for 100 boards.
"""


class CampaignAnswers:
    """Keeps the requests and answers of one run of a campaign.

    `under_way` holds the requests without an answer, `untold` the answers that the campaign must
    still be told, and `unstored` those that must still be stored.
    """

    def __init__(self) -> None:
        self._answers: dict[str, Measurement] = {}
        # Kept up to date, because a record tells them each second.
        self._good = 0
        self._board_ms = 0.0
        self._recent: OrderedDict[str, MeasurementRequest] = OrderedDict()
        self._repeated: set[str] = set()
        self.under_way: dict[str, MeasurementRequest] = {}
        self.untold: list[Measurement] = []
        self.unstored: list[Unstored] = []
        self.remembered = 0

    @property
    def repeating(self) -> bool:
        """Whether a request is under way again because its first answer was discarded."""
        return bool(self._repeated)

    def restore(self, stored: Mapping[str, Measurement]) -> None:
        """Take over the answers that the store has of the campaign's earlier runs.

        A failure that was not the request's own is no answer: the request is measured again.
        """
        for request_id, measurement in stored.items():
            if measurement.outcome is not Outcome.INFRASTRUCTURE_ERROR:
                self._note(request_id, measurement)

    def take_kept(self, kept: Sequence[Unstored]) -> None:
        """Take over the answers that an earlier run could not store."""
        self.unstored += kept
        for _, request in kept:
            self._remember(request)

    def answer_from_store(self, request: MeasurementRequest) -> bool:
        """Whether a request is answered already; its answer is then to be told to the campaign."""
        known = self._answers.get(request.request_id)
        if known is None:
            return False
        self.untold.append(known)
        self.remembered += 1
        return True

    def take(self, delivery: Delivery) -> MeasurementRequest:
        """Take an answer that the farm delivered; returns its request."""
        measurement = delivery.measurement
        request = self.under_way.pop(measurement.request_id)
        self._remember(request)
        self.unstored.append((delivery, request))
        if measurement.request_id not in self._repeated:
            self.untold.append(measurement)
        self._repeated.discard(measurement.request_id)
        self._note(measurement.request_id, measurement)
        return request

    def repeat_discarded(self, notice: MeasurementsDiscarded) -> list[MeasurementRequest]:
        """The requests whose answers are discarded; they are under way again from now on."""
        again = [
            self._recent[request_id]
            for request_id, answer in self._answers.items()
            if notice.covers(answer)
            and request_id in self._recent
            and request_id not in self.under_way
        ]
        for request in again:
            self.under_way[request.request_id] = request
            self._repeated.add(request.request_id)
        return again

    def platforms_under_way(self) -> set[str]:
        """The platforms of the requests without an answer."""
        return {request.platform for request in self.under_way.values()}

    def counts(self) -> tuple[int, int]:
        """How many answers are measurements, and how many are failures."""
        return self._good, len(self._answers) - self._good

    @property
    def board_ms(self) -> float:
        """How long boards were busy with all answers, those from the store too, in milliseconds."""
        return self._board_ms

    def _note(self, request_id: str, answer: Measurement) -> None:
        """Keep an answer in the place of an earlier one to the same request, if there is one."""
        before = self._answers.get(request_id)
        if before is not None:
            self._good -= before.ok
            self._board_ms -= before.board_ms
        self._answers[request_id] = answer
        self._good += answer.ok
        self._board_ms += answer.board_ms

    def _remember(self, request: MeasurementRequest) -> None:
        self._recent[request.request_id] = request
        while len(self._recent) > RECENT:
            self._recent.popitem(last=False)
