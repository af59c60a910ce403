"""A bench in another process, behind a socket: questions, cancellations, wrong answers."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from latfarm_agent import wire
from latfarm_agent.bench.records import (
    BenchRequest,
    BenchResult,
    BenchStage,
    DescribedBoard,
    MeasuredSession,
    OfferedRuntime,
)
from latfarm_agent.errors import AgentUsageError, StateError
from latfarm_agent.files.readiness import readable
from latfarm_agent.link.messages import Link, LinkError
from latfarm_agent.link.remote import RemoteBench
from latfarm_agent.link.server import BenchServer
from latfarm_agent.worker import channel

MODEL = b"weights" * 100_000
UNKNOWN_OUTCOME = wire.packed_result(BenchResult(outcome="perfect"))


class OneBench:
    """Gives each model's size as its latency. With `waits`, it waits until it is cancelled."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: dict[str, int] = {}
        self.closed = False
        self.restarted = ""
        self.waits = False
        self.began = threading.Event()
        self.ended = threading.Event()

    def describe(self) -> tuple[DescribedBoard, list[OfferedRuntime]]:
        return DescribedBoard(board_id="7", name="one"), [
            OfferedRuntime(name="toy", available=True)
        ]

    def measure(
        self,
        request: BenchRequest,
        model_path: Path,
        *,
        profile: bool,
        on_stage: Callable[[BenchStage], None],
        cancelled: Callable[[], bool],
    ) -> BenchResult:
        self.names.append(model_path.name)
        beside = model_path.parent.iterdir()
        self.sizes = {path.name: path.stat().st_size for path in beside}
        assert stat.S_IMODE(model_path.parent.stat().st_mode) == 0o700
        for index in range(3):
            on_stage(BenchStage(name="timing", session=index))
        self.began.set()
        while self.waits and not cancelled():
            pass
        self.ended.set()
        size = float(len(model_path.read_bytes()))
        outcome = "infrastructure_error" if self.waits else "ok"
        session = MeasuredSession(runs_ms=[size], load_ms=1.0 if profile else 0.0)
        return BenchResult(request_id=request.request_id, outcome=outcome, sessions=[session])

    def restart(self, part: str) -> str:
        self.restarted = part
        return f"the {part} is \x1bnew"

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def bench() -> OneBench:
    return OneBench()


