"""Inputs on the command line: models, folders and shapes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from latfarm_controller.cli.shell import inputs
from latfarm_controller.errors import UsageError


def test_shapes() -> None:
    assert inputs.shapes(["x:1,3,224,224", "a:b:2"]) == {"x": (1, 3, 224, 224), "a:b": (2,)}


@pytest.mark.parametrize("text", ["", "x", "x:", ":1,2", "x:1,a", "x:0,3", "x:-1,3"])
def test_bad_shapes_name_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="written as name:1,3,224,224"):
        inputs.shapes([text])


def test_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.onnx", "sub/a.onnx", "other.txt"):
        (tmp_path / name).touch()
    files, in_folder = inputs.model_files([tmp_path])
    assert [f.name for f in files] == ["b.onnx", "a.onnx"]
    assert in_folder


def test_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \*\.onnx or \*\.tflite file"):
        inputs.model_files([tmp_path])


def test_a_folder_that_cannot_be_read_is_not_called_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.onnx").touch()
    (tmp_path / "locked").mkdir()
    locked = {tmp_path / "locked"}
    scan = os.scandir

    def scandir(folder: str | Path) -> object:
        if Path(folder) in locked:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert inputs.model_files([tmp_path])[0] == [tmp_path / "a.onnx"]
    assert f"{tmp_path / 'locked'}: this folder cannot be read" in capsys.readouterr().err
    with pytest.raises(UsageError, match="cannot be read: Permission denied"):
        inputs.model_files([tmp_path / "locked"])


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs.check_to_write(None, tmp_path / "a.html", tmp_path / "new" / "folder" / "b.html")
    with pytest.raises(UsageError, match="is a folder; name a file in it"):
        inputs.check_to_write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="file is a file; name a file in a folder"):
        inputs.check_to_write(tmp_path / "file" / "a.html")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UsageError, match=f"nothing can be written in {tmp_path}; name another"):
        inputs.check_to_write(tmp_path / "new" / "a.html")


def test_hidden_files_and_folders_with_a_models_suffix_are_no_models(tmp_path: Path) -> None:
    for name in ("a.onnx", "._a.onnx", ".venv/data/b.onnx", "deep/c.tflite"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (tmp_path / "folder.onnx").mkdir()
    found, several = inputs.model_files([tmp_path])
    assert found == [tmp_path / "a.onnx", tmp_path / "deep" / "c.tflite"]
    assert several
    hidden = tmp_path / ".venv"
    assert inputs.model_files([hidden])[0] == [hidden / "data" / "b.onnx"], "it was asked for"


def test_a_file_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    file = tmp_path / "a.onnx"
    file.touch()
    assert inputs.model_files([file, file]) == ([file], True)
    assert inputs.model_files([tmp_path, file]) == ([file], True)
