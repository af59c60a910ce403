"""Models in two files, as PyTorch's exporter writes them: read, built, and refused by name."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.frontends.onnx import read_onnx, read_onnx_weights
from latfarm_predictors.graph.hash import hash_of

SHAPE = (4096, 64)
"""Shape of the large weight."""


def one_file() -> Any:
    """A model with a large weight, and with a small constant that decides the output's shape."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(SHAPE).astype(np.float32)
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
            onnx.helper.make_node("Reshape", ["h", "shape"], ["y"], name="view"),
        ],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, (2, SHAPE[0]))],
        [onnx.helper.make_tensor_value_info("y", 1, None)],
        [
            onnx.numpy_helper.from_array(weight, "w"),
            onnx.numpy_helper.from_array(np.array([2, 8, 8], np.int64), "shape"),
        ],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)])


def two_files(folder: Path) -> Path:
    """The same model with all its data, those of small constants too, in a second file."""
    path = folder / "model.onnx"
    onnx.save_model(
        one_file(),
        str(path),
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
    )
    return path


def changed(path: Path, change: Callable[[dict[str, str]], None], tensor: str = "w") -> Path:
    """Change where the model says that a tensor's data are."""
    model = onnx.load_model(str(path), load_external_data=False)
    (proto,) = [proto for proto in model.graph.initializer if proto.name == tensor]
    told = {entry.key: entry.value for entry in proto.external_data}
    change(told)
    del proto.external_data[:]
    for key, value in told.items():
        entry = proto.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString())
    return path


def test_two_files_are_the_same_network_as_one(tmp_path: Path) -> None:
    whole = tmp_path / "whole.onnx"
    whole.write_bytes(one_file().SerializeToString())
    graph, weights = read_onnx_weights(two_files(tmp_path))
    expected, values = read_onnx_weights(whole)
    assert hash_of(graph) == hash_of(expected)
    assert graph.type_of(graph.outputs[0]).shape == (2, 8, 8)
    assert weights.keys() == values.keys()
    for name in weights:
        np.testing.assert_array_equal(weights[name], values[name])
    assert hash_of(read_onnx(two_files(tmp_path), optimise=True)) == hash_of(
        read_onnx(whole, optimise=True)
    )


def test_large_data_may_be_absent(tmp_path: Path) -> None:
    path = two_files(tmp_path)
    model = onnx.load_model(str(path))
    del model.graph.node[1:]
    model.graph.output[0].name = "h"
    del model.graph.initializer[1:]
    onnx.save_model(
        model, str(path), save_as_external_data=True, location="absent.data", size_threshold=0
    )
    (tmp_path / "absent.data").unlink()
    graph, weights = read_onnx_weights(path)
    assert [node.op for node in graph.nodes] == ["MatMul"]
    with pytest.raises(
        ModelFileError, match=r"are in 'absent.data', which is not beside the model"
    ):
        weights[next(iter(weights))]


def test_fourteen_gigabytes_that_are_absent_take_no_memory(tmp_path: Path) -> None:
    path = changed(two_files(tmp_path), lambda told: told.update(length=str(14 * 2**30)))
    model = onnx.load_model(str(path), load_external_data=False)
    model.graph.initializer[0].dims[:] = (SHAPE[0], 14 * 2**30 // 4 // SHAPE[0])
    del model.graph.initializer[1:]
    del model.graph.node[1:]
    model.graph.output[0].name = "h"
    path.write_bytes(model.SerializeToString())
    (tmp_path / "model.onnx.data").unlink()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = read_onnx(path)
    assert graph.type_of(graph.outputs[0]).shape == (2, 14 * 2**30 // 4 // SHAPE[0])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def refused(path: Path) -> str:
    with pytest.raises(ModelFileError) as told:
        read_onnx(path)
    assert "\n" not in str(told.value)
    return str(told.value)


@pytest.mark.parametrize(
    "location",
    ["/etc/passwd", "../model.onnx.data", "a/../../b", "", "C:\\data", "a\x1b[2J", "x\0y"],
)
def test_paths_stay_inside_the_models_folder(location: str, tmp_path: Path) -> None:
    path = changed(two_files(tmp_path), lambda told: told.update(location=location))
    message = refused(path)
    assert "'w'" in message
    assert message.isprintable()
    assert "is not in the model's folder" in message


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = two_files(folder)
    (folder / "model.onnx.data").rename(tmp_path / "elsewhere")
    (folder / "model.onnx.data").symlink_to(tmp_path / "elsewhere")
    assert "link out of the model's folder" in refused(path)


def test_a_short_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    path = two_files(tmp_path)
    data = tmp_path / "model.onnx.data"
    size = data.stat().st_size
    os.truncate(data, size - 100)
    message = refused(path)
    assert "'model.onnx.data'" in message
    assert str(size - 100) in message
    assert str(size) in message or str(SHAPE[0] * SHAPE[1] * 4) in message


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("offset", "-4", "no number of bytes"),
        ("offset", "x" * 1000, "no number of bytes"),
        ("offset", str(10**17), "needs 1000000"),
        ("length", "12", "its length is 12"),
    ],
)
def test_places_that_contradict_themselves(key: str, value: str, says: str, tmp_path: Path) -> None:
    path = changed(two_files(tmp_path), lambda told: told.update({key: value}))
    assert says in refused(path)


def test_tensors_may_not_overlap(tmp_path: Path) -> None:
    path = changed(two_files(tmp_path), lambda told: told.update(offset="8"), tensor="shape")
    assert "overlap" in refused(path)


def test_a_pipe_is_no_data_file(tmp_path: Path) -> None:
    path = two_files(tmp_path)
    (tmp_path / "model.onnx.data").unlink()
    os.mkfifo(tmp_path / "model.onnx.data")
    assert "is no file" in refused(path)


def test_bytes_streams_and_protos_are_read(tmp_path: Path) -> None:
    path = tmp_path / "whole.onnx"
    path.write_bytes(one_file().SerializeToString())
    expected = hash_of(read_onnx(path))
    assert hash_of(read_onnx(path.read_bytes())) == expected
    assert hash_of(read_onnx(one_file())) == expected
    with path.open("rb") as stream:
        assert hash_of(read_onnx(stream)) == expected
