"""Open an ONNX file: read its structure, leave large weights in the file, inline functions."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import onnx
import onnx.checker
import onnx.inliner
from google.protobuf.message import DecodeError, Message

from latfarm_predictors.errors import GraphError, ModelFileError
from latfarm_predictors.frontends.onnx_constants import Array
from latfarm_predictors.frontends.onnx_external import ExternalTensor, take_out_external
from latfarm_predictors.frontends.onnx_wire import TensorPlace, WireError, skeleton_of

SIZE_LIMIT_BYTES = 2 * 1024**3
"""The size of the largest file that is read: a protobuf message cannot be larger than 2 GiB."""

NODE_LIMIT = 50_000
"""The largest number of nodes that is read, functions inlined; no network on a board has more."""

# How deeply functions may call each other.
_DEPTH_LIMIT = 50
# Files of this size and more are mapped into memory instead of read.
_MAPPED_FROM_BYTES = 8 * 1024**2


class ModelFile:
    """A model without the data of its large tensors, which are read from the file on request.

    Args:
        path: of the file.
        model: a ModelProto with a graph and without local functions, whose names are all texts.
        data: the bytes of the file.
        places: where in the file the large tensors are, by name.
        external: the tensors whose data are in other files, by name.
    """

    def __init__(
        self,
        path: Path,
        model: Any,
        data: memoryview,
        places: Mapping[str, TensorPlace],
        external: Mapping[str, ExternalTensor] = MappingProxyType({}),
    ):
        self.path = path
        self.model = model
        self._data = data
        self._places = places
        self._external = external

    def is_big(self, name: str) -> bool:
        """Whether the data of this initializer stayed in the file, or in another one."""
        return name in self._places or name in self._external

    def tensor(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array:
        """The values of a large initializer; if they are stored as raw data, a view of the file.

        Raises:
            GraphError: the data in the file do not fit the type of the tensor, or are in another
                file that is missing.
        """
        if name in self._external:
            return self._external[name].array(dtype, shape)
        place = self._places[name]
        if place.raw is not None:
            first, last = place.raw
            kind = np.dtype(dtype)
            if (last - first) == kind.itemsize * int(np.prod(shape, dtype=object)):
                return np.frombuffer(self._data[first:last], kind).reshape(shape)
            raise GraphError(f"tensor {name!r} is damaged: its data do not fill {list(shape)}")
        proto = onnx.TensorProto()
        try:
            proto.ParseFromString(bytes(self._data[place.start : place.end]))
            found: Array = onnx.numpy_helper.to_array(proto)
        except (DecodeError, ValueError, TypeError, KeyError) as error:
            raise GraphError(f"tensor {name!r} is damaged: {error}") from error
        return found


Source: TypeAlias = str | Path | bytes | BinaryIO | Any
"""Where a model may come from: a path, its bytes, an open file, or an `onnx.ModelProto`."""

_LFS_POINTER = b"version https://git-lfs"
"""How the small text begins that Git LFS leaves in the place of a file that was not fetched."""
IN_MEMORY = Path("model")
"""What stands for the path of a model that does not come from a path, in errors and names."""


class Contents(NamedTuple):
    """The bytes of a model's file.

    Attributes:
        path: the file, or what stands for it in errors.
        data: its bytes.
        in_a_folder: whether other files may be looked for beside it.
    """

    path: Path
    data: memoryview
    in_a_folder: bool


def contents_of(source: Source) -> Contents:
    """The bytes of a model of any format; contents that were read already are returned.

    Raises:
        ModelFileError: the file is missing, cannot be read, is empty, too large, or no model but
            what Git LFS leaves in the place of one.
    """
    if isinstance(source, Contents):
        return source
    if isinstance(source, (str, Path)):
        found = Contents(Path(source), _bytes_of(Path(source)), True)
    else:
        if isinstance(source, Message):
            source = source.SerializeToString()
        data = source if isinstance(source, bytes) else source.read(SIZE_LIMIT_BYTES + 1)
        if len(data) > SIZE_LIMIT_BYTES:
            raise ModelFileError(f"{IN_MEMORY}: exceeds ONNX's 2 GiB; export a smaller model")
        found = Contents(IN_MEMORY, memoryview(data), False)
    if not found.data:
        raise ModelFileError(f"{found.path}: is empty; export the model again")
    if bytes(found.data[: len(_LFS_POINTER)]) == _LFS_POINTER:
        raise ModelFileError(
            f"{found.path}: is a Git LFS pointer, which stands for the model; get the model with: "
            "git lfs pull"
        )
    return found


_OTHER_FILES = (
    (b"PK\x03\x04", "a zip file, as PyTorch's .pt and .pt2", "export it with torch.onnx.export"),
    (b"\x80\x02", "a pickle of Python, as older .pt files", "export it with torch.onnx.export"),
    (b"\x89HDF", "an HDF5 file, as Keras writes it", "convert it, for example with tf2onnx"),
    (b"\x1f\x8b", "compressed by gzip", "unpack it first"),
    (b"<!DOCTYPE", "a web page", "download the model itself"),
    (b"<html", "a web page", "download the model itself"),
)
"""Files that people mistake for models: how they begin, what they are, and the remedy. The first
bytes are those of the formats' specifications."""


