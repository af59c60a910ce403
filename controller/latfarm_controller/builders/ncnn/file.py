"""Writes ncnn's two files: `.param`, a text of layers and blobs, and `.bin`, their weights.

ncnn allows only one reader for each blob, so a blob with several readers goes through a Split
layer, which has a top for each of them. Both files are stored, uncompressed, in one zip.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

PARAM_NAME = "model.param"
BIN_NAME = "model.bin"

Floats = NDArray[np.float32]
Params = Mapping[int, int | float | tuple[int | float, ...]]
Dims = tuple[int, ...]

_MAGIC = 7767517
_FLOAT_TAG = bytes(4)  # in front of weights that might as well be float16 or int8
_ARRAY_KEY = -23300  # an array with key k is written as -23300 - k
_NAME_LENGTH = 200  # ncnn's parser takes 255 characters


def input_name(index: int) -> str:
    """The blob that is a network's input number `index`."""
    return f"in{index}"


def output_name(index: int) -> str:
    """The blob that is a network's output number `index`."""
    return f"out{index}"


@dataclass(frozen=True, slots=True)
class Data:
    """One array of a layer in `.bin`, made when it is written; `tagged` where ncnn reads a tag."""

    make: Callable[[], NDArray[Any]]
    count: int
    tagged: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return 4 * self.count + (len(_FLOAT_TAG) if self.tagged else 0)

    def write(self, file: IO[bytes]) -> None:
        """Append to an open file."""
        made = np.ascontiguousarray(self.make(), np.float32)
        if made.size != self.count:
            raise ValueError(f"{made.size} weights where {self.count} were announced")
        if self.tagged:
            file.write(_FLOAT_TAG)
        file.write(made.reshape(-1).data.cast("B"))


@dataclass(slots=True)
class NcnnLayer:
    """One layer; bottoms and tops are blobs by number."""

    kind: str
    name: str
    bottoms: list[int]
    tops: list[int]
    params: Params
    data: tuple[Data, ...] = ()


@dataclass
class Net:
    """A network in the making; blobs are numbers until it is written."""

    layers: list[NcnnLayer] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    blobs: int = 0

    def blob(self) -> int:
        """A new blob."""
        self.blobs += 1
        return self.blobs - 1

    def layer(
        self,
        kind: str,
        name: str,
        bottoms: Sequence[int],
        params: Params | None = None,
        data: Sequence[Data] = (),
        tops: int = 1,
    ) -> list[int]:
        """Append a layer; its tops."""
        made = [self.blob() for _ in range(tops)]
        self.layers.append(NcnnLayer(kind, name, list(bottoms), made, params or {}, tuple(data)))
        return made

    def input(self, dims: Dims) -> int:
        """Append an input of this shape."""
        (made,) = self.layer("Input", input_name(len(self.inputs)), (), shape_params(dims))
        self.inputs.append(made)
        return made


def shape_params(dims: Dims) -> Params:
    """A shape as Input, MemoryData and Reshape want it: w, h, d, c have keys 0, 1, 11, 2."""
    keys = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}[len(dims)]
    return dict(sorted(zip(keys, dims, strict=True)))


def serialise(net: Net) -> bytes:
    """The zip of `.param` and `.bin`; it depends on nothing but the network."""
    layers, names = _finish(net)
    lines = [str(_MAGIC), f"{len(layers)} {sum(len(layer.tops) for layer in layers)}"]
    lines += [_line(layer, names) for layer in layers]
    param = ("\n".join(lines) + "\n").encode()
    data = [part for layer in layers for part in layer.data]
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as made:
        made.writestr(_entry(PARAM_NAME, len(param)), param)
        size_bytes = sum(part.size_bytes for part in data)
        with made.open(_entry(BIN_NAME, size_bytes), "w") as weights:
            for part in data:
                part.write(weights)
    return file.getvalue()


def _entry(name: str, size_bytes: int) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    entry.file_size = size_bytes
    return entry


def _finish(net: Net) -> tuple[list[NcnnLayer], dict[int, str]]:
    """Layers with Splits in place, and the blobs' names."""
    readers: dict[int, int] = {}
    for blob in [*(b for layer in net.layers for b in layer.bottoms), *net.outputs]:
        readers[blob] = readers.get(blob, 0) + 1
    made = set(net.inputs)
    names = {blob: input_name(index) for index, blob in enumerate(net.inputs)}
    copies: dict[int, list[int]] = {}
    layers: list[NcnnLayer] = []
    blobs = net.blobs
    for layer in net.layers:
        bottoms = [copies[blob].pop(0) if blob in copies else blob for blob in layer.bottoms]
        layers.append(
            NcnnLayer(layer.kind, layer.name, bottoms, list(layer.tops), layer.params, layer.data)
        )
        for top in layer.tops:
            count = readers.get(top, 0)
            # An output has a name of its own: that of an input, or of a shared blob, is taken.
            if count > 1 or (top in made and top in net.outputs):
                copies[top] = list(range(blobs, blobs + count))
                blobs += count
                layers.append(NcnnLayer("Split", f"split_{top}", [top], list(copies[top]), {}))
    for index, blob in enumerate(net.outputs):
        names[copies[blob].pop(0) if blob in copies else blob] = output_name(index)
    return layers, names


def _line(layer: NcnnLayer, names: Mapping[int, str]) -> str:
    blobs = [names.get(blob, f"b{blob}") for blob in (*layer.bottoms, *layer.tops)]
    params = [_param(key, value) for key, value in layer.params.items()]
    name = "".join("_" if c.isspace() else c for c in layer.name)[:_NAME_LENGTH] or "unnamed"
    head = [layer.kind, name, str(len(layer.bottoms)), str(len(layer.tops))]
    return " ".join([*head, *blobs, *params])


def _param(key: int, value: int | float | tuple[int | float, ...]) -> str:
    if isinstance(value, tuple):
        told = ",".join([str(len(value)), *map(_number, value)])
        return f"{_ARRAY_KEY - key}={told}"
    return f"{key}={_number(value)}"


def _number(value: int | float) -> str:
    """A number as ncnn reads it: floats have a point, and at most 15 characters."""
    return f"{float(np.float32(value)):.8e}" if isinstance(value, float) else str(int(value))
