"""A large model in files, which are there as long as somebody needs them."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from pathlib import Path

from latfarm_controller.builders.model_files import ModelFiles


class ModelOnDisk:
    """A model in files, which are removed when this object is.

    So the memory of the controller does not grow with the models that wait for boards, and a model
    is still there after the process that built it has died.

    Args:
        path: the model file.
        companions: the file of each companion, by the companion's name.
    """

    def __init__(self, path: Path, companions: Mapping[str, Path] | None = None) -> None:
        self.path = path
        self.companions = dict(companions or {})
        files = (path, *self.companions.values())
        self._finalizer = weakref.finalize(self, _remove, files)

    async def read(self) -> bytes | ModelFiles:
        """The model.

        Raises:
            OSError: a file cannot be read.
        """
        return await asyncio.to_thread(read_model, self.path, self.companions)


def write_model(path: Path, data: bytes | ModelFiles) -> dict[str, Path]:
    """Write the files of a model; returns the file of each companion by the companion's name.

    Args:
        path: the model file; those of companions are beside it.
        data: the model.

    Raises:
        OSError: a file cannot be written.
    """
    files = ModelFiles.of(data)
    path.write_bytes(files.model)
    companions = {
        name: path.with_name(f"{path.name}.{number}")
        for number, name in enumerate(files.companions)
    }
    for name, companion in companions.items():
        companion.write_bytes(files.companions[name])
    return companions


def read_model(path: Path, companions: Mapping[str, Path]) -> bytes | ModelFiles:
    """The model in some files.

    Args:
        path: the model file.
        companions: the file of each companion, by the companion's name.

    Raises:
        OSError: a file cannot be read.
    """
    model = path.read_bytes()
    if not companions:
        return model
    return ModelFiles(model, {name: file.read_bytes() for name, file in companions.items()})


def _remove(files: tuple[Path, ...]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