@pytest.fixture
def served(tmp_path: Path, bench: OneBench) -> Iterator[Path]:
    path = tmp_path / "b.sock"
    with closing(BenchServer(bench, path, tmp_path)) as server:
        server.start()
        yield path
    assert bench.closed
    assert not path.exists()
    assert not list(tmp_path.glob("model-*"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "abcdef"
    path.write_bytes(MODEL)
    return path


def remote(path: Path, timeout_ms: float = 60_000.0) -> RemoteBench:
    return RemoteBench(path, start_timeout_ms=timeout_ms, return_timeout_ms=timeout_ms)


def measure(
    asking: RemoteBench,
    model: Path,
    on_stage: Callable[[BenchStage], None] = lambda _: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> BenchResult:
    request = BenchRequest(request_id="r1", platform="toy")
    return asking.measure(request, model, profile=True, on_stage=on_stage, cancelled=cancelled)


def test_asks_the_other_process(served: Path, bench: OneBench, model: Path) -> None:
    asking = remote(served)
    board, runtimes = asking.describe()
    assert (board.name, [runtime.name for runtime in runtimes]) == ("one", ["toy"])
    stages: list[int] = []
    result = measure(asking, model, lambda stage: stages.append(stage.session))
    assert (result.outcome, result.request_id) == ("ok", "r1")
    assert list(result.sessions[0].runs_ms) == [len(MODEL)]
    assert result.sessions[0].load_ms == 1.0
    assert stages == [0, 1, 2]
    assert bench.names == ["abcdef"]


def test_companions_come_with_the_model(served: Path, bench: OneBench, model: Path) -> None:
    data = {"a" * 64: b"weights", "b" * 64: b"more of them"}
    for name, content in data.items():
        (model.parent / name).write_bytes(content)
    companions = {"weights": "a" * 64, "more": "b" * 64, "same": "a" * 64}
    request = BenchRequest(request_id="r1", platform="toy", companions=companions)
    result = remote(served).measure(
        request, model, profile=False, on_stage=lambda _: None, cancelled=lambda: False
    )
    assert (result.outcome, result.error_message) == ("ok", "")
    assert bench.sizes == {model.name: len(MODEL), "a" * 64: 7, "b" * 64: 12}


@pytest.mark.parametrize("name", ["../../etc/passwd", "c" * 64])
def test_companions_that_are_not_here_are_told(served: Path, model: Path, name: str) -> None:
    request = BenchRequest(request_id="r1", platform="toy", companions={"weights": name})
    result = remote(served).measure(
        request, model, profile=False, on_stage=lambda _: None, cancelled=lambda: False
    )
    assert result.outcome == "infrastructure_error"
    assert result.error_code in ("BLOB_MISSING", "WORKER_FAILED")


@pytest.mark.parametrize("files", [1, 3, 66])
def test_another_number_of_files_than_the_model_has_is_refused(
    served: Path, bench: OneBench, model: Path, files: int
) -> None:
    request = wire.packed_request(BenchRequest(request_id="r1", companions={"w": "a" * 64}))
    question = {"ask": "measure", "request": request, "name": "m", "profile": False}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(served))
        link = Link(connection)
        with model.open("rb") as file, suppress(LinkError):
            link.send(question, [file.fileno()] * files)
            assert link.receive() is None
    assert bench.names == []
    assert remote(served).describe()[0].name == "one"


def test_the_other_process_restarts_a_part(served: Path, bench: OneBench) -> None:
    assert remote(served).restart("runtime") == "the runtime is ?new"
    assert bench.restarted == "runtime"


def test_an_unknown_part_is_not_passed_on(served: Path, bench: OneBench) -> None:
    with pytest.raises(StateError, match="did not restart"):
        remote(served).restart("board")
    assert bench.restarted == ""


def test_only_its_group_may_ask(served: Path) -> None:
    assert stat.S_IMODE(served.stat().st_mode) == 0o660


def test_a_cancelled_measurement_ends_on_both_sides(
    served: Path, bench: OneBench, model: Path
) -> None:
    bench.waits = True
    result = measure(remote(served), model, cancelled=bench.began.is_set)
    assert result.error_code == "CANCELLED"
    assert bench.ended.wait(60.0)


def test_an_agent_that_dies_cancels(served: Path, bench: OneBench, model: Path) -> None:
    bench.waits = True
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection, model.open("rb") as file:
        connection.connect(str(served))
        request = wire.packed_request(BenchRequest(request_id="r1"))
        Link(connection).send(
            {"ask": "measure", "request": request, "name": "m", "profile": False}, [file.fileno()]
        )
        assert bench.began.wait(60.0)
    assert bench.ended.wait(60.0)


def test_nobody_there(tmp_path: Path, model: Path) -> None:
    asking = remote(tmp_path / "none.sock", timeout_ms=50.0)
    with pytest.raises(StateError, match="nothing measures"):
        asking.describe()
    result = measure(asking, model)
    assert (result.outcome, result.error_code) == ("infrastructure_error", "WORKER_FAILED")


def test_a_question_that_a_stopping_process_did_not_take_is_asked_again(
    tmp_path: Path, bench: OneBench, model: Path
) -> None:
    path = tmp_path / "b.sock"
    results: list[BenchResult] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopping:
        stopping.bind(str(path))
        stopping.listen()
        asking = threading.Thread(target=lambda: results.append(measure(remote(path), model)))
        asking.start()
        assert readable([stopping], 60.0), "nobody has connected"
    path.unlink()
    with closing(BenchServer(bench, path, tmp_path)) as server:
        server.start()
        asking.join()
    assert [(each.outcome, each.error_message) for each in results] == [("ok", "")]
    assert bench.names == ["abcdef"], "it is measured once"


def test_a_question_is_refused_while_no_thread_can_be_started(
    served: Path, bench: OneBench, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that takes all threads of the service must not leave it deaf."""
    start, refused = threading.Thread.start, threading.Event()

    def start_or_not(thread: threading.Thread) -> None:
        if thread.name == "bench-question" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_not)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(served))
        assert connection.recv(1) == b"", "the connection is closed, not forgotten"
    assert refused.is_set()

    def deaf() -> bool:
        return "bench-accept" not in {thread.name for thread in threading.enumerate()}

    assert measure(remote(served), model, cancelled=deaf).outcome == "ok"


def test_waits_for_one_that_starts_later(tmp_path: Path, bench: OneBench) -> None:
    path = tmp_path / "b.sock"
    asking = RemoteBench(path, start_timeout_ms=60_000.0)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(asking.describe()[0].name))
    thread.start()
    with closing(BenchServer(bench, path, tmp_path)) as server:
        server.start()
        thread.join()
    assert found == ["one"]


def test_tells_what_it_last_knew_while_it_is_away(tmp_path: Path, bench: OneBench) -> None:
    path = tmp_path / "b.sock"
    with closing(BenchServer(bench, path, tmp_path)) as server:
        server.start()
        asking = RemoteBench(path, start_timeout_ms=60_000.0, return_timeout_ms=50.0)
        known = asking.describe()
    assert asking.describe() == known


def test_a_killed_server_leaves_no_socket_in_the_way(tmp_path: Path, bench: OneBench) -> None:
    path = tmp_path / "b.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as left:
        left.bind(str(path))
    with closing(BenchServer(bench, path, tmp_path)) as server:
        server.start()
        assert remote(path).describe()[0].name == "one"
        with pytest.raises(AgentUsageError, match="another process serves there"):
            BenchServer(OneBench(), path, tmp_path)


def test_refuses_to_take_the_place_of_a_file(tmp_path: Path, bench: OneBench) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AgentUsageError, match="--socket"):
        BenchServer(bench, path, tmp_path)
    assert path.read_text() == "data"


def test_no_socket_has_so_long_a_name(tmp_path: Path, bench: OneBench) -> None:
    with pytest.raises(AgentUsageError, match="longer than 107 bytes"):
        RemoteBench(tmp_path / ("x" * 120))
    with pytest.raises(AgentUsageError, match="longer than 107 bytes"):
        BenchServer(bench, tmp_path / ("x" * 120), tmp_path)


@pytest.mark.parametrize(
    "question",
    [
        {"ask": "nonsense"},
        {"ask": "measure"},
        {"ask": "measure", "request": "!", "name": "m", "profile": False},
        {"ask": "measure", "request": "", "name": "../../etc/passwd", "profile": False},
        {"ask": "measure", "request": "", "name": "", "profile": False},
    ],
)
def test_bad_questions_get_nowhere(
    served: Path, bench: OneBench, model: Path, question: channel.Message
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(served))
        link = Link(connection)
        # The other side may close the connection before everything is sent.
        with model.open("rb") as file, suppress(LinkError):
            link.send(question, [file.fileno()] if len(question) > 1 else [])
            assert link.receive() is None
    assert bench.names == []
    assert remote(served).describe()[0].name == "one"


def test_a_model_that_is_no_regular_file_is_refused(served: Path, bench: OneBench) -> None:
    read, write = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(served))
            link = Link(connection)
            question = {"ask": "measure", "request": "", "name": "m", "profile": False}
            link.send(question, [read])
            answer = link.receive()
    finally:
        os.close(read)
        os.close(write)
    assert answer is not None
    assert wire.unpacked_result(answer["result"]).error_code == "DISK_FULL"
    assert bench.names == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"lf\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        channel.encode({"event": "measured", "result": "not base64"}),
        channel.encode(
            {"event": "measured", "result": wire.packed_result(BenchResult(outcome="perfect"))}
        ),
        channel.encode({"event": "stage", "stage": 7}),
        channel.encode({"event": "described", "board": "", "runtimes": 3}),
        channel.encode({}),
    ],
)
def test_nothing_that_it_says_is_believed_unseen(
    tmp_path: Path, model: Path, answer: bytes
) -> None:
    path = tmp_path / "liar.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def lie() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

        thread = threading.Thread(target=lie)
        thread.start()
        asking = remote(path)
        assert measure(asking, model).error_code == "WORKER_FAILED"
        with pytest.raises(StateError):
            asking.describe()
        thread.join()


def test_messages_and_files_arrive_in_any_pieces() -> None:
    ours, theirs = socket.socketpair()
    link = Link(theirs)
    data = channel.encode({"n": 1}) + channel.encode({"n": 2})
    with ours:
        for byte in data:
            ours.sendall(bytes([byte]))
        assert [link.receive(), link.receive()] == [{"n": 1}, {"n": 2}]
        ours.sendall(data[:5])
    with pytest.raises(LinkError, match="within a message"):
        link.receive()
    link.close()
