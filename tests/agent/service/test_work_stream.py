"""The work stream of an agent: orders, results, renewals, and what ends it."""

from __future__ import annotations

import hashlib
import queue
from typing import TYPE_CHECKING, Any, Iterator

import grpc
import pytest
from latfarm_agent.errors import BusyError, RequestError
from latfarm_agent.service import served_work, servicer
from latfarm_agent.service.outbox import Outbox
from latfarm_agent.service.server import AgentServer
from latfarm_protos.v1 import agent_pb2 as pb
from tests.agent.service.calls import WAIT_S, Code, Failure

if TYPE_CHECKING:
    from tests.agent.service.conftest import Client, Farm

pytestmark = pytest.mark.timeout(120)

MODEL = b"model"
SHA256 = hashlib.sha256(MODEL).hexdigest()


class Stream:
    """A stream of a test, under one token."""

    def __init__(self, client: Client, token: int) -> None:
        self.client = client
        self.token = token
        self._sent: queue.Queue[pb.ToBoard | None] = queue.Queue()
        self._call = client.stub.Work(self._messages(), timeout=WAIT_S)

    def _messages(self) -> Iterator[pb.ToBoard]:
        while True:
            message = self._sent.get()
            if message is None:
                return
            yield message

    def say(self, **fields: Any) -> None:
        self._sent.put(pb.ToBoard(token=self.token, **fields))

    def order(self, request_id: str = "r1", model: bytes = MODEL, **fields: Any) -> None:
        sha256 = hashlib.sha256(model).hexdigest()
        request = self.client.request(0, sha256, request_id)
        self.say(order=pb.Order(request=request, model=model, **fields))

    def renew(self, ttl_ms: int = 60_000, **fields: Any) -> None:
        self.say(renewal=pb.Renewal(ttl_ms=ttl_ms), **fields)

    def hear(self) -> pb.FromBoard:
        message: pb.FromBoard = next(self._call)
        return message

    def result(self) -> pb.Result:
        message = self.hear()
        assert message.WhichOneof("message") == "result"
        return message.result

    def refusal(self) -> pb.Refusal:
        message = self.hear()
        assert message.WhichOneof("message") == "refusal"
        return message.refusal

    def lease(self) -> pb.Lease:
        message = self.hear()
        assert message.WhichOneof("message") == "lease"
        return message.lease

    def failure(self) -> Failure:
        with pytest.raises(grpc.RpcError) as caught:
            self.hear()
        return Failure(caught.value)

    def end(self) -> None:
        self._sent.put(None)

    def cut(self) -> None:
        self._call.cancel()
        self._sent.put(None)


@pytest.fixture
def opened(client: Client) -> Iterator[list[Stream]]:
    """Streams that end with the test."""
    streams: list[Stream] = []
    yield streams
    for stream in streams:
        stream.cut()


@pytest.fixture
def stream(client: Client, opened: list[Stream]) -> Stream:
    """A stream under a new lease."""
    return again(client, client.acquire(), opened)


def again(client: Client, token: int, opened: list[Stream]) -> Stream:
    made = Stream(client, token)
    opened.append(made)
    return made


def test_the_agent_says_that_it_has_the_stream(client: Client) -> None:
    described = client.stub.Describe(pb.DescribeRequest())
    assert served_work.CAPABILITY in described.capabilities


def test_an_order_brings_its_model_and_gets_one_result(client: Client, stream: Stream) -> None:
    stream.order()
    result = stream.result()
    assert (result.request_id, result.outcome) == ("r1", "ok")
    assert client.blob(SHA256).complete
    assert [kept.request_id for kept in client.spooled()] == ["r1"]


def test_a_plain_call_gets_the_result_of_an_order(
    farm: Farm, client: Client, stream: Stream
) -> None:
    stream.order()
    result = stream.result()
    assert client.result(stream.token, SHA256) == result
    assert farm.bench.measured == ["r1"]


def test_an_order_can_ask_for_a_profile(client: Client, stream: Stream) -> None:
    stream.order(profile=True)
    assert [layer.name for layer in stream.result().layers] == ["conv1"]


def test_a_model_that_was_uploaded_needs_not_come_again(client: Client, stream: Stream) -> None:
    large = b"m" * (served_work.MOST_INLINE_BYTES + 1)
    sha256 = client.upload(stream.token, large)
    stream.say(order=pb.Order(request=client.request(0, sha256)))
    assert stream.result().outcome == "ok"


