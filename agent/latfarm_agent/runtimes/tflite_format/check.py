"""Checks a TFLite file before an interpreter loads it.

The interpreter uses offsets, indices and sizes of a file without checking them. A broken one leads
to anything from an error to a segmentation fault. So this check follows every table within the
bounds of the file, and compares every index, shape and size with what it refers to. It does not
read the data of the buffers, so that its time depends on the number of tensors and operators alone.
"""

from __future__ import annotations

import mmap
from math import inf
from pathlib import Path
from typing import NoReturn, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.flatbuffer import Bytes, Flatbuffer, FlatbufferError
from latfarm_agent.runtimes.tflite_format import schema

_MOST_RANK = 8  # dimensions of a tensor, as in LiteRT's C interface (LiteRtLayout)
_MOST_NESTING = 16  # depth to which subgraphs may call each other; our choice
_MOST_BYTES = 1 << 40  # size of the largest tensor where no other bound is given
_LEAST_SCALE = 2.0**-126  # smallest normal float32; the inverse of a smaller one may be infinite
_ANY_INTEGER = (-(1 << 63), (1 << 63) - 1)  # the range of a zero point in the file

_ABSENT, _MADE, _CONSTANT, _VARIABLE = range(4)  # the states of a tensor while a model runs

# Operators whose first option says how many tensors they read or make.
_COUNTED = (schema.PACK, schema.SPLIT, schema.SPLIT_V, schema.UNPACK)


