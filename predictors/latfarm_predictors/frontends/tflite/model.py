"""The parts of a TFLite file that a Graph is made of: tensors, operators, and where data are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latfarm_predictors.errors import GraphError
from latfarm_predictors.frontends.onnx_constants import Array, UnsupportedError
from latfarm_predictors.frontends.tflite import schema
from latfarm_predictors.frontends.tflite.flat_tables import FlatTables, FlatTablesError
from latfarm_predictors.graph.graph import TensorType

MOST_RANK = 8
"""Largest number of a tensor's dimensions, as in LiteRT's C interface (LiteRtLayout)."""
MOST_ELEMENTS = 1 << 40
"""Largest number of a tensor's elements; no board has memory for more."""
MOST_NODES = 50_000
"""Largest number of operators that is read, as of ONNX files."""


@dataclass(frozen=True)
class ReadTensor:
    """A tensor of the file.

    Attributes:
        name: its name, which need not be unique.
        dtype: its element type; empty for one that a Graph cannot have.
        shape: its sizes in the file's order of axes.
        scales: scales of its integers; empty for a tensor that is not quantised.
        zeros: its zero points, one for each scale or one for all.
        axis: the axis to whose indices several scales belong.
        data: the bytes of a constant; None for an activation.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis: int = 0
    data: memoryview | None = None

    @property
    def type(self) -> TensorType:
        """Its element type and shape.

        Raises:
            UnsupportedError: a Graph cannot have its element type.
        """
        if not self.dtype:
            raise UnsupportedError(f"tensor {self.name!r} has an element type that is not known")
        return TensorType(self.dtype, self.shape)

    @property
    def is_quantised(self) -> bool:
        """Whether its integers stand for real numbers."""
        return bool(self.scales) and self.dtype in ("int8", "uint8", "int16", "int32")

    def array(self) -> Array:
        """The values of a constant, as a view of the file.

        Raises:
            GraphError: its data do not fill its shape.
        """
        kind = self.type
        data = self.data if self.data is not None else memoryview(b"")
        if len(data) != kind.size_bytes:
            raise GraphError(
                f"tensor {self.name!r} has {len(data)} bytes of data, and its shape "
                f"{list(kind.shape)} of {kind.dtype} takes {kind.size_bytes}"
            )
        found: Array = np.frombuffer(data, np.dtype(kind.dtype).newbyteorder("<"))
        return found.reshape(kind.shape)


@dataclass(frozen=True)
class ReadOperator:
    """An operator of the file.

    Attributes:
        code: its name in the schema; that of a custom operator is the one that it has in the file.
        inputs: numbers of the tensors that it reads; -1 stands for one that is absent.
        outputs: numbers of the tensors that it makes.
        options: its options by name; those that the file leaves out have their defaults.
        known: whether the schema knows it.
    """

    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    known: bool = True

    def option(self, name: str, default: int = 0) -> int:
        """An option that is a whole number; `default` where the file has no options."""
        return int(self.options.get(name, default))


@dataclass(frozen=True)
class ReadModel:
    """The main subgraph of a file."""

    name: str
    tensors: Sequence[ReadTensor]
    operators: Sequence[ReadOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def parse(data: memoryview) -> ReadModel:
    """Read the tables of a file; the data of its constants are not looked at.

    Raises:
        GraphError: the bytes are no TFLite file, or its parts contradict each other.
        UnsupportedError: its weights are in other files.
    """
    if bytes(data[4:8]) != schema.IDENTIFIER:
        raise FlatTablesError("its identifier is not TFL3")
    flat = FlatTables(data)
    root = flat.root()
    version = flat.integer(root, 0, "I")
    if version != schema.VERSION:
        raise FlatTablesError(f"its version is {version}, not {schema.VERSION}")
    if flat.tables(root, 8) or flat.tables(root, 9):
        raise UnsupportedError("its weights are in other files")
    subgraphs = flat.tables(root, 2)
    if not subgraphs:
        raise FlatTablesError("it has no subgraph")
    main = subgraphs[0]
    buffers = flat.tables(root, 4)
    tensors = [_tensor(flat, at, buffers, data) for at in flat.tables(main, 0)]
    codes = [_code(flat, at) for at in flat.tables(root, 1)]
    places = flat.tables(main, 3)
    if len(places) > MOST_NODES:
        raise GraphError(f"it has {len(places)} operators, more than {MOST_NODES}")
    operators = [_operator(flat, at, codes, len(tensors)) for at in places]
    ends = (flat.integers(main, 1), flat.integers(main, 2))
    for index in (index for end in ends for index in end):
        if not 0 <= index < len(tensors):
            raise FlatTablesError(f"it names tensor {index} of {len(tensors)}")
    return ReadModel(flat.text(root, 3), tensors, operators, *ends)


def _tensor(flat: FlatTables, at: int, buffers: Sequence[int], data: memoryview) -> ReadTensor:
    name = flat.text(at, 3)
    shape = flat.integers(at, 0)
    elements = 1
    for size in shape:
        elements *= max(size, 0)
    if len(shape) > MOST_RANK or min(shape, default=0) < 0 or elements > MOST_ELEMENTS:
        raise FlatTablesError(f"tensor {name[:80]!r} has an impossible shape")
    buffer = flat.integer(at, 2, "I")
    if buffer >= max(len(buffers), 1):
        raise FlatTablesError(f"a tensor names buffer {buffer} of {len(buffers)}")
    scales: tuple[float, ...] = ()
    zeros: tuple[int, ...] = ()
    axis = 0
    quantised = flat.table(at, 4)
    if quantised:
        scales, zeros = flat.reals(quantised, 2), flat.integers(quantised, 3, "q")
        axis = flat.integer(quantised, 6)
        fits = len(scales) < 2 or (0 <= axis < len(shape) and len(scales) == shape[axis])
        if not fits or len(zeros) not in (0, 1, len(scales)):
            raise FlatTablesError(f"tensor {name[:80]!r} has scales that do not fit its shape")
    dtype = schema.DTYPES.get(flat.integer(at, 1, "b"), "")
    if flat.table(at, 6):
        raise UnsupportedError(f"tensor {name!r} is sparse")
    held = _data(flat, buffers[buffer], data) if buffer else None
    return ReadTensor(name, dtype, shape, scales, zeros, axis, held)


def _data(flat: FlatTables, buffer: int, data: memoryview) -> memoryview | None:
    """The bytes of a buffer, which large files keep behind the flatbuffer; None if it is empty."""
    offset, size = flat.integer(buffer, 1, "Q"), flat.integer(buffer, 2, "Q")
    if offset > 1:  # 1 marks a buffer whose place was not filled in
        if offset + size > len(data):
            raise FlatTablesError("the data of a buffer are cut off")
        return data[offset : offset + size]
    held = flat.bytes_of(buffer, 0)
    return held if len(held) else None


def _code(flat: FlatTables, at: int) -> tuple[int, str]:
    """The number of an operator, and the name of a custom one."""
    # Two fields hold the number: the older one is a signed byte, which ends at 127.
    return max(flat.integer(at, 0, "b"), flat.integer(at, 3)), flat.text(at, 1)


def _operator(
    flat: FlatTables, at: int, codes: Sequence[tuple[int, str]], tensors: int
) -> ReadOperator:
    index = flat.integer(at, 0, "I")
    if index >= len(codes):
        raise FlatTablesError(f"an operator names code {index} of {len(codes)}")
    number, custom = codes[index]
    inputs, outputs = flat.integers(at, 1), flat.integers(at, 2)
    for tensor in (*inputs, *outputs):
        if not -1 <= tensor < tensors:
            raise FlatTablesError(f"an operator names tensor {tensor} of {tensors}")
    name = schema.OPERATORS.get(number, "")
    if number == schema.CUSTOM or not name:
        told = custom if number == schema.CUSTOM else f"builtin operator {number}"
        return ReadOperator(told[:80] or "custom", inputs, outputs, known=False)
    return ReadOperator(name, inputs, outputs, _options(flat, at, name))


def _options(flat: FlatTables, at: int, name: str) -> dict[str, Any]:
    """The options of an operator by name; none where the file leaves them out."""
    wanted, given = schema.OPTIONS.get(name), flat.table(at, 4)
    if wanted is None or not given:
        return {}
    kind = flat.integer(at, 3, "B")
    if kind != wanted.kind:
        raise FlatTablesError(f"an operator {name} has the options of another one")
    found: dict[str, Any] = {}
    for option, (number, form) in wanted.fields.items():
        if form == "v":
            found[option] = flat.integers(given, number)
        elif form == "f":
            found[option] = flat.real(given, number)
        else:
            default = 1 if option.startswith("dilation") else 0
            found[option] = flat.integer(given, number, form, default)
    return found
