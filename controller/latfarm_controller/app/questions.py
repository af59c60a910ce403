"""Questions about the latency of a network: answered from the store, else by a board."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from latfarm_controller.app.lookups import Lookups
from latfarm_controller.app.pools import LOOK_S, Pools
from latfarm_controller.app.question import ALONE, Ended, Event, Found, GraphNeeded, Question
from latfarm_controller.app.stored_answers import StoredAnswers, nothing_stored
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.each_alone import each_alone
from latfarm_controller.errors import ControllerError, FarmError
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.partitions import BoardChoice
from latfarm_controller.farm.scheduling.messages import QUERY_PRIORITY
from latfarm_controller.store.base import CampaignRecord

BATCH_QUESTIONS = 512
"""How many questions are looked up in the store at a time."""
MOST_AT_ONCE = 256
"""How many questions of one call wait for boards at the same time."""
_Key = tuple[str, str, str, bool, bool, int, BoardChoice]
"""Hash of the network, platform, tier, whether to measure again and energy, number of repeats."""


class Questions:
    """Answers each question once, however many callers ask it at the same time.

    Args:
        stored: the answers that the store has.
        driver: runs the campaign that measures one network.
        pools: connects the farm to a board of the platform.
        platforms: names of platforms that are known apart from measurements, such as those with a
            bundle.
    """

    def __init__(
        self,
        stored: StoredAnswers,
        driver: Driver,
        pools: Pools,
        platforms: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._stored = stored
        self._lookups = Lookups(stored)
        self._driver = driver
        self._pools = pools
        self._platforms = platforms
        self._asked: dict[_Key, asyncio.Task[Found]] = {}
        self._closing = False

    async def ask(self, question: Question) -> AsyncGenerator[Event, None]:
        """Find the latency of a network as a board timed it, and what corrects it.

        A question that is asked twice at the same time is measured once. Different exports of one
        network are the same question; `graph_hash` of the measurement says which export was
        measured. With `energy`, the store only answers with a measurement that has an energy. A new
        measurement may still lack it; its conditions then say why.

        Yields:
            Texts about the progress, then the answer, or that the graph is needed.

        Raises:
            UsageError: the question makes no sense, or the platform is not known.
            NotMeasuredError: the store has no answer, and the question forbids to measure.
            FarmError: no board could measure the network.
        """
        question.check()
        self._check_open()
        found = await self._lookups.find(question)
        if found is not None:
            yield found
            return
        async with aclosing(self._measured(question)) as events:
            async for event in events:
                yield event

    async def ask_many(
        self, questions: Sequence[Question | Exception]
    ) -> AsyncGenerator[list[tuple[int, Ended]], None]:
        """Answer many questions as they come: those that the store can answer first.

        Args:
            questions: what is asked; an error in the place of a question is its answer.

        Yields:
            Lists of ends, each with the position of its question. Every question ends once, and an
            error ends one question alone.
        """
        self._check_open()
        missed: list[tuple[int, Question]] = []
        for first in range(0, len(questions), BATCH_QUESTIONS):
            ended: list[tuple[int, Ended]] = []
            asked: list[tuple[int, Question]] = []
            for place, question in enumerate(questions[first : first + BATCH_QUESTIONS], first):
                try:
                    if isinstance(question, Exception):
                        raise question
                    question.check()
                    asked.append((place, question))
                except ALONE as error:
                    ended.append((place, error.with_traceback(None)))
            wanted = [question for _, question in asked]
            found = await asyncio.to_thread(each_alone, self._stored.find, wanted)
            refused: list[tuple[int, Question]] = []
            for (place, question), answer in zip(asked, found, strict=True):
                if answer is not None:
                    ended.append((place, answer))
                else:
                    (missed if question.measure else refused).append((place, question))
            if refused:
                ended += await asyncio.to_thread(self._not_measured, refused)
            if ended:
                yield ended
        if missed:
            async with aclosing(self._measure_many(missed)) as ends:
                async for end in ends:
                    yield [end]

    async def _measure_many(
        self, missed: Sequence[tuple[int, Question]]
    ) -> AsyncGenerator[tuple[int, Ended], None]:
        """Have boards answer questions, and tell each end when it is there."""
        room = asyncio.Semaphore(MOST_AT_ONCE)

        async def end(place: int, question: Question) -> tuple[int, Ended]:
            async with room:
                try:
                    async with aclosing(self._measured(question)) as events:
                        async for event in events:
                            if not isinstance(event, str):
                                return place, event
                except ALONE as error:
                    return place, error
            return place, ControllerError("the question ended without an answer")

        tasks = [asyncio.create_task(end(*each)) for each in missed]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _measured(self, question: Question) -> AsyncGenerator[Event, None]:
        """Have a board answer a question that the store cannot answer."""
        if not question.measure:
            ((_, error),) = await asyncio.to_thread(self._not_measured, [(0, question)])
            raise error
        network = question.network_hash or question.graph_hash
        # Whoever may use other boards gets an answer of their own.
        choice = self._pools.settled(BoardChoice(question.tags, question.user))
        flags = (question.refresh, question.energy, question.repeat, choice)
        key = (network, question.platform, question.settings.tier, *flags)
        task = self._asked.get(key)
        if task is None:
            if question.graph is None:
                yield GraphNeeded()
                return
            self._check_open()
            task = asyncio.create_task(self._find(question))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        # The answer may have been stored just now. If it was not, say why this takes longer.
        done, _ = await asyncio.wait({task}, timeout=LOOK_S)
        if not done:
            name = question.graph.name if question.graph is not None else question.graph_hash
            yield f"{name} is being measured on {question.platform}"
        yield await asyncio.shield(task)

    def _not_measured(self, refused: Sequence[tuple[int, Question]]) -> list[tuple[int, Exception]]:
        """The errors of questions that forbid to measure; platforms are looked up once for all."""
        known = self._stored.known(self._platforms())
        return [(place, nothing_stored(question, known)) for place, question in refused]

    def _check_open(self) -> None:
        if self._closing:
            raise ControllerError("the controller is stopping; ask again when it is back")

    def _forget(self, key: _Key, task: asyncio.Task[Found]) -> None:
        del self._asked[key]
        if not task.cancelled():
            task.exception()  # marks the error as seen: each caller got it, or has left

    async def _find(self, question: Question) -> Found:
        """Look into the store, then ask a board. One task does both, so nobody asks in between."""
        # What answers here answers all who wait, so it must be of the tier that is measured.
        strict = replace(question, tier=question.settings.tier)
        (found,) = await asyncio.to_thread(self._stored.find, [strict])
        return await self._ask_board(question) if found is None else found

    async def _ask_board(self, question: Question) -> Found:
        assert question.graph is not None
        campaign = QueryCampaign(
            question.graph, question.platform, question.settings, question.repeat
        )
        choice = BoardChoice(question.tags, question.user)
        scope = CampaignScope((campaign.platform,), choice=choice)
        await self._pools.open(scope, asyncio.Event())
        record = CampaignRecord(
            campaign_id=f"query-{campaign.nonce}",
            name="query",
            kind=campaign.kind,
            platform=campaign.platform,
            started_at_s=time.time(),
        )
        record = await self._driver.run(campaign, record, priority=QUERY_PRIORITY, scope=scope)
        if campaign.answer is None:
            raise FarmError(
                record.error or "the board ended the query without a measurement; ask again"
            )
        repeats = tuple(campaign.answers) if question.repeat > 1 else ()
        found = Found(campaign.answer, hit=False, repeats=repeats)
        return await asyncio.to_thread(self._stored.noted, found)

    async def close(self) -> None:
        """Cancel all questions that are not answered yet."""
        self._closing = True
        tasks = list(self._asked.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
