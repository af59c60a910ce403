"""Worker processes read, hash and predict as the present process does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from latfarm_controller.bulk import evaluation
from latfarm_controller.bulk.candidates import (
    BulkCandidate,
    CandidateEnd,
    NetworkFile,
    SentGraph,
    Source,
)
from latfarm_controller.bulk.evaluation import Evaluation
from latfarm_controller.bulk.lender import WorkerLender
from latfarm_controller.bulk.predictions import PredictedLatency
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.estimates import in_order
from latfarm_controller.json_fields import graph_from_json
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.predict.answer import Answer, KernelAnswer
from latfarm_predictors.sample import load_sample
from latfarm_predictors.testing.onnx_files import write

PLATFORM, OTHER = "toy-sim1.0-fp32-1t", "toy-sim2.0-fp32-1t"


def network(channels: int) -> Graph:
    builder = GraphBuilder(f"net{channels}")
    return builder.build([builder.relu(builder.conv(builder.input((1, 3, 8, 8)), channels, 3))])


@pytest.fixture(scope="module")
def bundles_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of `PLATFORM` alone: the sample's."""
    folder = tmp_path_factory.mktemp("bundles")
    (folder / PLATFORM).mkdir()
    save_bundle(load_sample(), folder / PLATFORM / "0001.zip")
    return folder


@pytest.fixture
def candidates(tmp_path: Path) -> list[BulkCandidate]:
    """Networks as graphs, in files and as JSON, some of which cannot be read or predicted."""
    for channels in range(4, 8):
        write(network(channels), tmp_path / f"{channels}.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    files = [NetworkFile(str(path)) for path in sorted(tmp_path.glob("*.onnx"))]
    sent = [SentGraph(network(9).dumps().encode()), SentGraph(b"no JSON")]
    graphs = [network(channels) for channels in range(10, 14)]
    sources: list[Source] = [*files, *graphs]
    made = [BulkCandidate(source, platform) for source in sources for platform in (PLATFORM, OTHER)]
    made += [BulkCandidate(each, PLATFORM, hashed=False) for each in sent]
    return [*made, BulkCandidate(graphs[0], PLATFORM, predict=False)]


def told(end: CandidateEnd) -> tuple[object, ...]:
    """An end as plain values, without its latency."""
    predicted = end.predicted
    kind: object = type(predicted).__name__
    if isinstance(predicted, Exception):
        kind = f"{kind}: {predicted}"
    return end.name, end.hashes, kind, f"{type(end.unread).__name__}: {end.unread}"


def test_workers_tell_what_this_process_tells(
    bundles_dir: Path, candidates: list[BulkCandidate], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Evaluation(bundles_dir, WorkerLender(1)) as here:
        expected = here.start(candidates)()
    monkeypatch.setattr(evaluation, "WORTH_WORKERS", 2)
    lender = WorkerLender(2)
    with Evaluation(bundles_dir, lender) as there:
        started = [there.start(candidates), there.start(candidates[:3])]
        assert there.start([])() == []
        found = [wait() for wait in started]
        assert lender.pids
    assert lender.pids == []
    assert list(map(told, found[0])) == list(map(told, expected))
    assert list(map(told, found[1])) == list(map(told, expected[:3]))
    latencies = 0
    for one, other in zip(found[0], expected, strict=True):
        if isinstance(one.predicted, PredictedLatency):
            assert isinstance(other.predicted, PredictedLatency)
            assert one.predicted.latency_ms == pytest.approx(other.predicted.latency_ms, rel=1e-9)
            assert one.predicted.interval_ms == pytest.approx(other.predicted.interval_ms, rel=1e-9)
            latencies += 1
    assert latencies == 9
    assert found[0][0].hashes[0] == hash_of(network(4))
    assert isinstance(found[0][1].predicted, UsageError)
    assert isinstance(found[0][8].unread, ModelFileError)
    assert isinstance(found[0][19].unread, UsageError)
    assert found[0][-1].predicted is None


def test_few_candidates_start_no_process(bundles_dir: Path) -> None:
    lender = WorkerLender(2)
    with Evaluation(bundles_dir, lender) as few:
        (end,) = few.start([BulkCandidate(network(3), PLATFORM)])()
        assert isinstance(end.predicted, PredictedLatency)
        assert lender.pids == []


def test_things_come_in_the_order_of_their_numbers() -> None:
    assert list(in_order([(1, "b"), (0, "a"), (3, "d"), (2, "c")])) == list("abcd")


def test_whoever_left_borrows_no_workers(
    bundles_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client goes away while a thread looks into the store, and the thread goes on."""
    monkeypatch.setattr(evaluation, "WORTH_WORKERS", 1)
    lender = WorkerLender(2, idle_s=60.0)
    left = Evaluation(bundles_dir, lender)
    left.close()
    try:
        with pytest.raises(ControllerError, match="their caller left"):
            left.start([BulkCandidate(network(3), PLATFORM)])
        assert lender.pids == []
        assert lender._borrowers == 0
    finally:
        lender.close()


class Gap:
    """A lock that lets something happen right after it was released."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self._lock = threading.Lock()
        self._happens: list[Callable[[], object]] = [happens]

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()
        if self._happens:
            self._happens.pop()()


def test_a_pool_that_is_borrowed_again_is_not_closed() -> None:
    """The second borrower comes when the first one is counted off, but its pool is not closed."""
    lender = WorkerLender(2)
    with ExitStack() as second:
        with lender.lent() as first:
            lender._lock = Gap(lambda: second.enter_context(lender.lent()))  # type: ignore[assignment]
        pool = lender._pool
        assert pool is not None
        assert not pool._closed
        assert pool is not first
    assert lender._pool is None


def test_unsupported_time_knows_odd_names() -> None:
    """Exporters name nodes as they like, such as `block (1)` or `a (Erf): b`."""
    kernels = [
        KernelAnswer("Conv", (name,), {}, latency_ms, (0.5, 2.0), "gp")
        for name, latency_ms in (("block", 1.0), ("block (1)", 2.0), ("a (Erf): b", 4.0), ("", 8.0))
    ]
    told = ("block (1) (Erf): unknown", "a (Erf): b (Erf): unknown")
    answer = Answer("n", "p", 15.0, (1.0, 2.0), 0.9, True, tuple(kernels), told)
    assert PredictedLatency.of(answer).unsupported_ms == 6.0
    assert PredictedLatency.of(replace(answer, unsupported=())).unsupported_ms == 0.0


def test_json_that_is_nested_without_end_fails_alone(bundles_dir: Path) -> None:
    nested = b"[" * 100_000
    with pytest.raises(UsageError, match="graph_json is not valid JSON"):
        graph_from_json(nested)
    asked = [SentGraph(nested), SentGraph(network(3).dumps().encode())]
    with Evaluation(bundles_dir, WorkerLender(1)) as here:
        bad, good = here.start([BulkCandidate(each, PLATFORM) for each in asked])()
    assert isinstance(bad.unread, UsageError)
    assert isinstance(good.predicted, PredictedLatency)
