"""Both ends of the call `EstimateMany`: a stream of candidates, and the stream of their ends.

Neither end holds more than some hundred networks, however many there are. The service answers what
has arrived together, so that kernels which several networks have are evaluated once; a client that
does not read its answers stops its own stream alone.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any

from latfarm_predictors.collector import collector_waits

from latfarm_controller.api import estimate_messages
from latfarm_controller.app.estimating import (
    AskedEstimate,
    EstimateEnd,
    Estimating,
)
from latfarm_controller.app.question import GraphNeeded, Question
from latfarm_controller.bulk.predictions import PredictedLatency
from latfarm_controller.errors import ControllerError, UsageError

MOST_TOGETHER = 256
"""The largest number of candidates that the service answers together."""
MOST_BYTES = 16 << 20
"""Bytes of requests from which on the service reads no further before it has answered them."""
MOST_OPEN = 2 * MOST_TOGETHER
"""How many candidates of a client may wait for their end, so that the service is never idle."""


MOST_AT_ONCE = 3
"""How many streams are worked on at the same time; the others take turns with them.

Each of them holds a thread for seconds. The event loop has few threads more than there are cores,
and questions about single networks need them."""


async def answer(
    requests: AsyncIterator[Any],
    estimating: Estimating,
    predicted: Callable[[str], None],
    turns: asyncio.Semaphore,
) -> AsyncGenerator[Any, None]:
    """The messages that answer a stream of requests.

    Args:
        requests: messages `EstimateRequest`.
        estimating: answers them, in a thread; it is closed at the end.
        predicted: is told the platform of each prediction.
        turns: what all streams of the service share; it lets `MOST_AT_ONCE` of them work.
    """
    arrivals = _Arrivals(requests)
    reader = asyncio.create_task(arrivals.read())
    try:
        while messages := await arrivals.take():
            async with turns:
                told, platforms = await asyncio.to_thread(_answered, messages, estimating)
            for platform in platforms:
                predicted(platform)
            yield told
        await reader  # raises what ended the stream of requests
    finally:
        reader.cancel()
        estimating.close()


def _answered(messages: Sequence[Any], estimating: Estimating) -> tuple[Any, list[str]]:
    """The message that answers some requests, and the platforms of what was predicted."""
    with collector_waits():
        asked = [estimate_messages.asked_from_pb(message) for message in messages]
        ends = estimating.ends(asked)
    platforms = {message.place: message.question.platform for message in messages}
    predicted = [platforms[place] for place, end in ends if isinstance(end, PredictedLatency)]
    return estimate_messages.ends_to_pb(ends), predicted


class _Arrivals:
    """The requests of a stream that have arrived, but only as many as there is room for.

    Args:
        requests: the stream.
    """

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests
        self._arrived: list[Any] = []
        self._size_bytes = 0
        self._ended = False
        self._changed = asyncio.Condition()

    async def read(self) -> None:
        """Read the stream to its end, and wait wherever there is no room."""
        try:
            async for request in self._requests:
                async with self._changed:
                    await self._changed.wait_for(self._has_room)
                    self._arrived.append(request)
                    self._size_bytes += request.ByteSize()
                    self._changed.notify_all()
        finally:
            self._ended = True
            async with self._changed:
                self._changed.notify_all()

    async def take(self) -> list[Any]:
        """All requests that have arrived, at least one; none once the stream has ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._arrived or self._ended)
            taken, self._arrived, self._size_bytes = self._arrived, [], 0
            self._changed.notify_all()
            return taken

    def _has_room(self) -> bool:
        return len(self._arrived) < MOST_TOGETHER and self._size_bytes < MOST_BYTES


def ask(
    call: Callable[[Iterator[Any]], Any], asked: Iterable[AskedEstimate]
) -> Iterator[tuple[int, EstimateEnd]]:
    """Ask for estimates, and tell the end of each candidate as it comes, with its place.

    A network is sent by its hashes first, and whole only if the service asks for it.

    Args:
        call: starts the call `EstimateMany` with a stream of requests, and returns its answers.
        asked: the candidates; each is taken when there is room for it.

    Raises:
        ControllerError: the controller ended the call too early.
        grpc.RpcError: the call failed.
    """
    outgoing: queue.SimpleQueue[Any] = queue.SimpleQueue()
    waiting: dict[int, tuple[AskedEstimate, Question]] = {}
    candidates = iter(asked)
    more = True
    answers = call(iter(outgoing.get, None))
    try:
        while more or waiting:
            while more and len(waiting) < MOST_OPEN:
                each = next(candidates, None)
                if each is None:
                    more = False
                elif isinstance(each.question, Exception):
                    yield each.place, each.question
                else:
                    waiting[each.place] = each, each.question
                    outgoing.put(
                        estimate_messages.asked_to_pb(each, each.question, with_graph=False)
                    )
            if waiting:
                yield from _ended(next(answers, None), waiting, outgoing)
    finally:
        outgoing.put(None)
        answers.cancel()


def _ended(
    message: Any, waiting: dict[int, tuple[AskedEstimate, Question]], outgoing: Any
) -> Iterator[tuple[int, EstimateEnd]]:
    """The candidates that a message ends; those whose network is needed are sent again."""
    if message is None:
        raise ControllerError("the controller ended the call before all candidates; ask again")
    for told in message.ends:
        end = estimate_messages.end_from_pb(told)
        each, question = waiting[told.place]
        if not isinstance(end, GraphNeeded):
            del waiting[told.place]
            yield told.place, end
        elif question.graph is None:
            del waiting[told.place]
            text = f"the store has no answer for {question.graph_hash}"
            yield told.place, UsageError(f"{text}; to predict it, give the network itself")
        else:
            outgoing.put(estimate_messages.asked_to_pb(each, question, with_graph=True))
