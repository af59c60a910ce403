"""Writes ncnn's two files: `.param`, a text that lists the layers, and `.bin`, their weights.

In ncnn, a layer reads blobs that are called its bottoms and makes blobs that are called its tops.
ncnn allows only one reader for each blob. Therefore a blob with several readers goes through a
Split layer, which has one top for each reader. Both files are stored, uncompressed, in one zip.
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
"""Name in the zip of the text file that lists the layers."""
BIN_NAME = "model.bin"
"""Name in the zip of the file with the weights."""

Floats = NDArray[np.float32]
Params = Mapping[int, int | float | tuple[int | float, ...]]
"""Parameters of a layer in `.param`, by ncnn's integer key."""
Dims = tuple[int, ...]
"""Shape of a blob, with at most four sizes; the width comes last."""

_MAGIC = 7767517  # the first line of every `.param`, by which ncnn recognises the format
_FLOAT_TAG = bytes(4)  # means float32, before weights that ncnn also reads as float16 or int8
_ARRAY_KEY = -23300  # the key k of an array parameter is written as -23300 - k
_NAME_LENGTH = 200  # most characters of a layer's name that we write; ncnn's parser takes 255


def input_name(index: int) -> str:
    """Return the name of the blob that is input number `index` of a network."""
    return f"in{index}"


def output_name(index: int) -> str:
    """Return the name of the blob that is output number `index` of a network."""
    return f"out{index}"


@dataclass(frozen=True, slots=True)
class Data:
    """One float32 array of a layer in `.bin`, whose values are computed when it is written.

    `make` computes the values and `count` is their number. `tagged` says whether ncnn expects a
    tag of four bytes before them, which tells the type of the values.
    """

    make: Callable[[], NDArray[Any]]
    count: int
    tagged: bool = False

    @property
    def size_bytes(self) -> int:
        """Return the size of the array in `.bin` in bytes, with its tag."""
        return 4 * self.count + (len(_FLOAT_TAG) if self.tagged else 0)

    def write(self, file: IO[bytes]) -> None:
        """Append the tag and the values to an open file.

        Raises:
            ValueError: `make` gives another number of values than `count`.
        """
        made = np.ascontiguousarray(self.make(), np.float32)
        if made.size != self.count:
            raise ValueError(f"{made.size} weights where {self.count} were announced")
        if self.tagged:
            file.write(_FLOAT_TAG)
        file.write(made.reshape(-1).data.cast("B"))


@dataclass(slots=True)
class NcnnLayer:
    """One layer of a network; its bottoms and tops are the numbers of blobs."""

    kind: str
    name: str
    bottoms: list[int]
    tops: list[int]
    params: Params
    data: tuple[Data, ...] = ()


@dataclass
class Net:
    """A network that is being built; its blobs are numbers and get names when it is written."""

    layers: list[NcnnLayer] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    blobs: int = 0

    def blob(self) -> int:
        """Return the number of a new blob."""
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
        """Append a layer that makes `tops` new blobs, and return their numbers."""
        made = [self.blob() for _ in range(tops)]
        self.layers.append(NcnnLayer(kind, name, list(bottoms), made, params or {}, tuple(data)))
        return made

    def input(self, dims: Dims) -> int:
        """Append an Input layer of this shape, and return the number of its blob."""
        (made,) = self.layer("Input", input_name(len(self.inputs)), (), shape_params(dims))
        self.inputs.append(made)
        return made


def shape_params(dims: Dims) -> Params:
    """Return a shape as parameters of an Input, MemoryData or Reshape layer.

    The keys are 0 for the width, 1 for the height, 11 for the depth and 2 for the channels.
    """
    keys = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (2, 11, 1, 0)}[len(dims)]
    return dict(sorted(zip(keys, dims, strict=True)))


def serialise(net: Net) -> bytes:
    """Return the zip of `.param` and `.bin`; the same network always gives the same bytes."""
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
    """Return the layers, with Split layers added, and the names of inputs and outputs by blob."""
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
            # An output needs a blob of its own, because an input or a shared blob has another name.
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
    """Return a number as text for `.param`; ncnn wants floats with a point, in 15 characters."""
    return f"{float(np.float32(value)):.8e}" if isinstance(value, float) else str(int(value))
