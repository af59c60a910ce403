"""Carry the bytes of one connection to another one, both ways, until either side ends."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

CHUNK_BYTES = 256 << 10
"""Most bytes that are carried at once, and that wait in one direction of a connection."""


class PipeEnd(NamedTuple):
    """One connection: where its bytes come from, and where its bytes go."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def carry(one: PipeEnd, other: PipeEnd) -> None:
    """Carry bytes both ways until one side ends; neither side of gRPC goes on with half of them."""
    ways = [
        asyncio.create_task(_pump(one.reader, other.writer)),
        asyncio.create_task(_pump(other.reader, one.writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Carry bytes until the source ends."""
    while data := await source.read(CHUNK_BYTES):
        target.write(data)
        await target.drain()
