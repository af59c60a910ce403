"""The channel between two processes: whole messages in order, an end, and bounds."""

from __future__ import annotations

import asyncio
import socket

import pytest
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.processes import channel
from latfarm_controller.farm.processes.channel import Channel
from latfarm_controller.farm.processes.child_messages import ChildAnswer, ChildBeat


async def pair() -> tuple[Channel, Channel]:
    ours, theirs = socket.socketpair()
    return await Channel.over(ours), await Channel.over(theirs)


def test_messages_arrive_whole_and_in_order_and_the_end_is_told() -> None:
    async def scenario() -> None:
        ours, theirs = await pair()
        sent = [ChildBeat(), ChildAnswer(1, b"x" * 300_000), ChildAnswer(2, error="no")]

        async def send() -> None:
            for message in sent:
                await ours.send(message)
            await ours.close()

        sending = asyncio.create_task(send())
        assert [await theirs.receive() for _ in sent] == sent
        assert await theirs.receive() is None
        await sending
        await theirs.close()

    asyncio.run(scenario())


def test_a_frame_that_is_cut_short_is_an_end() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        reading = await Channel.over(ours)
        theirs.sendall((100).to_bytes(4, "big") + b"[")
        theirs.close()
        assert await reading.receive() is None
        await reading.close()

    asyncio.run(scenario())


def test_frames_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "MAX_FRAME_BYTES", 1000)

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        reading = await Channel.over(ours)
        with pytest.raises(FarmError, match="is too large to send"):
            await reading.send(ChildAnswer(1, "x" * 1000))
        theirs.sendall((1001).to_bytes(4, "big"))
        with pytest.raises(FarmError, match="1001 bytes is too large"):
            await reading.receive()
        theirs.close()
        await reading.close()

    asyncio.run(scenario())


def test_who_does_not_read_is_told_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "SEND_S", 0.01)

    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        sending = await Channel.over(ours)
        with pytest.raises(FarmError, match="has read nothing"):
            await sending.send(ChildAnswer(1, b"x" * (8 << 20)))
        theirs.close()
        await sending.close()

    asyncio.run(scenario())
