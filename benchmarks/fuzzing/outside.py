"""ONNX files that refer to other files, written in every way that a reader may understand.

A reference is put at a random place of a model, and the file is written anew with other orders of
fields, longer numbers, split messages and damaged bytes. The library of protocol buffers, which the
runtimes use, is the judge: whatever it reads a reference in must be refused by the check that runs
on the board, and an undamaged model without a reference must pass.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from google.protobuf.message import DecodeError, Message
from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.onnx.outside import check_self_contained
from onnx import helper

from benchmarks.fuzzing.part import PartReport

LONGEST_S = 2.0
"""Longest time for one file, in seconds of this process."""

_LOCATIONS = ("weights.bin", "../" + "a" * 64, "/etc/passwd", "*/_ORT_MEM_ADDR_/*", "")
_ENGINE = "EPContext"
_LONG_VARINT = 5  # most bytes of a tag or a size


def run(count: int, seed: int) -> PartReport:
    """Run `count` cases."""
    report = PartReport(seed)
    slowest_s = 0.0
    with TemporaryDirectory(prefix="latfarm-fuzz-") as folder:
        path = Path(folder) / "model.onnx"
        for case in range(count):
            rng = random.Random(f"{seed} {case}")
            model, referring = _model(rng)
            data, damaged = _written(model.SerializeToString(), rng)
            path.write_bytes(data)
            begun_s = time.process_time()
            try:
                check_self_contained(path)
                outcome = "accepted"
            except RuntimeFailure as failure:
                outcome = "refused" if "another file" in failure.message else "unreadable"
            except Exception as error:
                outcome = "foreign error"
                report.violations.append(f"case {case}: {type(error).__name__}: {error}")
            took_s = time.process_time() - begun_s
            slowest_s = max(slowest_s, took_s)
            report.outcomes[outcome] += 1
            wrong = _wrong(outcome, data, clean=not referring and not damaged)
            if wrong:
                report.violations.append(f"case {case}: {wrong}")
            if took_s > LONGEST_S:
                report.violations.append(f"case {case}: it took {took_s:.1f} s")
    report.figures["slowest_s"] = round(slowest_s, 3)
    return report


def _wrong(outcome: str, data: bytes, *, clean: bool) -> str:
    if clean and outcome != "accepted":
        return f"a model without references is {outcome}"
    if outcome == "accepted":
        read = onnx.ModelProto()
        try:
            read.ParseFromString(data)
        except DecodeError:
            return ""
        if refers(read):
            return "a model with a reference is accepted"
    return ""


def refers(message: Message) -> bool:
    """Whether a message holds a tensor with external data, or a compiled engine, at any depth."""
    if isinstance(message, onnx.TensorProto) and (
        message.external_data or message.data_location != onnx.TensorProto.DEFAULT
    ):
        return True
    if isinstance(message, onnx.NodeProto) and message.op_type == _ENGINE:
        return True
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = value if field.is_repeated else [value]
            if any(refers(each) for each in inner):
                return True
    return False


def _tensor(rng: random.Random, *, outside: bool) -> onnx.TensorProto:
    if not outside:
        return helper.make_tensor("near", onnx.TensorProto.FLOAT, [1], [1.0])
    tensor = onnx.TensorProto(name="far", data_type=onnx.TensorProto.FLOAT, dims=[1])
    if rng.random() < 0.8:
        tensor.data_location = onnx.TensorProto.EXTERNAL
    for _ in range(rng.choice((0, 1, 1, 2)) if tensor.data_location else 1):
        tensor.external_data.add(key="location", value=rng.choice(_LOCATIONS))
        if rng.random() < 0.5:
            tensor.external_data.add(key="offset", value=str(rng.getrandbits(48)))
    return tensor


def _in_attribute(rng: random.Random, tensor: onnx.TensorProto) -> onnx.AttributeProto:
    attribute = onnx.AttributeProto(name="value")
    sparse = onnx.SparseTensorProto(dims=[1], values=tensor)
    ways: Mapping[str, Callable[[], object]] = {
        "t": lambda: attribute.t.CopyFrom(tensor),
        "tensors": lambda: attribute.tensors.append(tensor),
        "sparse_tensor": lambda: attribute.sparse_tensor.CopyFrom(sparse),
        "sparse_tensors": lambda: attribute.sparse_tensors.append(sparse),
        "g": lambda: attribute.g.CopyFrom(_in_graph(rng, tensor)),
        "graphs": lambda: attribute.graphs.append(_in_graph(rng, tensor)),
    }
    ways[rng.choice(list(ways))]()
    return attribute


def _in_node(rng: random.Random, tensor: onnx.TensorProto) -> onnx.NodeProto:
    node = helper.make_node("Identity", ["x"], ["y"])
    node.attribute.append(_in_attribute(rng, tensor))
    return node


def _in_graph(rng: random.Random, tensor: onnx.TensorProto) -> onnx.GraphProto:
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    way = rng.randrange(4)
    if way == 0:
        graph.initializer.append(tensor)
    elif way == 1:
        graph.sparse_initializer.append(onnx.SparseTensorProto(dims=[1], indices=tensor))
    else:
        graph.node.append(_in_node(rng, tensor))
    return graph


def _model(rng: random.Random) -> tuple[onnx.ModelProto, bool]:
    """A model, and whether it refers to something outside of it."""
    outside = rng.random() < 0.7
    tensor = _tensor(rng, outside=outside)
    model = helper.make_model(helper.make_graph([], "main", [], []))
    way = rng.randrange(5)
    if way == 0:
        function = model.functions.add(name="f", domain="d")
        function.node.append(_in_node(rng, tensor))
    elif way == 1:
        model.functions.add(name="f", domain="d").attribute_proto.append(_in_attribute(rng, tensor))
    elif way == 2:
        training = model.training_info.add()
        where = training.algorithm if rng.random() < 0.5 else training.initialization
        where.CopyFrom(_in_graph(rng, tensor))
    else:
        model.graph.CopyFrom(_in_graph(rng, tensor))
    if not outside and rng.random() < 0.1:
        model.graph.node.append(helper.make_node(_ENGINE, [], ["z"]))
        outside = True
    return model, outside


def _written(data: bytes, rng: random.Random) -> tuple[bytes, bool]:
    """A message in another form, and whether bytes of it were damaged."""
    if rng.random() < 0.8:
        data = _rewritten(data, onnx.ModelProto.DESCRIPTOR, rng)
    if rng.random() < 0.6:
        return data, False
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        position = rng.randrange(len(changed))
        way = rng.randrange(3)
        if way == 0:
            changed[position] = rng.randrange(256)
        elif way == 1:
            changed[position] ^= 1 << rng.randrange(8)
        else:
            changed[position:position] = rng.randbytes(rng.randrange(1, 4))
    return bytes(changed), True


def _rewritten(data: bytes, kind: object, rng: random.Random) -> bytes:
    """The same message with other orders, longer numbers, unknown fields and split parts."""
    parts: list[bytes] = []
    for number, wire, content in _fields(data):
        field = kind.fields_by_number.get(number)  # type: ignore[attr-defined]
        if wire == 2 and field is not None and field.message_type is not None:
            inner = _rewritten(content, field.message_type, rng)
            parts.append(_tag(number, wire, rng) + _varint(len(inner), rng) + inner)
        elif wire == 2:
            parts.append(_tag(number, wire, rng) + _varint(len(content), rng) + content)
        else:
            parts.append(_tag(number, wire, rng) + content)
    if rng.random() < 0.3:
        rng.shuffle(parts)
    if rng.random() < 0.2:
        unknown = _tag(rng.randrange(900, 1000), 0, rng) + _varint(rng.getrandbits(20), rng)
        parts.insert(rng.randrange(len(parts) + 1), unknown)
    return b"".join(parts)


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    position = 0
    while position < len(data):
        key, position = _read(data, position)
        wire = key & 7
        begin = position
        if wire == 0:
            _, position = _read(data, position)
        elif wire == 2:
            size, begin = _read(data, position)
            position = begin + size
        else:
            position += 8 if wire == 1 else 4
        yield key >> 3, wire, data[begin:position]


def _read(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def _tag(number: int, wire: int, rng: random.Random) -> bytes:
    return _varint(number << 3 | wire, rng)


def _varint(value: int, rng: random.Random) -> bytes:
    """A number, now and then with more bytes than it needs."""
    size = max(1, -(-value.bit_length() // 7))
    if rng.random() < 0.1:
        size = rng.randint(size, _LONG_VARINT)
    return bytes(
        (value >> (7 * index) & 0x7F) | (0x80 if index < size - 1 else 0) for index in range(size)
    )
