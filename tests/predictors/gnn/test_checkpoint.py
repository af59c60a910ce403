"""Checkpoints: the same model comes back, and anything else is a typed error."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointShapeError,
)
from latfarm_predictors.gnn.checkpoint import load_checkpoint, save_checkpoint
from latfarm_predictors.gnn.config import PAPER
from latfarm_predictors.gnn.encoded import EncodedGraph

from tests.predictors.gnn.conftest import made_model

SMALL = replace(PAPER, hidden=6, head_hidden=5)


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    """Write an archive anew with other entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def test_the_same_bits_come_back(tmp_path: Path, graphs: list[EncodedGraph]) -> None:
    model = made_model(SMALL, ("pixel 4/cpu", "jetson"))
    path = tmp_path / "models" / "nnlp.zip"
    digest = save_checkpoint(model, path)
    found = load_checkpoint(path)
    for platform in model.heads:
        given, back = (each.intervals(graphs, platform) for each in (model, found))
        assert np.array_equal(given.latency_ms, back.latency_ms)
        assert np.array_equal(given.low_ms, back.low_ms)
    assert found.config == model.config
    assert found.provenance == {"data": "drawn"}
    first = path.read_bytes()
    assert save_checkpoint(found, path) == digest
    assert path.read_bytes() == first


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(replace(SMALL, layers=1, hidden=2, head_hidden=2)), path)
    content = path.read_bytes()
    model = load_checkpoint(path)
    missed = []
    for place in range(0, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        try:
            found = load_checkpoint(path)
        except CheckpointError:
            continue
        same = all(np.array_equal(found.parameters[n], v) for n, v in model.parameters.items())
        if not (same and found.heads.keys() == model.heads.keys()):
            missed.append(place)
    assert not missed  # bytes that no reader looks at, such as time stamps, may change


@pytest.mark.parametrize("size", [0, 10, 500])
def test_a_cut_file_is_no_checkpoint(tmp_path: Path, size: int) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(SMALL), path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match=r"nnlp\.zip: it cannot be read"):
        load_checkpoint(path)


def test_a_changed_array_has_a_wrong_digest(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(SMALL), path)

    def change(entries: dict[str, bytes]) -> None:
        entries["arrays/0.npy"] = entries["arrays/0.npy"][:-1] + b"\x00"

    rewritten(path, change)
    with pytest.raises(CheckpointDigestError, match="an array was changed"):
        load_checkpoint(path)


def test_changed_options_have_a_wrong_digest(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(SMALL), path)

    def change(entries: dict[str, bytes]) -> None:
        manifest = json.loads(entries["manifest.json"])
        manifest["config"]["layers"] = 3
        entries["manifest.json"] = json.dumps(manifest).encode()

    rewritten(path, change)
    with pytest.raises(CheckpointDigestError, match="the manifest was changed"):
        load_checkpoint(path)


def test_parameters_of_another_network_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    model = made_model(SMALL)
    save_checkpoint(replace(model, config=replace(SMALL, hidden=7)), path)
    with pytest.raises(CheckpointShapeError, match=r"encoder\.0\.bias has shape \(6,\)"):
        load_checkpoint(path)
    fewer = {n: v for n, v in model.parameters.items() if n != "head.one.1.bias"}
    save_checkpoint(replace(model, parameters=fewer), path)
    with pytest.raises(CheckpointShapeError, match=r"head\.one\.1\.bias has shape None"):
        load_checkpoint(path)
    more = {**model.parameters, "head.two.0.bias": np.zeros(5, dtype=np.float32)}
    save_checkpoint(replace(model, parameters=more), path)
    with pytest.raises(CheckpointShapeError, match=r"head\.two\.0\.bias"):
        load_checkpoint(path)


def test_values_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    model = made_model(SMALL)
    broken = {**model.parameters, "head.one.2.bias": np.array([np.nan], dtype=np.float32)}
    save_checkpoint(replace(model, parameters=broken), path)
    with pytest.raises(CheckpointError, match="not finite"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "format 2, but 1 is needed"),
        ({"kind": "bundle"}, "no checkpoint of NNLP"),
    ],
)
def test_other_formats_are_named(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(SMALL), path)

    def write(entries: dict[str, bytes]) -> None:
        manifest = {**json.loads(entries["manifest.json"]), **change}
        entries["manifest.json"] = json.dumps(manifest).encode()

    rewritten(path, write)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(path)


def test_a_pickled_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "nnlp.zip"
    save_checkpoint(made_model(SMALL), path)
    stream = io.BytesIO()
    np.save(stream, np.array([{"a": 1}], dtype=object), allow_pickle=True)

    def change(entries: dict[str, bytes]) -> None:
        entries["arrays/0.npy"] = stream.getvalue()

    rewritten(path, change)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_checkpoint(tmp_path / "none.zip")
