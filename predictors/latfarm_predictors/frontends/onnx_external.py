"""Weights that an ONNX model keeps in other files (`external_data`), as PyTorch's exporter does.

Of such a tensor, its type is in the model and its bytes are in a file beside it. Structure needs
only the values of small tensors, so these are read at once, and the others when somebody asks for
them. A network whose weights are not there is read all the same, as long as no op needs them.

A model chooses the names of these files, so names may not lead out of the model's folder: no
absolute path, no "..", no link to elsewhere. Nothing but the bytes that a tensor needs is read.
"""

from __future__ import annotations

import itertools
import mmap
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import onnx

from latfarm_predictors.errors import GraphError, ModelFileError
from latfarm_predictors.frontends.onnx_constants import VALUES_LIMIT, Array
from latfarm_predictors.graph.shapes.dtypes import CAST_CODES

_REMEDY = "export the model again"
_MOST_FILES = 10_000
"""Largest number of data files of a model; older exporters write one for each weight."""


@dataclass(frozen=True, slots=True)
class ExternalTensor:
    """Where the bytes of a tensor are.

    Attributes:
        file: path of the data file, which may be missing; None for a model without a folder.
        location: name of the file as the model tells it.
        offset: place of the first byte in the file.
        size_bytes: number of bytes.
    """

    file: Path | None
    location: str
    offset: int
    size_bytes: int

    def array(self, dtype: str, shape: tuple[int, ...]) -> Array:
        """The values of the tensor, as a view of the file.

        Raises:
            GraphError: the file is missing or cannot be read.
        """
        if not self.size_bytes:
            return np.zeros(shape, np.dtype(dtype))
        absent = f"its values are in {self.location!r}, which is not beside the model"
        if self.file is None:
            raise GraphError(absent)
        try:
            with self.file.open("rb") as opened:
                mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise GraphError(absent) from error
        except (OSError, ValueError) as error:
            raise GraphError(f"its values in {self.location!r} cannot be read: {error}") from error
        found = np.frombuffer(mapped, np.dtype(dtype), prod(shape), self.offset)
        return found.reshape(shape)


def take_out_external(
    file: Path, model: Any, *, in_a_folder: bool = True
) -> dict[str, ExternalTensor]:
    """Make a model refer to no other file, and say where the bytes of its initializers are.

    Small tensors whose bytes are there get them. Of all others only the type is left.

    Args:
        file: path of the model.
        model: the ModelProto; it is changed.
        in_a_folder: whether data files may be beside it; they are not for a model in memory.

    Returns:
        The tensors without bytes, by name.

    Raises:
        ModelFileError: a name leads out of the model's folder, a data file is too short, or
            tensors overlap.
    """
    found: dict[str, ExternalTensor] = {}
    for proto in model.graph.initializer:
        if proto.data_location != onnx.TensorProto.EXTERNAL and not proto.external_data:
            continue
        dtype = CAST_CODES.get(proto.data_type)
        if dtype is None or any(size < 0 for size in proto.dims):
            continue  # the reader refuses it by its type or shape
        try:
            place = _place_of(file, proto, np.dtype(dtype).itemsize)
            found[proto.name] = place if in_a_folder else replace(place, file=None)
        except (ValueError, OSError) as error:
            raise ModelFileError(f"{file}: tensor {proto.name!r}: {error}; {_REMEDY}") from error
    _check_files(file, found.values())
    for proto in model.graph.initializer:
        if proto.name not in found:
            continue
        place = found[proto.name]
        del proto.external_data[:]
        proto.data_location = onnx.TensorProto.DEFAULT
        if prod(proto.dims) <= VALUES_LIMIT and place.file is not None and place.file.is_file():
            proto.raw_data = place.array("uint8", (place.size_bytes,)).tobytes()
            del found[proto.name]
    return found


def _place_of(file: Path, proto: Any, item_bytes: int) -> ExternalTensor:
    """Where the bytes of a tensor are, whose elements have `item_bytes` bytes.

    Raises:
        ValueError: what the model says about it contradicts itself, or leads out of its folder.
    """
    told = {entry.key: entry.value for entry in proto.external_data}
    location = told.get("location", "")
    size_bytes = item_bytes * prod(int(size) for size in proto.dims)
    offset = _count(told.get("offset", "0"), "offset")
    length = _count(told.get("length", str(size_bytes)), "length")
    if length != size_bytes:
        raise ValueError(f"{list(proto.dims)} needs {size_bytes} bytes, but its length is {length}")
    return ExternalTensor(_inside(file.parent, location), location, offset, size_bytes)


def _count(text: str, name: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise ValueError(f"its {name} is {text[:40]!r}, which is no number of bytes")
    return int(text)


def _inside(folder: Path, location: str) -> Path:
    """The path of a data file, which must be in the model's folder or in a folder in it."""
    parts = PurePosixPath(location)
    harmless = location.isprintable() and "\\" not in location and ":" not in location
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or not harmless:
        raise ValueError(f"its data file {location[:80]!r} is not in the model's folder")
    path = folder / parts
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"its data file {location[:80]!r} is a link out of the model's folder")
    return path


def _check_files(file: Path, places: Iterable[ExternalTensor]) -> None:
    """Check that data files are long enough, and that tensors do not overlap in them.

    Raises:
        ModelFileError: they are not, or they do.
    """
    by_file: dict[Path, set[tuple[int, int]]] = {}
    for place in places:
        if place.file is not None:
            taken = by_file.setdefault(place.file, set())
            taken.add((place.offset, place.offset + place.size_bytes))
    if len(by_file) > _MOST_FILES:
        raise ModelFileError(f"{file}: has {len(by_file)} data files; export the model as one file")
    for path, ranges in by_file.items():
        ends = sorted(each for each in ranges if each[1] > each[0])
        for (_, end), (start, _) in itertools.pairwise(ends):
            if start < end:
                raise ModelFileError(f"{file}: two tensors overlap in {path.name!r}; {_REMEDY}")
        size = _size_of(file, path)
        needed = max((end for _, end in ends), default=0)
        if size is not None and size < needed:
            raise ModelFileError(
                f"{file}: its data file {path.name!r} has {size} bytes, but the model needs"
                f" {needed}; copy it again, or {_REMEDY}"
            )


def _size_of(file: Path, path: Path) -> int | None:
    """The size of a data file; None if there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(f"{file}: its data file {path.name!r}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise ModelFileError(f"{file}: its data file {path.name!r} is no file; {_REMEDY}")
    return found.st_size
