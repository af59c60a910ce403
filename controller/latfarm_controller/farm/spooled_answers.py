"""Answers requests with finished results that boards had kept for a controller that was killed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.spooled import SpooledResult
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.board_monitor import SpoolListener
from latfarm_controller.farm.boards.known_boards import KnownBoards
from latfarm_controller.farm.found_results import FoundResults
from latfarm_controller.farm.open_requests import OpenRequests
from latfarm_controller.farm.scheduling.messages import AnswerFound
from latfarm_controller.store.base import FoundResult


class SpooledAnswers:
    """Keeps found results until they are asked for. Use it from one event loop.

    `listener` decides which results of a board are kept, and is told which are not needed any more.
    Without a listener, boards keep their results.

    Args:
        boards: the boards, with the fingerprints that count now.
        requests: the requests that are open.
        schedule: passes an event to the scheduler.
    """

    def __init__(
        self,
        boards: KnownBoards,
        requests: OpenRequests,
        schedule: Callable[[AnswerFound], None],
    ) -> None:
        self._boards = boards
        self._requests = requests
        self._schedule = schedule
        self._found = FoundResults()
        self._given: set[str] = set()  # requests whose answers were found and are not stored yet
        self.listener: SpoolListener | None = None

    def listed(self, name: str, info: BoardInfo, results: Sequence[SpooledResult]) -> None:
        """A board joined and still had these finished results."""
        if self.listener is not None:
            self.listener.listed(name, info, results)

    def used_up(self, request_ids: Sequence[str]) -> None:
        """What was found for these requests is stored with a campaign, or of no use any more."""
        if request_ids and self.listener is not None:
            self.listener.used_up(request_ids)

    def offer(self, results: Sequence[FoundResult]) -> None:
        """Answer requests with these results: those that are open now, others when they are asked.

        Where there are too many results, the oldest ones are forgotten.
        """
        self.used_up(self._found.add(results))
        open_now = (self._requests.get(result.request_id) for result in results)
        self.answer([request for request in open_now if request is not None])

    def answer(self, requests: Sequence[MeasurementRequest]) -> None:
        """Answer those of these open requests for which a result was found."""
        for request in requests if len(self._found) else ():
            board = self._boards.info(self._found.board_of(request.request_id))
            platform = self._boards.platform(request.platform)
            answer = self._found.claim(request, platform, board)
            if answer is not None:
                self._given.add(request.request_id)
                self._schedule(AnswerFound(answer))

    def stored(self, request_ids: Sequence[str]) -> None:
        """The answers to these requests are stored, so that what was found for them may go."""
        gone = self._found.forget(request_ids)
        if self._given:
            given = self._given.intersection(request_ids)
            self._given -= given
            gone += sorted(given)
        self.used_up(gone)

    def forget_board(self, board_id: str) -> None:
        """Use no result that was found at a board."""
        self.used_up(self._found.forget_board(board_id))

    def keep_only(self, platforms: Collection[str]) -> None:
        """Forget the results of all other platforms."""
        self.used_up(self._found.keep_only(platforms))
