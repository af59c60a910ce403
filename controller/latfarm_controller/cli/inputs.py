"""Models and platforms as people name them on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from latfarm_predictors.errors import ModelFileError
from latfarm_predictors.graph import Graph

from latfarm_controller.cli import output
from latfarm_controller.errors import UsageError


def model_files(paths: Sequence[Path]) -> tuple[list[Path], bool]:
    """The ONNX files named, folders replaced by the files in them; whether there was a folder.

    Raises:
        UsageError: a folder holds no ONNX file.
    """
    files: list[Path] = []
    in_folder = False
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        in_folder = True
        found = sorted(path.rglob("*.onnx"))
        if not found:
            raise UsageError(f"{path}: no *.onnx file in this folder")
        files.extend(found)
    return files, in_folder


def shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`name:1,3,224,224` to {name: (1, 3, 224, 224)}.

    Raises:
        UsageError: a text has another form.
    """
    bound: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shape = tuple(int(size) for size in sizes.split(","))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise UsageError(f"--shape {text}: expected name:1,3,224,224 (positive sizes)")
        bound[name] = shape
    return bound


def read_model(path: Path, batch: int, shape: Sequence[str]) -> Graph:
    """Read an ONNX file.

    Raises:
        ModelFileError: it is no usable model.
        UsageError: a shape has another form.
    """
    from latfarm_predictors.frontends.onnx import read_onnx

    return read_onnx(path, batch=batch or None, shapes=shapes(shape) or None)


def read_or_report(path: Path, batch: int, shape: Sequence[str], *, several: bool) -> Graph | None:
    """Read an ONNX file; one bad file among several is reported and left out.

    Raises:
        ModelFileError: it is no usable model, and the only one.
    """
    try:
        return read_model(path, batch, shape)
    except ModelFileError as error:
        if not several:
            raise
        output.error(str(error))
        return None
