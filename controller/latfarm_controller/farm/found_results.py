"""Finished results that boards kept for a controller that was killed, until they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from latfarm_predictors.measurement import Measurement

from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.agents.spooled import answer_from_spool
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_controller.store.base import FoundResult

MOST_FOUND = 10_000
"""Most results that are kept; the oldest ones are forgotten first."""
MOST_FOUND_BYTES = 256 << 20
"""Most bytes of results that are kept; the oldest ones are forgotten first."""


class FoundResults:
    """Results by request. It does no input or output."""

    def __init__(self) -> None:
        self._found: dict[str, FoundResult] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def add(self, results: Iterable[FoundResult]) -> list[str]:
        """Keep results; a newer one takes the place of an older one of the same request.

        Returns:
            the requests whose results are forgotten, because there are too many.
        """
        for result in results:
            self._take(result.request_id)
            self._found[result.request_id] = result
            self._size_bytes += len(result.payload)
        dropped = []
        while len(self._found) > MOST_FOUND or self._size_bytes > MOST_FOUND_BYTES:
            dropped.append(next(iter(self._found)))
            self._take(dropped[-1])
        return dropped

    def board_of(self, request_id: str) -> str:
        """The id of the board whose result answers a request; empty if there is no result."""
        found = self._found.get(request_id)
        return "" if found is None else found.board_id

    def claim(
        self, request: MeasurementRequest, platform: PlatformInfo, board: BoardInfo | None
    ) -> Measurement | None:
        """The answer to a request, which is given once; None if there is none that counts now.

        Args:
            request: the question.
            platform: its platform, as the farm offers it now.
            board: what the board of the result tells about itself now; None if it has not joined
                since the controller was started. A result under another fingerprint than that of
                the board, or of the platform, is not used.
        """
        found = self._take(request.request_id)
        if found is None or request.board not in ("", found.board_id):
            return None
        if found.platform != request.platform or not _fits(found, platform):
            return None
        told = board if board is not None else _as_told(found, platform)
        return answer_from_spool(found.payload, BoardRequest.of(request), told, found.received_at_s)

    def forget(self, request_ids: Iterable[str]) -> list[str]:
        """Forget the results of these requests; returns those that had one."""
        return [request_id for request_id in request_ids if self._take(request_id) is not None]

    def forget_board(self, board_id: str) -> list[str]:
        """Forget all results of a board; returns their requests."""
        return self._forget_where(lambda found: found.board_id == board_id)

    def keep_only(self, platforms: Collection[str]) -> list[str]:
        """Forget the results of all other platforms; returns their requests."""
        return self._forget_where(lambda found: found.platform not in platforms)

    def _take(self, request_id: str) -> FoundResult | None:
        """The result for a request, which is kept no more; None if there is none."""
        found = self._found.pop(request_id, None)
        if found is not None:
            self._size_bytes -= len(found.payload)
        return found

    def _forget_where(self, goes: Callable[[FoundResult], bool]) -> list[str]:
        return self.forget([request_id for request_id, found in self._found.items() if goes(found)])


def _fits(found: FoundResult, platform: PlatformInfo) -> bool:
    """Whether a result was taken under the fingerprint that counts now."""
    return found.fingerprint in ("", platform.fingerprint)


def _as_told(found: FoundResult, platform: PlatformInfo) -> BoardInfo:
    """The board of a result, as far as the result tells."""
    offered = replace(platform, fingerprint=found.fingerprint or platform.fingerprint)
    return BoardInfo(found.board_id, "", runtimes=(RuntimeInfo("", True, platforms=(offered,)),))
