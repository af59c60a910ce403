"""The signal of a board worker: it wakes those whose condition holds, and nobody else."""

from __future__ import annotations

import asyncio

from latfarm_controller.farm.boards.wake_signal import Signal


def test_only_those_whose_condition_holds_are_woken() -> None:
    async def go() -> tuple[list[str], int]:
        signal, ready, heard = Signal(), set[str](), list[str]()

        async def wait_for(name: str) -> None:
            await signal.until(lambda: name in ready)
            heard.append(name)

        tasks = [asyncio.create_task(wait_for(name)) for name in "abc"]
        await asyncio.sleep(0)
        for _ in range(10):
            signal.notify()  # nothing has changed for any of them
        ready.add("b")
        signal.notify()
        await tasks[1]
        woken = signal.wakes
        ready.update("ac")
        signal.notify()
        await asyncio.gather(*tasks)
        assert woken == 1
        return heard, signal.wakes

    assert asyncio.run(go()) == (["b", "a", "c"], 3)


def test_a_condition_that_holds_no_more_is_waited_for_again() -> None:
    async def go() -> int:
        signal, items = Signal(), list[int]()

        async def take() -> int:
            await signal.until(lambda: bool(items))
            return items.pop()

        tasks = [asyncio.create_task(take()), asyncio.create_task(take())]
        await asyncio.sleep(0)
        items.append(1)
        signal.notify()  # both are woken, and the first one takes it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        done = sum(task.done() for task in tasks)
        items.append(2)
        signal.notify()
        assert sorted(await asyncio.gather(*tasks)) == [1, 2]
        return done

    assert asyncio.run(go()) == 1


def test_a_cancelled_coroutine_waits_no_more() -> None:
    async def go() -> None:
        signal = Signal()
        task = asyncio.create_task(signal.until(lambda: False))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        signal.notify()
        assert not signal._waiters

    asyncio.run(go())