def test_stages_come_only_while_somebody_watches(
    farm: Farm, client: Client, stream: Stream
) -> None:
    stream.order("r1")
    assert stream.result().request_id == "r1"
    stream.say(watch=pb.Watch(stages=True))
    stream.order("r2")
    names = []
    while (message := stream.hear()).WhichOneof("message") == "stage":
        assert message.stage.request_id == "r2"
        names.append(message.stage.stage.name)
    assert names == ["queued", "loading", "timing"]
    assert message.result.request_id == "r2"
    stream.say(watch=pb.Watch(stages=False))
    stream.order("r3")
    assert stream.result().request_id == "r3"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"platform": "other"}, "UNKNOWN_PLATFORM"),
        ({"blob_sha256": "0" * 64}, "BLOB_NOT_FOUND"),
        ({"blob_sha256": "../token"}, "BAD_DIGEST"),
        ({"request_id": "with space"}, "INVALID_REQUEST"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_the_stream_goes_on(
    client: Client, stream: Stream, changed: dict[str, str], code: str
) -> None:
    request = client.request(0, SHA256)
    for name, value in changed.items():
        setattr(request, name, value)
    stream.say(order=pb.Order(request=request))
    refused = stream.refusal()
    assert (refused.request_id, refused.error_code) == (request.request_id, code)
    assert refused.error_message
    stream.order("next")
    assert stream.result().request_id == "next"


def test_models_in_orders_are_checked_as_uploads_are(client: Client, stream: Stream) -> None:
    for model, sha256, code in (
        (b"\x80\x04pickle", None, "FORBIDDEN_FORMAT"),
        (b"other", SHA256, "BAD_DIGEST"),
        (b"m" * (served_work.MOST_INLINE_BYTES + 1), None, "INVALID_REQUEST"),
    ):
        name = sha256 or hashlib.sha256(model).hexdigest()
        stream.say(order=pb.Order(request=client.request(0, name), model=model))
        assert stream.refusal().error_code == code
        assert not client.blob(name).complete


def test_the_rest_of_a_model_that_was_partly_uploaded_comes_with_the_order(
    client: Client, stream: Stream
) -> None:
    first = pb.UploadBlobRequest(
        token=stream.token, sha256=SHA256, size_bytes=len(MODEL), offset=0, data=MODEL[:2]
    )
    assert not client.send([first]).complete
    stream.order()
    assert stream.result().outcome == "ok"


def test_a_running_order_that_is_withdrawn_is_cancelled_and_not_kept(
    farm: Farm, client: Client, stream: Stream
) -> None:
    farm.bench.hold()
    stream.order("runs")
    stream.order("waits")
    assert farm.bench.started.get(timeout=WAIT_S).request_id == "runs"
    stream.say(withdrawal=pb.Withdrawal(request_id="waits"))
    stream.say(withdrawal=pb.Withdrawal(request_id="runs"))
    answers = [stream.result(), stream.result()]
    assert [answer.request_id for answer in answers] == ["waits", "runs"]
    assert {answer.error_code for answer in answers} == {"CANCELLED"}
    farm.bench.let_go()
    stream.order("runs")
    assert stream.result().outcome == "ok"
    assert [kept.request_id for kept in client.spooled()] == ["runs"]


def test_what_is_finished_or_unknown_cannot_be_withdrawn(client: Client, stream: Stream) -> None:
    stream.order()
    assert stream.result().outcome == "ok"
    for request_id in ("r1", "unknown"):
        stream.say(withdrawal=pb.Withdrawal(request_id=request_id))
    stream.renew()
    assert stream.lease().token == stream.token
    assert [kept.request_id for kept in client.spooled()] == ["r1"]


def test_a_renewal_confirms_the_acknowledgements_before_it(client: Client, stream: Stream) -> None:
    for number in range(3):
        stream.order(f"r{number}")
        assert stream.result().outcome == "ok"
    stream.say(acknowledged=["r0", "unknown"])
    stream.renew(700, acknowledged=["r1"])
    lease = stream.lease()
    assert (lease.token, lease.ttl_ms) == (stream.token, 700)
    assert [kept.request_id for kept in client.spooled()] == ["r2"]


def test_a_broken_stream_neither_loses_nor_doubles_a_measurement(
    farm: Farm, client: Client, stream: Stream, opened: list[Stream]
) -> None:
    farm.bench.hold()
    stream.order()
    farm.bench.started.get(timeout=WAIT_S)
    stream.cut()
    second = again(client, stream.token, opened)
    second.order()
    second.renew()
    assert second.lease().token == stream.token  # so the order before it has arrived
    farm.bench.let_go()
    result = second.result()
    assert result.outcome == "ok"
    third = again(client, stream.token, opened)
    third.order()
    assert third.result() == result
    assert farm.bench.measured == ["r1"]


def test_a_stale_token_ends_the_stream(
    client: Client, stream: Stream, opened: list[Stream]
) -> None:
    stream.renew()
    stream.lease()
    client.release(stream.token)
    token = client.acquire("bob")
    for fields in (
        {"acknowledged": ["r1"]},
        {"withdrawal": pb.Withdrawal(request_id="r1")},
        {"renewal": pb.Renewal(ttl_ms=1000)},
        {"order": pb.Order(request=client.request(token, SHA256), model=MODEL)},
    ):
        stale = again(client, stream.token, opened)
        stale.say(**fields)
        failed = stale.failure()
        assert (failed.status, failed.code) == (Code.FAILED_PRECONDITION, "LEASE_LOST")
    assert not client.blob(SHA256).complete


def test_a_stream_ends_with_the_lease_that_nobody_renews(
    farm: Farm, server: AgentServer, client: Client, opened: list[Stream]
) -> None:
    stream = again(client, client.acquire(ttl_ms=20), opened)
    stream.order()
    assert stream.result().outcome == "ok"
    farm.pass_time(server, 21)
    failed = stream.failure()
    assert (failed.status, failed.code) == (Code.FAILED_PRECONDITION, "LEASE_LOST")


def test_a_stream_that_is_never_opened_ends(server: AgentServer) -> None:
    sent: queue.Queue[pb.ToBoard | None] = queue.Queue()
    work = served_work.ServedWork(server.conductor, lambda _sha256, _data: None, opening_s=0.01)
    with pytest.raises(RequestError, match="was not opened"):
        list(work.serve(iter(sent.get, None)))
    sent.put(None)


def test_bytes_that_are_no_message_end_the_stream(client: Client) -> None:
    path = "/latfarm_protos.v1.AgentService/Work"
    call = client.channel.stream_stream(path)(iter([b"\xff\xff\xff"]), timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() == Code.INVALID_ARGUMENT


def test_the_controller_may_end_the_stream(client: Client, stream: Stream) -> None:
    stream.order()
    stream.result()
    stream.say(acknowledged=["r1"])
    stream.end()
    with pytest.raises(StopIteration):
        stream.hear()
    assert client.spooled() == []


def test_an_agent_that_stops_ends_its_streams_after_their_last_results(
    farm: Farm, server: AgentServer, stream: Stream
) -> None:
    farm.bench.hold()
    stream.order()
    farm.bench.started.get(timeout=WAIT_S)
    farm.stop(server)
    assert stream.result().error_code == "AGENT_STOPPED"
    failed = stream.failure()
    assert (failed.status, failed.code) == (Code.UNAVAILABLE, "STOPPING")


def test_too_many_streams_are_refused(
    client: Client, opened: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = client.acquire()
    for _ in range(servicer.MAX_WORK_STREAMS):
        stream = again(client, token, opened)
        stream.renew()
        stream.lease()
    failed = again(client, token, opened).failure()
    assert (failed.status, failed.code) == (Code.RESOURCE_EXHAUSTED, "BUSY")


def test_an_outbox_gives_everything_and_then_its_error() -> None:
    box: Outbox[str] = Outbox()
    box.put("a", 1)
    box.put("b", 1)
    box.end(KeyError("late"))
    box.put("c", 1)
    assert [box.take(0), box.take(0)] == ["a", "b"]
    with pytest.raises(KeyError, match="late"):
        box.take(0)


@pytest.mark.parametrize(("count", "size_bytes"), [(3, 1), (2, 60)])
def test_an_outbox_that_is_not_emptied_ends_and_drops_what_it_holds(
    count: int, size_bytes: int
) -> None:
    box: Outbox[str] = Outbox(most_messages=3, most_bytes=130)
    for _ in range(count):
        box.put("kept", size_bytes)
    box.put("stage", 100, vital=False)
    box.put("result", 100)
    with pytest.raises(BusyError, match="does not read"):
        box.take(0)


def test_an_outbox_takes_one_message_of_any_size() -> None:
    box: Outbox[str] = Outbox(most_bytes=10)
    box.put("large", 1000)
    assert box.take(0) == "large"
    assert box.take(0) is None
    box.put("next", 1)
    box.abandon()
    assert box.take(0) is None
    assert box.ended
