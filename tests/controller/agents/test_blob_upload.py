"""Uploads of models: chunks, cuts, and what a board refuses."""

from __future__ import annotations

from random import Random

import pytest
from latfarm_controller.agents import blob_upload
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import FRUITLESS_TRIES
from latfarm_controller.errors import AgentError

from tests.controller.agents.fake_agent import FakeAgent, digest, run


@pytest.mark.parametrize("size_bytes", [0, 1, 1 << 20, (2 << 20) + 1])
def test_upload_in_chunks_once(size_bytes: int) -> None:
    data = Random(size_bytes).randbytes(size_bytes)

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        assert await client.upload(digest(data), data) == size_bytes
        assert bytes(agent.blobs[digest(data)]) == data
        assert agent.largest_chunk <= 1 << 20
        assert await client.upload(digest(data), data) == 0
        assert agent.offsets == [0]

    run(test)


def test_a_cut_upload_resumes_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_upload, "CHUNK_BYTES", 1000)
    data = Random(0).randbytes(10_500)

    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        agent.blobs[digest(data)] = bytearray(data[:700])
        assert await client.upload(digest(data), data) == 9_800
        assert bytes(agent.blobs[digest(data)]) == data
        assert agent.offsets == [700, 1500, 1500, 4321, 9999]

    run(test, upload_faults=[1500, 1500, 4321, 9999])


def test_an_upload_that_gets_no_further_ends() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentError, match="stopped at 10 bytes: connection reset"):
            await client.upload(digest(b"x" * 100), b"x" * 100)
        assert len(agent.offsets) == 1 + FRUITLESS_TRIES

    run(test, upload_faults=[10] * 50)


def test_an_upload_under_a_wrong_name_is_refused() -> None:
    async def test(agent: FakeAgent, client: AgentClient) -> None:
        await client.acquire(1000)
        with pytest.raises(AgentError, match="another sha256"):
            await client.upload(digest(b"x"), b"y")

    run(test)
