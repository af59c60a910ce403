"""ONNX models whose weights lie beside them: the same network in several files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from latfarm_agent.files.uploads import HEAD_BYTES, check_format
from latfarm_agent.runtimes.onnx.outside import references_in
from latfarm_controller.builders import build, build_files
from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.builders.noise import Weights, inputs
from latfarm_controller.builders.onnx.external import DATA_FILE_BYTES, serialise_files
from latfarm_controller.builders.onnx.file import OnnxDraft
from latfarm_controller.errors import BuildError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

LIMIT = 10_000
"""Bytes of weights above which the tests write several files."""


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("large")
    x = b.relu(b.conv(b.input((1, 8, 16, 16)), 32, 3))
    x = b.relu(b.conv(x, 32, 3))
    return b.build([b.reshape(b.relu(b.conv(x, 16, 1)), (1, -1))])


def outputs(folder: Path, files: ModelFiles, graph: Graph) -> list[Any]:
    (folder / "model").write_bytes(files.model)
    for name, data in files.companions.items():
        (folder / name).write_bytes(data)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(folder / "model"), options, ["CPUExecutionProvider"])
    found: list[Any] = session.run(None, inputs(graph))
    return found


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8"])
def test_the_values_are_those_of_the_model_in_one_file(
    graph: Graph, dtype: str, tmp_path: Path
) -> None:
    several = build_files(graph, "onnx", dtype, most_bytes=LIMIT)
    assert several.companions
    assert len(several.model) < LIMIT + 20_000
    whole = ModelFiles(build(graph, "onnx", dtype))
    (tmp_path / "one").mkdir()
    for mine, theirs in zip(
        outputs(tmp_path, several, graph), outputs(tmp_path / "one", whole, graph), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_a_model_below_the_limit_stays_one_file(graph: Graph) -> None:
    assert build_files(graph, "onnx", "fp32") == ModelFiles(build(graph, "onnx", "fp32"))
    assert build_files(graph, "tflite", "fp32").companions == {}


def test_the_same_graph_gives_the_same_files(graph: Graph) -> None:
    make = partial(build_files, graph, "onnx", "fp32", most_bytes=LIMIT)
    assert make() == make()


def test_it_refers_to_its_own_files_and_to_nothing_else(graph: Graph) -> None:
    files = build_files(graph, "onnx", "fp32", most_bytes=LIMIT)
    found = references_in(files.model)
    assert {reference.location for reference in found} == set(files.companions)
    held = {proto.name for proto in onnx.load_from_string(files.model).graph.initializer}
    small = {name for name, weight in graph.weights.items() if weight.type.size_bytes < 1024}
    assert {reference.asked_by for reference in found} == held - small


def draft(graph: Graph, constants: Mapping[str, Any]) -> OnnxDraft:
    made = OnnxDraft("d", Weights(graph))
    made.constants.update(constants)
    return made


def test_weights_are_divided_among_files_but_no_weight_is(graph: Graph) -> None:
    arrays = {f"w{n}": np.full(1000 * n, n, np.float32) for n in range(1, 6)}
    files = serialise_files(draft(graph, arrays), most_bytes=0, data_file_bytes=30_000)
    assert len(files.companions) > 1
    for proto in onnx.load_from_string(files.model).graph.initializer:
        told = {entry.key: entry.value for entry in proto.external_data}
        offset, length = int(told["offset"]), int(told["length"])
        data = files.companions[told["location"]][offset : offset + length]
        np.testing.assert_array_equal(np.frombuffer(data, np.float32), arrays[proto.name])
        assert offset % 4096 == 0
    # A weight that is larger than a file may be has a file of its own.
    alone = serialise_files(draft(graph, arrays), most_bytes=0, data_file_bytes=1)
    assert len(alone.companions) == len(arrays)
    assert DATA_FILE_BYTES < 2**31


def test_weights_are_taken_for_no_other_file(graph: Graph) -> None:
    pickle = np.frombuffer(b"\x80\x04" * 1000, np.uint8)
    files = serialise_files(draft(graph, {"w": pickle}), most_bytes=0)
    (data,) = files.companions.values()
    check_format(data[:HEAD_BYTES])


def test_small_constants_beyond_the_limit_are_refused(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latfarm_controller.builders.onnx.file.MOST_BYTES", 5000)
    arrays = {f"w{n}": np.zeros(100, np.float32) for n in range(20)}
    with pytest.raises(BuildError, match="2 GB"):
        serialise_files(draft(graph, arrays), most_bytes=5000)