def _no_model(
    path: Path, data: memoryview, lacks: str = ", or is cut off; export or copy it again"
) -> str:
    """The message for a file that is no ONNX model, with what it is instead where that is known.

    Args:
        path: the file.
        data: its bytes.
        lacks: the end of the message where nothing else is known.
    """
    begin = bytes(data[:16])
    for first, what, remedy in _OTHER_FILES:
        if begin.lower().startswith(first.lower()):
            return f"{path}: is not an ONNX model, but {what}; {remedy}"
    wanted = "a TFLite model" if path.suffix.lower() == ".tflite" else "an ONNX model"
    return f"{path}: is not {wanted}{lacks}"


def open_model(source: Source) -> ModelFile:
    """Open an ONNX model.

    Raises:
        ModelFileError: the file is missing, is not ONNX, or is damaged.
    """
    file, data, in_a_folder = contents_of(source)
    model = onnx.ModelProto()
    try:
        skeleton = skeleton_of(data)
        model.ParseFromString(skeleton.data)
    except (DecodeError, WireError) as error:
        raise ModelFileError(_no_model(file, data)) from error
    if not model.graph.node:
        raise ModelFileError(_no_model(file, data, ": it has no graph; export the model again"))
    # protobuf returns text that is not UTF-8 as bytes.
    sound = all(isinstance(text, str) for text in _texts(model))
    if not sound or not all(node.op_type.isidentifier() for node in model.graph.node):
        raise ModelFileError(
            f"{file}: is damaged: a name in it is not text; export or copy it again"
        )
    nodes = _nodes_inlined(file, model)
    if nodes > NODE_LIMIT:
        raise ModelFileError(
            f"{file}: has {nodes} nodes, more than {NODE_LIMIT}; export a smaller model"
        )
    if model.functions:
        try:
            model = onnx.inliner.inline_local_functions(model)
        except (
            RuntimeError,
            ValueError,
            TypeError,
            DecodeError,
            onnx.checker.ValidationError,
        ) as error:
            raise ModelFileError(
                f"{file}: its functions cannot be inlined: {line_of(error)};"
                " export without functions"
            ) from error
    external = take_out_external(file, model, in_a_folder=in_a_folder)
    return ModelFile(file, model, data, skeleton.places, external)


def line_of(error: Exception) -> str:
    """The first line of an error's text, or its type if it has no text."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__


def _bytes_of(file: Path) -> memoryview:
    """The bytes of a file; a large file is mapped, so that only pages that are used are read."""
    try:
        if file.is_dir():
            raise ModelFileError(f"{file}: is a folder; name an .onnx file in it")
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) and not stat.S_ISFIFO(found.st_mode):
            raise ModelFileError(f"{file}: is a device; name an .onnx file")
        size = found.st_size
        if size > SIZE_LIMIT_BYTES:
            raise ModelFileError(
                f"{file}: {size / 1024**3:.1f} GiB exceeds ONNX's 2 GiB; export a smaller model"
            )
        if size < _MAPPED_FROM_BYTES:
            return memoryview(file.read_bytes())
        with file.open("rb") as opened:
            return memoryview(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    except FileNotFoundError as error:
        raise ModelFileError(f"{file}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ModelFileError(
            f"{file}: cannot be read: {reason}; check the path and its permissions"
        ) from error


def _texts(model: Any) -> Iterator[object]:
    """Every text of a model that the Reader uses."""
    graph = model.graph
    yield graph.name
    yield from (entry.domain for entry in model.opset_import)
    yield from (proto.name for proto in (*graph.initializer, *graph.output, *graph.input))
    for value in graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _nodes_inlined(file: Path, model: Any) -> int:
    """Number of nodes of the model when its functions are inlined.

    Raises:
        ModelFileError: functions call each other in a circle or too deeply.
    """
    if not model.functions:
        return len(model.graph.node)
    bodies = {(f.domain, f.name): f.node for f in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[Any], depth: int) -> int:
        if depth > _DEPTH_LIMIT:
            raise ModelFileError(
                f"{file}: its functions call each other in a circle, or more than {_DEPTH_LIMIT}"
                " deep; export without functions"
            )
        total = 0
        for node in nodes:
            total += 1
            key = (node.domain, node.op_type)
            if key in bodies:
                if key not in counts:
                    counts[key] = count(bodies[key], depth + 1)
                total += counts[key]
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    if graph.node:
                        total += count(graph.node, depth + 1)
        return total

    return count(model.graph.node, 0)
