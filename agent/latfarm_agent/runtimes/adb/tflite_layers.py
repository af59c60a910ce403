"""Kernels of a TFLite model from the profile that `benchmark_model` prints.

The table "Run Order" of the profile has one row for each node: its kind, its average time, and a
name made of its output tensors and its number. The operators of the file keep their numbers. The
partitions of a delegate get greater numbers, and the operators that they took have no row; the
model's file shows which ones these are. Rows from within a delegate ("Delegate/...") are part of
the time of its partition.

Sources: TensorFlow Lite's schema, and the section "Profiling model operators" of the README of the
benchmark tool.
"""

from __future__ import annotations

import mmap
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from latfarm_agent.runtimes.adb.report import garbled
from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.flatbuffer import Flatbuffer
from latfarm_agent.runtimes.tflite_format import schema
from latfarm_agent.runtimes.tflite_format.model import TfliteOperator, joined, op_name

_TOOL = "benchmark_model"
_BEGIN = "Operator-wise Profiling Info for Regular Benchmark Runs"
_TABLE = re.compile(r"=+ Run Order =+$")
_NODE = re.compile(r"\[(.*)\]:(\d{1,9})", re.DOTALL)
_TIME = re.compile(r"\d{1,12}(\.\d{1,9})?")

_CODE_NAMES = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE
EMBEDDING_LOOKUP FLOOR FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D
LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6
RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL
CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND
SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST
PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN
TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK
REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR
LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS
WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE
READ_VARIABLE ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM
MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX
UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT
STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM
STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS
STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG
STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT
STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE
STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD
STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE
STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW
STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE
"""
"""Names of the schema's builtin operators, in the order of their codes."""

_CODES = _CODE_NAMES.split()


@dataclass(frozen=True)
class _LayerRow:
    kind: str
    outputs: str
    index: int
    latency_ms: float


def read_layers(text: str, model: Path) -> list[LayerTime]:
    """Return the kernels in execution order.

    An operator that the CPU ran has the device "CPU". A partition has the name of its delegate as
    device, and the names of all operators that it covers.

    Args:
        text: what the binary printed.
        model: the file, which `tflite_format.check` has accepted.

    Raises:
        RuntimeFailure: MODEL_FAILED if there is no such table; MODEL_UNSUPPORTED if the profile
            does not show which operators a partition covers.
    """
    rows = _rows(text)
    operators = _operators(model)
    alone = {row.index for row in rows if row.index < len(operators)}
    partitions = [row for row in rows if row.index >= len(operators)]
    taken = [operator for operator in operators if operator.index not in alone]
    covered = _covered(partitions, taken, _names(model))
    layers = []
    for row in rows:
        if row.index < len(operators):
            name, op = joined([operators[row.index]])
            layers.append(LayerTime(name, op, row.latency_ms, "CPU"))
            continue
        mine = covered[row.index]
        if not mine:
            raise RuntimeFailure(
                "MODEL_UNSUPPORTED",
                f"the profile does not show which operators {row.kind} {row.index} covers",
            )
        name, op = joined(mine)
        layers.append(LayerTime(name, op, row.latency_ms, row.kind))
    return layers


def _rows(text: str) -> list[_LayerRow]:
    begin = text.rfind(_BEGIN)
    lines = iter(text[begin:].splitlines() if begin >= 0 else [])
    if not any(_TABLE.search(line) for line in lines):
        raise garbled(_TOOL, "printed no profile", text)
    header = [cell.strip().lower() for cell in next(lines, "").split("\t")]
    try:
        kind, average, times = map(header.index, ("[node type]", "[avg ms]", "[times called]"))
        name = header.index("[name]")
    except ValueError:
        raise garbled(_TOOL, "printed a profile without the columns that are known", text) from None
    rows = []
    for line in lines:
        cells = line.split("\t", len(header) - 1)
        if len(cells) < len(header):
            break  # the blank line behind the table
        node = _NODE.fullmatch(cells[name].strip())
        if not node:
            continue  # part of a partition, or work of the interpreter itself
        told = cells[average].strip(), cells[times].strip()
        if not all(_TIME.fullmatch(value) for value in told):
            raise garbled(_TOOL, f"printed something that is not a time: {told}", text)
        spent_ms = float(told[0]) * max(1.0, float(told[1]))
        device = cells[kind].strip().split("/")[0]
        rows.append(_LayerRow(device or "delegate", node[1], int(node[2]), spent_ms))
    if not rows:
        raise garbled(_TOOL, "printed an empty profile", text)
    if len({row.index for row in rows}) != len(rows):
        raise garbled(_TOOL, "printed a node twice", text)
    return rows


