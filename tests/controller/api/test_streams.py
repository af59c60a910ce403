"""What all methods of the controller that answer with a stream have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from latfarm_controller.api import error_codes
from latfarm_controller.api.database_service import DatabaseService
from latfarm_controller.api.service import ControllerService
from latfarm_controller.errors import StoreError


class Service:
    """Counts to a number, or fails; notes when that ended."""

    def __init__(self) -> None:
        self.ended = False

    @error_codes.streams
    async def Count(self, request: int, _context: Any) -> AsyncIterator[int]:
        try:
            for number in range(request):
                yield number
            raise StoreError("there are no more")
        finally:
            self.ended = True

    @error_codes.streams
    def Refuse(self, _request: int, _context: Any) -> AsyncIterator[int]:
        raise StoreError("not now")


class Context:
    """A call that was made, and how it was ended."""

    def __init__(self) -> None:
        self.aborted: list[str] = []

    async def abort(self, _code: object, text: str, _trailing: object) -> None:
        self.aborted.append(text)


def test_a_caller_that_breaks_off_ends_at_once_what_is_done_for_it() -> None:
    async def test() -> None:
        service = Service()
        told = service.Count(3, Context())
        assert await anext(told) == 0
        assert not service.ended
        await told.aclose()
        assert service.ended

    asyncio.run(test())


def test_an_error_ends_the_call_whether_it_comes_before_or_after_messages() -> None:
    async def test() -> None:
        service, context = Service(), Context()
        assert [number async for number in service.Count(2, context)] == [0, 1]
        assert [number async for number in service.Refuse(2, context)] == []
        assert context.aborted == ["there are no more", "not now"]

    asyncio.run(test())


@pytest.mark.parametrize(
    "method",
    [
        *(ControllerService.WatchBoard, ControllerService.Query, ControllerService.EstimateMany),
        DatabaseService.Perform,
    ],
)
def test_all_of_them_are_made_by_one_function(method: Any) -> None:
    assert method.__code__ is Service.Count.__code__
