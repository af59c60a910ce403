"""The disk fills while a board measures: what was asked is answered, and nothing is damaged.

A full disk is imitated by the kernel: it lets the agent write to no file any more. What a model
does to the disk of a board is tested in `tests/agent/bench/test_bad_runtimes.py`, and a full disk
of the controller in `tests/controller/store/test_durability.py`.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from latfarm_agent.service.servicer import ERROR_KEY

from tests.attacks.conftest import HOUR_MS, HalfUpload, Site, Waiting, model

pytestmark = pytest.mark.timeout(300)


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """Let a process write to no file inside of the block; its pipes and sockets go on."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_while_it_measures_costs_no_result(site: Site) -> None:
    site.agent.start()
    client = site.open()
    token = client.acquire(ttl_ms=HOUR_MS)
    before = site.measured(client, token)
    waiting = Waiting(site, client, site.request(client, token))
    with full_disk(site.agent_pid):
        site.board.allow(None)
        result = waiting.result()
        assert result.outcome == "ok", "who listens hears it although it cannot be kept"
        assert client.spooled() == [before]
    after = site.measured(client, token)
    assert client.spooled() == [before, after], "nothing that was kept is damaged"
    assert site.agent.alive


def test_uploads_to_a_full_disk_are_refused_until_there_is_room(site: Site) -> None:
    site.agent.start()
    client = site.open()
    token = client.acquire(ttl_ms=HOUR_MS)
    request = site.request(client, token)
    data = model(500) * 100
    upload = HalfUpload(client, token, data)
    with full_disk(site.agent_pid):
        upload.go_on()
        error = upload.call.exception()
        assert isinstance(error, grpc.RpcError)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata())[ERROR_KEY] == "DISK_FULL"
        *_, last = client.stub.Measure(request)
        assert last.result.outcome == "ok", "models that are here are measured"
    assert client.blob(upload.sha256).received_bytes == 0, "it was discarded to free some room"
    client.upload(token, data)
    site.measured(client, token)


def test_a_lease_that_cannot_be_kept_on_disk_is_not_granted(site: Site) -> None:
    site.agent.start()
    client = site.open()
    first = client.acquire(ttl_ms=HOUR_MS)
    client.release(first)
    with full_disk(site.agent_pid):
        with pytest.raises(grpc.RpcError) as caught:
            client.acquire(ttl_ms=HOUR_MS)
        assert dict(caught.value.trailing_metadata())[ERROR_KEY] == "STATE"
        assert client.state() == "idle"
    token = client.acquire(ttl_ms=HOUR_MS)
    assert token > first
    site.measured(client, token)
