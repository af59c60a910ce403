"""Connections are served in tasks and closed, whenever their servers are closed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from latfarm_controller.api.pipes import PipeEnd, ServedConnections

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("steps", range(9))
def test_a_connection_is_closed_however_far_it_came(tmp_path: Path, steps: int) -> None:
    begun: list[PipeEnd] = []

    async def serve(end: PipeEnd) -> None:
        begun.append(end)
        await asyncio.Event().wait()

    async def play() -> bytes:
        connections = ServedConnections()
        path = str(tmp_path / "s")
        server = await asyncio.start_unix_server(connections.serving(serve), path)
        reader, writer = await asyncio.open_unix_connection(path)
        for _ in range(steps):
            await asyncio.sleep(0)
        await connections.close(server)
        await connections.close()
        try:
            async with asyncio.timeout(50):
                return await reader.read()
        except ConnectionResetError:  # it was not even accepted
            return b""
        finally:
            writer.close()

    assert asyncio.run(play()) == b""
    assert begun or steps < 4


def test_a_connection_that_fails_is_closed_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve(end: PipeEnd) -> None:
        end.writer.write(b"last words")
        raise ConnectionResetError("it is gone") if await end.reader.read(1) == b"r" else KeyError

    async def play(sent: bytes) -> bytes:
        connections = ServedConnections()
        path = str(tmp_path / sent.decode())
        server = await asyncio.start_unix_server(connections.serving(serve), path)
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(sent)
        heard = await reader.read()
        writer.close()
        await connections.close(server)
        return heard

    with caplog.at_level(logging.INFO):
        assert asyncio.run(play(b"r")) == b"last words"
        assert caplog.messages == [], "connections break every day"
        assert asyncio.run(play(b"k")) == b"last words"
    assert caplog.messages == ["a connection could not be served"]
