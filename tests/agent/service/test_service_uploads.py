"""Uploads of models to an agent over real gRPC: wrong ones, cut ones, and the cache's limits."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from latfarm_agent.service.server import AgentServer
from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import WAIT_S, Code, fails, result_of

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"token": 99}, Code.FAILED_PRECONDITION, "never granted"),
        ({"token": 0}, Code.FAILED_PRECONDITION, "never granted"),
        ({"platform": "pixel9"}, Code.INVALID_ARGUMENT, "offers: fake-onnxruntime1.0-fp32-1t"),
        ({"platform": "x" * 100_000}, Code.INVALID_ARGUMENT, "unknown platform"),
        ({"blob_sha256": "b" * 64}, Code.NOT_FOUND, "upload it first"),
        ({"blob_sha256": "../../token"}, Code.INVALID_ARGUMENT, "not a sha256"),
        ({"request_id": ""}, Code.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "x" * 129}, Code.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a\nb"}, Code.INVALID_ARGUMENT, "request_id"),
    ],
)
def test_a_wrong_request_is_refused_with_its_story(
    farm: Farm, client: Client, changes: Any, status: grpc.StatusCode, text: str
) -> None:
    token = client.acquire()
    request = client.request(token, client.upload(token))
    request.MergeFrom(pb.MeasureRequest(**changes))
    for name, value in changes.items():
        setattr(request, name, value)
    for method in (client.stub.Measure, client.stub.Profile):
        refused = fails(method, request)
        assert refused.status is status
        assert text in refused.details
    assert farm.bench.measured == []


def cut_upload(client: Client, token: int, data: bytes, count: int) -> None:
    """Send `count` bytes of a blob, wait until they are there, and break the call."""
    sha256 = hashlib.sha256(data).hexdigest()
    enough = threading.Event()

    def messages() -> Iterator[pb.UploadBlobRequest]:
        first = pb.UploadBlobRequest(token=token, sha256=sha256, size_bytes=len(data))
        first.data = data[:count]
        yield first
        enough.wait(WAIT_S)

    call = client.stub.UploadBlob.future(messages())
    while client.blob(sha256).received_bytes < count:
        assert not call.done()
    call.cancel()
    enough.set()


def test_an_upload_that_is_cut_resumes(client: Client) -> None:
    token = client.acquire()
    data = bytes(range(256)) * 4096
    cut_upload(client, token, data, 300_000)
    sha256 = hashlib.sha256(data).hexdigest()
    state = client.blob(sha256)
    assert (state.received_bytes, state.complete) == (300_000, False)
    missing = fails(client.measure, token, sha256)
    assert missing.status is Code.NOT_FOUND
    for offset in (0, 299_999, 300_001):
        wrong = fails(client.upload, token, data, offset)
        assert (wrong.status, wrong.code) == (Code.OUT_OF_RANGE, "BAD_OFFSET")
        assert "300000 bytes" in wrong.details
    client.upload(token, data, 300_000)
    assert client.blob(sha256).complete
    assert client.result(token, sha256).outcome == "ok"
    client.upload(token, data)  # once more: it is there


def upload_message(**fields: Any) -> pb.UploadBlobRequest:
    return pb.UploadBlobRequest(**{"sha256": "a" * 64, "size_bytes": 5, **fields})


@pytest.mark.parametrize(
    ("messages", "status", "text"),
    [
        ([], Code.INVALID_ARGUMENT, "at least one message"),
        ([{"sha256": "../../x"}], Code.INVALID_ARGUMENT, "not a sha256"),
        ([{"sha256": ""}], Code.INVALID_ARGUMENT, "not a sha256"),
        ([{"size_bytes": 2**64 - 1}], Code.RESOURCE_EXHAUSTED, "limit of 1000000 bytes"),
        ([{"offset": 2**64 - 1}], Code.OUT_OF_RANGE, "0 bytes"),
        ([{"token": 77}], Code.FAILED_PRECONDITION, "never granted"),
        ([{"data": b"wrong"}], Code.INVALID_ARGUMENT, "they hash to"),
        ([{"data": b"too long"}], Code.INVALID_ARGUMENT, "more than the 5 bytes"),
        ([{}, {"sha256": "b" * 64}], Code.INVALID_ARGUMENT, "one upload carries one blob"),
        ([{"data": b"x" * (17 << 20)}], Code.RESOURCE_EXHAUSTED, ""),
    ],
)
def test_a_hostile_upload_leaves_nothing(
    farm: Farm, messages: Any, status: grpc.StatusCode, text: str
) -> None:
    client = farm.client(farm.start(max_blob_bytes=1_000_000))
    token = client.acquire()
    stream = [upload_message(**{"token": token, **message}) for message in messages]
    refused = fails(client.send, stream)
    assert refused.status is status
    assert text in refused.details
    kept = [path for path in farm.state_dir.rglob("*") if path.is_file() and path.stat().st_size]
    assert sorted(path.name for path in kept) == ["lock", "token"]
    client.upload(token)


def test_an_upload_that_ends_early_is_told_so(client: Client) -> None:
    token = client.acquire()
    sha256 = hashlib.sha256(b"model").hexdigest()
    first = pb.UploadBlobRequest(token=token, sha256=sha256, size_bytes=5, data=b"mod")
    state = client.send([first])
    assert (state.received_bytes, state.complete) == (3, False)


def test_an_upload_ends_with_its_lease(farm: Farm, server: AgentServer, client: Client) -> None:
    token = client.acquire(ttl_ms=500)
    data = b"model" * 1000
    sha256 = hashlib.sha256(data).hexdigest()

    def messages() -> Iterator[pb.UploadBlobRequest]:
        yield pb.UploadBlobRequest(
            token=token, sha256=sha256, size_bytes=len(data), data=data[:1000]
        )
        while client.blob(sha256).received_bytes < 1000:
            pass
        farm.pass_time(server, 500)
        yield pb.UploadBlobRequest(data=data[1000:])

    assert fails(client.send, messages()).code == "LEASE_LOST"
    assert client.blob(sha256).received_bytes == 1000


def test_a_blob_in_use_is_not_evicted(farm: Farm) -> None:
    client = farm.client(farm.start(max_cache_bytes=1000))
    token = client.acquire()
    sha256 = client.upload(token, b"1" * 600)
    farm.bench.hold()
    call = client.measure(token, sha256)
    farm.bench.started.get(timeout=WAIT_S)
    refused = fails(client.upload, token, b"2" * 600)
    assert (refused.status, refused.code) == (Code.RESOURCE_EXHAUSTED, "BLOB_TOO_LARGE")
    farm.bench.let_go()
    assert result_of(call).outcome == "ok"
    client.upload(token, b"2" * 600)
    assert not client.blob(sha256).complete
