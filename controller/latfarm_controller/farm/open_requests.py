"""The requests that a farm has not answered yet, and an inbox for each campaign that waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass

from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest, Order
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.observer import QueueState
from latfarm_controller.farm.scheduling.messages import (
    BuildFailed,
    BuildReady,
    Dispatch,
    MeasurementsDiscarded,
    ModelSpec,
    Work,
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The answer to a campaign's request.

    `board_id` names the board that must be told once the answer is stored; it is empty when the
    request never ran on a board, or when its answer was found among the results that boards had
    kept.
    """

    measurement: Measurement
    board_id: str = ""


class OpenRequests:
    """Requests by their id, from when they are submitted until they are answered."""

    def __init__(self) -> None:
        self._requests: dict[str, MeasurementRequest] = {}
        self._asked_s: dict[str, float] = {}
        self._inboxes: dict[str, asyncio.Queue[Delivery | MeasurementsDiscarded]] = {}
        self._notices: dict[str, list[MeasurementsDiscarded]] = {}

    def add(self, request: MeasurementRequest, now_s: float) -> None:
        """Note a request that was submitted now; one that is open already keeps its time."""
        self._requests[request.request_id] = request
        self._asked_s.setdefault(request.request_id, now_s)

    def get(self, request_id: str) -> MeasurementRequest | None:
        """The open request of that id, if there is one."""
        return self._requests.get(request_id)

    def waited_s(self, request_id: str, now_s: float) -> float:
        """Seconds since an open request was submitted."""
        return now_s - self._asked_s[request_id]

    def ids(self) -> list[str]:
        """The ids of all requests."""
        return list(self._requests)

    def forget_closed(self, still_open: Container[str], ids: Iterable[str]) -> None:
        """Forget those of the requests `ids` that are not among those `still_open`."""
        for request_id in ids:
            if request_id not in still_open:
                self._requests.pop(request_id, None)
                self._asked_s.pop(request_id, None)

    def queues(self, at_board: Callable[[str], bool], now_s: float) -> dict[str, QueueState]:
        """Counts of open requests by platform; `at_board` tells whether a board has a request."""
        waiting: dict[str, int] = {}
        at_boards: dict[str, int] = {}
        first_s: dict[str, float] = {}
        for request_id, request in self._requests.items():
            platform = request.platform
            counts = at_boards if at_board(request_id) else waiting
            counts[platform] = counts.get(platform, 0) + 1
            asked_s = self._asked_s.get(request_id, now_s)
            first_s[platform] = min(first_s.get(platform, now_s), asked_s)
        return {
            platform: QueueState(
                waiting.get(platform, 0), at_boards.get(platform, 0), now_s - asked_s
            )
            for platform, asked_s in first_s.items()
        }

    def inbox(self, campaign_id: str) -> asyncio.Queue[Delivery | MeasurementsDiscarded]:
        """Where a campaign's answers arrive; made at the first call."""
        self._notices.setdefault(campaign_id, [])
        return self._inboxes.setdefault(campaign_id, asyncio.Queue())

    def close_inbox(self, campaign_id: str) -> bool:
        """Deliver nothing more to a campaign; whether it had an inbox.

        Notices are noted for the campaign all the same, until it is forgotten.
        """
        return self._inboxes.pop(campaign_id, None) is not None

    def note(self, notice: MeasurementsDiscarded) -> None:
        """Note for all campaigns that are not forgotten what is discarded, before they are told."""
        for notices in self._notices.values():
            notices.append(notice)

    def forget_campaign(self, campaign_id: str) -> list[MeasurementsDiscarded]:
        """Forget a campaign; returns all notices since its inbox was made, told or not."""
        return self._notices.pop(campaign_id, [])

    def deliver(self, campaign_id: str, delivery: Delivery) -> None:
        """Put an answer into a campaign's inbox, if it still has one."""
        if campaign_id in self._inboxes:
            self._inboxes[campaign_id].put_nowait(delivery)

    def tell_all(self, notice: MeasurementsDiscarded) -> None:
        """Put a notice into every campaign's inbox."""
        for inbox in self._inboxes.values():
            inbox.put_nowait(notice)


def work_of(
    request: MeasurementRequest, model: ModelSpec, size_bytes: int, partition: str = ""
) -> Work:
    """A request as the scheduler sees it, with about the size of its built model."""
    return Work(
        request.request_id,
        request.platform,
        model,
        request.purpose,
        size_bytes,
        request.settings,
        request.board,
        partition,
    )


def by_board(deliveries: Iterable[Delivery]) -> dict[str, list[str]]:
    """The ids of the requests that boards answered, by the ids of the boards that must be told."""
    found: dict[str, list[str]] = {}
    for delivery in deliveries:
        if delivery.board_id:
            found.setdefault(delivery.board_id, []).append(delivery.measurement.request_id)
    return found


def build_event(answer: BuiltModel | NotBuilt) -> BuildReady | BuildFailed:
    """How a build ended, for the scheduler."""
    if isinstance(answer, BuiltModel):
        return BuildReady(answer.model, answer.size_bytes)
    return BuildFailed(answer.model, answer.message, answer.retryable, answer.lost)


def order_of(dispatch: Dispatch, request: MeasurementRequest, built: BuiltModel) -> Order:
    """The order that carries out what the scheduler decided."""
    return Order(
        dispatch.board_id,
        BoardRequest.of(request),
        built.sha256,
        built.handle,
        dispatch.priority,
        built.companions,
        dispatch.connection,
    )
