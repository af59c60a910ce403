"""Sends a model to a board in chunks, from where an earlier upload stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_controller.agents.call_errors import as_error, cut, details_of, readable
from latfarm_controller.agents.connection import (
    BROKEN_OFF,
    FRUITLESS_TRIES,
    AgentConnection,
    CutError,
    broken_off,
)
from latfarm_controller.errors import AgentError

CHUNK_BYTES = 1 << 20
"""Bytes of a model in one message of an upload."""
SLOWEST_BYTES_PER_MS = 100.0
"""An upload slower than this (0.8 Mbit/s) counts as stuck; it continues on a new connection."""
_MOVED = (grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.ABORTED)
# With these two codes, the upload must go on from another place, for example because another upload
# of the same model has gone further.


class BlobUpload:
    """The upload of one model; it survives connections that break.

    Args:
        connection: to the board.
        token: of the lease.
        sha256: the hash of `data` as 64 hex digits; the board checks it.
        data: the model.
    """

    def __init__(self, connection: AgentConnection, token: int, sha256: str, data: bytes) -> None:
        self._connection = connection
        self._token = token
        self._sha256 = sha256
        self._data = data

    async def send(self) -> int:
        """Send the model unless the board has it; returns the bytes sent.

        Raises:
            AgentError: the board cannot be reached, refuses the model, or takes none of it.
        """
        size_bytes = len(self._data)
        fruitless = 0
        first_bytes = furthest_bytes = -1
        why = "it says it has all bytes, but not the model"
        while True:
            state = await self._connection.call(
                "GetBlob", pb.GetBlobRequest(sha256=self._sha256), again=True
            )
            if state.complete:
                return 0 if first_bytes < 0 else size_bytes - first_bytes
            first_bytes = state.received_bytes if first_bytes < 0 else first_bytes
            fruitless = 0 if state.received_bytes > furthest_bytes else fruitless + 1
            furthest_bytes = max(furthest_bytes, state.received_bytes)
            if fruitless >= FRUITLESS_TRIES or state.received_bytes > size_bytes:
                raise AgentError(
                    f"{self._connection.address}: the upload of {self._sha256} ({size_bytes} "
                    f"bytes) stopped at {state.received_bytes} bytes: {why}"
                )
            try:
                state = await self._send_from(state.received_bytes)
            except CutError as error:
                why = str(error)
            else:
                if state.complete:
                    return size_bytes - first_bytes

    async def _send_from(self, offset: int) -> pb.BlobState:
        """Send the bytes of the model from `offset` on; returns what the board has then."""
        left_bytes = len(self._data) - offset
        timeout_ms = self._connection.patience.away_ms + left_bytes / SLOWEST_BYTES_PER_MS
        stub: Any = await self._connection.stub_for_stream()
        call = stub.UploadBlob(self._chunks(offset), timeout=timeout_ms / 1e3)
        address = self._connection.address
        try:
            state: pb.BlobState = readable(await call, address, "UploadBlob")
        except grpc.aio.AioRpcError as error:
            if cut(error) or error.code() in _MOVED:
                raise CutError(details_of(error) or error.code().name) from error
            raise as_error(error, address, "UploadBlob") from error
        except asyncio.CancelledError:
            if not broken_off():
                raise
            raise CutError(BROKEN_OFF) from None
        finally:
            call.cancel()
        return state

    async def _chunks(self, offset: int) -> AsyncIterator[pb.UploadBlobRequest]:
        """The messages of the upload; the first one tells what the others are part of."""
        yield pb.UploadBlobRequest(
            token=self._token,
            sha256=self._sha256,
            size_bytes=len(self._data),
            offset=offset,
            data=self._data[offset : offset + CHUNK_BYTES],
        )
        for start in range(offset + CHUNK_BYTES, len(self._data), CHUNK_BYTES):
            yield pb.UploadBlobRequest(data=self._data[start : start + CHUNK_BYTES])