def check_file(path: Path, memory_bytes: int = 0) -> None:
    """Check a file.

    Args:
        path: the file; it must not change meanwhile.
        memory_bytes: memory that the process may allocate; 0 for no bound.

    Raises:
        RuntimeFailure: MODEL_INVALID if something is wrong; MODEL_UNSUPPORTED if the model has
            sparse tensors or weights in other files; OUT_OF_MEMORY if a tensor exceeds
            `memory_bytes`.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            check(data, memory_bytes)
    except (OSError, ValueError) as error:
        # mmap raises ValueError for an empty file.
        raise RuntimeFailure("MODEL_INVALID", f"not a TFLite model: {error}") from error


def check(data: Bytes, memory_bytes: int = 0) -> None:
    """Check a model in memory; arguments and errors are those of `check_file`."""
    try:
        _CheckedModel(Flatbuffer(data), memory_bytes or _MOST_BYTES).check()
    except FlatbufferError as error:
        raise RuntimeFailure("MODEL_INVALID", f"not a sound TFLite model: {error}") from error


def _wrong(message: str) -> NoReturn:
    raise FlatbufferError(message)


class _CheckedModel:
    """A file that is being checked, and the parts that others refer to by index."""

    def __init__(self, flat: Flatbuffer, memory_bytes: int) -> None:
        self._flat = flat
        self._memory_bytes = memory_bytes
        self._codes: list[int] = []
        self._streams: set[int] = set()  # indices of the codes that are Vela's command streams
        self._buffers: list[tuple[int, int]] = []  # position of each buffer's data, and its bytes
        self._subgraphs: list[int] = []
        self._tensor_counts: list[int] = []
        self._calls: list[list[int]] = []
        # Tensors of the current subgraph: resources and variants, strings, 8 bits without a scale.
        self._handles: set[int] = set()
        self._texts: set[int] = set()
        self._bare: set[int] = set()

    def check(self) -> None:
        flat = self._flat
        root = flat.root()
        if bytes(flat.data[4:8]) != schema.IDENTIFIER:
            _wrong("its identifier is not TFL3")
        fields = flat.whole(root, schema.MODEL)
        version, codes, subgraphs, _, buffers, metadata_buffer, metadata, signatures = fields[:8]
        if flat.u32(version) != schema.VERSION:
            _wrong(f"its version is {flat.u32(version)}, not {schema.VERSION}")
        if any(map(flat.tables, fields[8:])):
            raise RuntimeFailure("MODEL_UNSUPPORTED", "its weights are in other files")
        for position in flat.tables(codes):
            self._code(position)
        for position in flat.tables(buffers):
            self._buffer(position)
        self._subgraphs = flat.tables(subgraphs)
        if not self._subgraphs:
            _wrong("it has no subgraph")
        for index, position in enumerate(self._subgraphs):
            self._subgraph(index, position)
        self._nesting()
        for index in flat.numbers(metadata_buffer, "i"):
            self._within(index, self._buffers, "metadata", "buffer")
        for position in flat.tables(metadata):
            buffer = flat.whole(position, schema.METADATA)[1]
            self._within(flat.u32(buffer), self._buffers, "metadata", "buffer")
        for position in flat.tables(signatures):
            self._signature(position)

    def _within(self, index: int, of: Sequence[object], who: str, what: str) -> None:
        if not 0 <= index < len(of):
            _wrong(f"{who} refers to {what} {index} of {len(of)}")

    def _code(self, position: int) -> None:
        flat = self._flat
        old, custom, _, new = flat.whole(position, schema.OPERATOR_CODE)
        # Two fields hold the code: the older one is a signed byte, which ends at 127.
        code = max((flat.u8(old) ^ 128) - 128, flat.i32(new))
        if code < 0:
            _wrong(f"operator code {len(self._codes)} is {code}")
        start, count = flat.vector(custom, 1)
        if code == schema.CUSTOM and bytes(flat.data[start : start + count]) == schema.ETHOS_U:
            self._streams.add(len(self._codes))
        self._codes.append(code)

    def _buffer(self, position: int) -> None:
        flat = self._flat
        data, offset, size = flat.table(position, schema.BUFFER)
        start, count = flat.vector(data, 1)
        if not count and flat.u64(offset) > 1:
            # In models above 2 GB the data stands behind the flatbuffer; 0 and 1 mean it does not.
            start, count = flat.u64(offset), flat.u64(size)
            if start + count > flat.size:
                _wrong("a buffer reaches beyond the end")
        self._buffers.append((start, count))

    def _signature(self, position: int) -> None:
        flat = self._flat
        inputs, outputs, _, _, subgraph = flat.whole(position, schema.SIGNATURE)
        index = flat.u32(subgraph)
        self._within(index, self._subgraphs, "a signature", "subgraph")
        for vector in (inputs, outputs):
            for entry in flat.tables(vector):
                tensor = flat.u32(flat.whole(entry, schema.TENSOR_MAP)[1])
                self._within(tensor, range(self._tensor_counts[index]), "a signature", "tensor")

    def _subgraph(self, index: int, position: int) -> None:
        """Check the tensors, and the operators in the order in which they run.

        No operator may read a tensor before it is made, or write a constant, whose memory pages are
        read-only.
        """
        flat = self._flat
        tensors, inputs, outputs, operators, _, _ = flat.whole(position, schema.SUBGRAPH)
        name = f"subgraph {index}" if index else "the model"
        self._handles, self._texts, self._bare = set(), set(), set()
        there = [self._tensor(number, place) for number, place in enumerate(flat.tables(tensors))]
        self._tensor_counts.append(len(there))
        self._calls.append([])
        for number in flat.numbers(inputs, "i"):
            self._within(number, there, name, "tensor")
            if there[number] == _CONSTANT:
                _wrong(f"input tensor {number} of {name} is a constant")
            there[number] = _MADE
        for number, place in enumerate(flat.tables(operators)):
            self._operator(index, number, place, there)
        for number in flat.numbers(outputs, "i"):
            self._within(number, there, name, "tensor")
            if there[number] == _ABSENT:
                _wrong(f"nothing makes tensor {number}, an output of {name}")

    def _tensor(self, number: int, position: int) -> int:
        """Check a tensor; return its state before any operator runs."""
        flat = self._flat
        fields = flat.whole(position, schema.TENSOR)
        shape, kind, buffer, _, quantization, variable, sparsity = fields[:7]
        signature, _, variants, external = fields[7:]
        dims = flat.numbers(shape, "i")
        bits = schema.BITS.get(flat.u8(kind))
        if bits is None:
            _wrong(f"tensor {number} is of an unknown type, {flat.u8(kind)}")
        if bits == 0:
            (self._texts if flat.u8(kind) == schema.STRING else self._handles).add(number)
        if len(dims) > _MOST_RANK:
            _wrong(f"tensor {number} has {len(dims)} dimensions")
        elements = 1
        for size in dims:
            if size < 0:
                _wrong(f"tensor {number} has an open dimension: {list(dims)}")
            elements *= size
        if signature:
            open_dims = flat.numbers(signature, "i")
            if len(open_dims) not in (0, len(dims)):
                _wrong(f"tensor {number} has two shapes: {list(dims)}, {list(open_dims)}")
        for place in flat.tables(variants):
            flat.whole(place, schema.VARIANT)
        if sparsity:
            raise RuntimeFailure("MODEL_UNSUPPORTED", f"tensor {number} is sparse")
        if external and flat.u32(external):
            raise RuntimeFailure("MODEL_UNSUPPORTED", f"tensor {number} is in another file")
        if quantization:
            scales = self._quantization(number, flat.follow(quantization), dims, flat.u8(kind))
        if flat.u8(kind) in schema.EIGHT_BITS and not (quantization and scales):
            self._bare.add(number)
        index = flat.u32(buffer)
        self._within(index, self._buffers, f"tensor {number}", "buffer")
        start, count = self._buffers[index]
        if not count:
            size_bytes = (elements * bits + 7) // 8
            if size_bytes > self._memory_bytes:
                raise RuntimeFailure(
                    "OUT_OF_MEMORY", f"tensor {number} needs {size_bytes} bytes: {list(dims)}"
                )
            return _VARIABLE if flat.u8(variable) else _ABSENT if elements else _MADE
        if flat.u8(kind) == schema.STRING:
            self._strings(number, start, count, elements)
        elif not bits or count != (elements * bits + 7) // 8:
            _wrong(f"tensor {number} of shape {list(dims)} has {count} bytes of data")
        return _CONSTANT

    def _quantization(self, number: int, position: int, dims: Sequence[int], kind: int) -> int:
        """Check the quantization of a tensor; return how many scales it has."""
        flat = self._flat
        fields = flat.whole(position, schema.QUANTIZATION)
        _, _, scale, zero_point, details_type, details, axis = fields
        scales = flat.numbers(scale, "f")
        if scales:
            # The sum finds a NaN or an infinity among all scales at once.
            if not (min(scales) >= _LEAST_SCALE and 0 < sum(scales) < inf):
                _wrong(f"tensor {number} has a scale that is no positive number")
            start, count = flat.vector(zero_point, 8)
            if count != len(scales):
                _wrong(f"tensor {number} has other numbers of scales and zero points")
            # The zero points of weights are all 0, which counting zero bytes shows fastest.
            if flat.data[start : start + 8 * count].count(0) != 8 * count:
                zero_points = flat.numbers(zero_point, "q")
                low, high = schema.ZERO_POINTS.get(kind, _ANY_INTEGER)
                if min(zero_points) < low or max(zero_points) > high:
                    _wrong(f"tensor {number} has a zero point beyond its type")
            if len(scales) > 1:
                along = flat.i32(axis)
                if not 0 <= along < len(dims) or dims[along] != len(scales):
                    _wrong(f"tensor {number} has {len(scales)} scales for {list(dims)}[{along}]")
        if flat.u8(details_type):
            layout = schema.QUANTIZATION_DETAILS.get(flat.u8(details_type))
            if layout is None or not details:
                _wrong(f"tensor {number} has an unknown quantization")
            flat.whole(flat.follow(details), layout)
            return 1
        return len(scales)

    def _strings(self, number: int, start: int, count: int, elements: int) -> None:
        """Check a buffer of strings: it begins with their number, their offsets, and the end."""
        flat = self._flat
        head = 4 * (elements + 2)
        if head > count or flat.u32(start) != elements:
            _wrong(f"tensor {number} has other numbers of strings and elements")
        flat.spend(elements)
        last = head
        for place in range(start + 4, start + head, 4):
            if not last <= flat.u32(place) <= count:
                _wrong(f"tensor {number} has a string beyond its data")
            last = flat.u32(place)

    def _operator(self, subgraph: int, number: int, position: int, there: list[int]) -> None:
        flat = self._flat
        fields = flat.whole(position, schema.OPERATOR)
        opcode, inputs, outputs, kind, options = fields[:5]
        intermediates, large_at, large_size, kind_2, options_2, _ = fields[8:]
        name = f"operator {number}"
        self._within(flat.u32(opcode), self._codes, name, "operator code")
        code = self._codes[flat.u32(opcode)]
        count = len(there)
        reads, writes = flat.numbers(inputs, "i"), flat.numbers(outputs, "i")
        if len(reads) < schema.LEAST_OPERANDS.get(code, code not in schema.NO_OPERANDS):
            _wrong(f"{name} of code {code} takes {len(reads)} tensors")
        if len(writes) < schema.LEAST_RESULTS.get(code, code not in schema.NO_RESULTS):
            _wrong(f"{name} of code {code} makes {len(writes)} tensors")
        optional_from = schema.OPTIONAL_FROM.get(code, len(reads))
        for operand, index in enumerate(reads):
            if not 0 <= index < count:
                if index == -1 and operand >= optional_from:
                    continue
                _wrong(f"{name} refers to tensor {index} of {count}")
            if there[index] == _ABSENT and flat.u32(opcode) not in self._streams:
                # A command stream has its working memory as an operand, which nothing makes.
                _wrong(f"{name} reads tensor {index}, which nothing has made")
        for index in writes:
            if not 0 <= index < count:
                _wrong(f"{name} refers to tensor {index} of {count}")
            if there[index] in (_CONSTANT, _MADE):
                _wrong(f"{name} writes tensor {index}, which is there already")
            there[index] = _MADE
        self._operands(name, code, reads + writes)
        for index in flat.numbers(intermediates, "i"):
            self._within(index, there, name, "tensor")
        if large_at and flat.u64(large_at) + flat.u64(large_size) > flat.size:
            _wrong(f"{name} has options beyond the end")
        parts: tuple[int, ...] = ()
        if kind:
            which = flat.u8(kind)
            mine = schema.OPTIONS_OF.get(code)
            # Options without fields do no harm, even those of another operator.
            if which not in (0, mine) and (mine or schema.OPTIONS.get(which)):
                _wrong(f"{name} has options of another operator")
            parts = self._options(subgraph, name, which, options, schema.OPTIONS)
            self._meanings(name, schema.MEANINGS.get(which, ""), parts)
        if kind_2:
            self._options(subgraph, name, flat.u8(kind_2), options_2, schema.OPTIONS_2)
        if code in _COUNTED:
            wanted = flat.i32(parts[0]) if parts else 0
            if wanted != len(reads if code == schema.PACK else writes):
                _wrong(f"{name} has other numbers of parts and tensors")

    def _operands(self, name: str, code: int, operands: Sequence[int]) -> None:
        """Check the types of operands: some kernels do not notice a type that they cannot read."""
        for special, wrong, what in (
            (self._handles, code not in schema.HANDLERS, "a handle"),
            (self._texts, code not in schema.STRING_HANDLERS, "a string"),
            (self._bare, code in schema.QUANTISED, "8 bits without a scale"),
        ):
            if special and wrong and not special.isdisjoint(operands):
                _wrong(f"{name} of code {code} has {what} for an operand")

    def _options(
        self, subgraph: int, name: str, kind: int, options: int, layouts: dict[int, str]
    ) -> tuple[int, ...]:
        """Check the options of an operator; return the positions of their fields."""
        if not kind:
            return ()
        layout = layouts.get(kind)
        if layout is None or not options:
            _wrong(f"{name} has unknown options")
        flat = self._flat
        fields = flat.whole(flat.follow(options), layout)
        for field, letter in zip(fields, layout):
            if letter == "g":
                called: Sequence[int] = (flat.u32(field),)
            elif letter == "G":
                called = flat.numbers(field, "i")
            else:
                continue
            for index in called:
                self._within(index, self._subgraphs, name, "subgraph")
                self._calls[subgraph].append(index)
        return fields

    def _meanings(self, name: str, meanings: str, fields: Sequence[int]) -> None:
        """Check values of options: kernels divide by strides, and use activations as indices."""
        flat = self._flat
        for field, meaning in zip(fields, meanings):
            if meaning == "p" and flat.u8(field) >= schema.PADDINGS:
                _wrong(f"{name} has an unknown padding, {flat.u8(field)}")
            if meaning == "a" and flat.u8(field) >= schema.ACTIVATIONS:
                _wrong(f"{name} has an unknown activation, {flat.u8(field)}")
            if meaning in "sd" and flat.i32(field, int(meaning == "d")) < 1:
                _wrong(f"{name} has a size, stride or dilation of {flat.i32(field)}")

    def _nesting(self) -> None:
        """Check that subgraphs do not call each other in a circle, or too deep for the stack."""
        depths = [0] * len(self._calls)
        for _ in range(_MOST_NESTING):
            deeper = [max((depths[to] + 1 for to in calls), default=0) for calls in self._calls]
            if deeper == depths:
                return
            depths = deeper
        _wrong("its subgraphs call each other in a circle, or too deeply")
