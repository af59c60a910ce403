"""Uploads of models: formats that can run code are refused after their first bytes."""

from __future__ import annotations

import ast
import hashlib
import io
import pickle
import zipfile
from pathlib import Path

import latfarm_agent
import pytest
from hypothesis import given
from hypothesis import strategies as st
from latfarm_agent import errors
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.files.uploads import FORBIDDEN, HEAD_BYTES, Pace, check_format
from latfarm_controller.builders import FORMATS, build
from latfarm_predictors.graph.builder import GraphBuilder


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, b"x")
    return buffer.getvalue()


DANGEROUS = {
    **{f"pickle {n}": pickle.dumps({"weights": list(range(50))}, protocol=n) for n in (2, 3, 4, 5)},
    "torch": zipped("archive/data.pkl"),
    "a short zip": zipped("a")[:20],
    "engine": b"ftrt" + bytes(60),
    "old engine": b"ptrt" + bytes(60),
    "program": b"\x7fELF" + bytes(60),
    "script": b"#!/bin/sh\necho hello there\n",
    "hdf5": b"\x89HDF\r\n\x1a\n" + bytes(20),
}


@pytest.mark.parametrize("kind", sorted(DANGEROUS))
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_what_runs_code_is_no_model(tmp_path: Path, kind: str, chunk: int) -> None:
    data = DANGEROUS[kind]
    store = BlobStore(tmp_path)
    sha256 = hashlib.sha256(data).hexdigest()

    def send() -> None:
        upload = store.begin(sha256, len(data), 0)
        assert upload is not None
        with upload:
            for start in range(0, len(data), chunk):
                upload.write(data[start : start + chunk])

    with pytest.raises(errors.ForbiddenFormatError, match="send"):
        send()
    assert store.status(sha256).received_bytes == 0
    assert store.total_bytes == 0


def test_a_pickle_in_two_uploads_is_one_pickle(tmp_path: Path) -> None:
    data = DANGEROUS["engine"]
    store = BlobStore(tmp_path)
    sha256 = hashlib.sha256(data).hexdigest()
    first = store.begin(sha256, len(data), 0)
    assert first is not None
    with first:
        first.write(data[:3])
    second = store.begin(sha256, len(data), 3)
    assert second is not None
    with second, pytest.raises(errors.ForbiddenFormatError):
        second.write(data[3:])


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_what_is_built_for_boards_passes(tmp_path: Path, chunk: int) -> None:
    b = GraphBuilder("small")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 8, 8)), 4, 3))])
    store = BlobStore(tmp_path)
    for model_format in FORMATS:
        data = build(graph, model_format, "fp32")
        upload = store.begin(hashlib.sha256(data).hexdigest(), len(data), 0)
        assert upload is not None
        with upload:
            for start in range(0, len(data), chunk):
                upload.write(data[start : start + chunk])
            assert upload.finish().complete, model_format


def test_models_pass() -> None:
    # The first bytes of an ONNX model, a TFLite file, a JSON graph, an ncnn and an MNN file.
    heads = (
        b"\x08\x08\x12\x07",
        b"\x1c\0\0\0TFL3",
        b'{"name":',
        b"7767517\n",
        b"\x18\0\0\0\0\0\0\0",
    )
    for head in heads:
        check_format(head)


@given(st.binary(max_size=HEAD_BYTES))
def test_only_what_is_listed_is_refused(head: bytes) -> None:
    listed = any(head.startswith(magic) for magic, _ in FORBIDDEN)
    try:
        check_format(head)
    except errors.ForbiddenFormatError:
        assert listed
    else:
        assert not listed


def test_the_agent_has_no_way_to_run_what_it_loads() -> None:
    """The agent uses no pickle, marshal or eval.

    The check of the first bytes is not enough, as it cannot recognise old pickles.
    """
    forbidden = {"pickle", "cPickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
    for path in Path(latfarm_agent.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert forbidden.isdisjoint(alias.name.split(".")[0] for alias in node.names), path
            if isinstance(node, ast.ImportFrom) and node.module:
                assert node.module.split(".")[0] not in forbidden, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec"}, path
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path


def test_uploads_share_a_bound_of_bytes_a_second() -> None:
    now, waits = [100.0], []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    pace = Pace(1000.0, lambda: now[0], wait)
    pace.spend(1000)
    assert waits == [], "a second's worth is free"
    pace.spend(500)
    assert waits == [pytest.approx(0.5)]
    now[0] += 100
    pace.spend(1000)
    assert len(waits) == 1, "what was not used is not hoarded for more than a second"
    pace.spend(2000)
    assert waits[1] == pytest.approx(2.0)