def _covered(
    partitions: Sequence[_LayerRow], taken: Sequence[TfliteOperator], names: Sequence[str]
) -> dict[int, list[TfliteOperator]]:
    """Return the operators of each partition, by its number: those that make its outputs."""
    if len(partitions) == 1:
        return {partitions[0].index: list(taken)}
    maker = {tensor: operator for operator in taken for tensor in operator.outputs}
    ends: dict[int, list[int]] = {}
    for row in partitions:
        # A name may contain the separator of names, so search the row for the names of the file.
        told = f", {row.outputs}, "
        ends[row.index] = [tensor for tensor in maker if f", {names[tensor]}, " in told]
    borders = {tensor for tensors in ends.values() for tensor in tensors}
    owner: dict[int, int] = {}
    for row in partitions:
        ahead = list(ends[row.index])
        while ahead:
            operator = maker[ahead.pop()]
            if operator.index in owner:
                continue
            owner[operator.index] = row.index
            ahead += [t for t in operator.inputs if t in maker and t not in borders]
    return {
        row.index: [operator for operator in taken if owner.get(operator.index) == row.index]
        for row in partitions
    }


def _operators(model: Path) -> list[TfliteOperator]:
    """Read the operators of the main subgraph from the file, without an interpreter."""
    names = _names(model)
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        flat = Flatbuffer(data)
        fields = flat.table(flat.root(), schema.MODEL)
        codes = [_code(flat, place) for place in flat.tables(fields[1])]
        places = flat.tables(flat.table(flat.tables(fields[2])[0], schema.SUBGRAPH)[3])
        found = []
        for place in places:
            code, inputs, outputs = flat.table(place, schema.OPERATOR)[:3]
            found.append(
                (codes[flat.u32(code)], flat.numbers(inputs, "i"), flat.numbers(outputs, "i"))
            )
    made = [names[outputs[0]] if outputs else "" for _, _, outputs in found]
    times = Counter(made)
    return [
        TfliteOperator(
            index,
            name if name and times[name] == 1 else f"{name}@{index}",
            op_name(code),
            code,
            inputs,
            outputs,
        )
        for index, ((code, inputs, outputs), name) in enumerate(zip(found, made))
    ]


def _code(flat: Flatbuffer, place: int) -> str:
    old, custom, _, new = flat.table(place, schema.OPERATOR_CODE)
    code = max((flat.u8(old) ^ 128) - 128, flat.i32(new))
    if code == _CODES.index("CUSTOM"):
        return _text(flat, custom) or "Custom"
    return _CODES[code] if code < len(_CODES) else f"BUILTIN_{code}"


def _names(model: Path) -> list[str]:
    """Return the names of the tensors of the main subgraph."""
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        flat = Flatbuffer(data)
        main = flat.tables(flat.table(flat.root(), schema.MODEL)[2])[0]
        tensors = flat.tables(flat.table(main, schema.SUBGRAPH)[0])
        return [_text(flat, flat.table(place, schema.TENSOR)[3]) for place in tensors]


def _text(flat: Flatbuffer, field: int) -> str:
    start, count = flat.vector(field, 1)
    return bytes(flat.data[start : start + count]).decode("utf-8", "replace")
