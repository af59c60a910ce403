"""Numbers of the TFLite schema: operators, element types, and the fields of tables and options.

They are those of tflite/converter/schema/schema.fbs of LiteRT; a test compares them with the
published schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of each file."""
VERSION = 3
"""The only version of the format."""
CUSTOM = 32
"""Number of custom operators, which no schema describes."""

DTYPES: Mapping[int, str] = MappingProxyType(
    {
        0: "float32",
        1: "float16",
        2: "int32",
        3: "uint8",
        4: "int64",
        6: "bool",
        7: "int16",
        9: "int8",
        10: "float64",
    }
)
"""Element types that a Graph can have, by their numbers in the schema."""

_OPERATORS = """
0:ADD 1:AVERAGE_POOL_2D 2:CONCATENATION 3:CONV_2D 4:DEPTHWISE_CONV_2D 5:DEPTH_TO_SPACE 6:DEQUANTIZE
7:EMBEDDING_LOOKUP 8:FLOOR 9:FULLY_CONNECTED 11:L2_NORMALIZATION 13:LOCAL_RESPONSE_NORMALIZATION
14:LOGISTIC 17:MAX_POOL_2D 18:MUL 19:RELU 20:RELU_N1_TO_1 21:RELU6 22:RESHAPE 23:RESIZE_BILINEAR
25:SOFTMAX 26:SPACE_TO_DEPTH 28:TANH 34:PAD 36:GATHER 39:TRANSPOSE 40:MEAN 41:SUB 42:DIV 43:SQUEEZE
45:STRIDED_SLICE 47:EXP 48:TOPK_V2 49:SPLIT 50:LOG_SOFTMAX 53:CAST 54:PRELU 55:MAXIMUM 56:ARG_MAX
57:MINIMUM 58:LESS 59:NEG 60:PADV2 61:GREATER 62:GREATER_EQUAL 63:LESS_EQUAL 64:SELECT 65:SLICE
66:SIN 67:TRANSPOSE_CONV 69:TILE 70:EXPAND_DIMS 71:EQUAL 72:NOT_EQUAL 73:LOG 74:SUM 75:SQRT 76:RSQRT
78:POW 79:ARG_MIN 81:REDUCE_PROD 82:REDUCE_MAX 83:PACK 84:LOGICAL_OR 86:LOGICAL_AND 87:LOGICAL_NOT
88:UNPACK 89:REDUCE_MIN 90:FLOOR_DIV 92:SQUARE 95:FLOOR_MOD 97:RESIZE_NEAREST_NEIGHBOR 98:LEAKY_RELU
99:SQUARED_DIFFERENCE 100:MIRROR_PAD 101:ABS 102:SPLIT_V 104:CEIL 108:COS 111:ELU 114:QUANTIZE
116:ROUND 117:HARD_SWISH 123:SELECT_V2 126:BATCH_MATMUL 128:CUMSUM 130:BROADCAST_TO 150:GELU
152:RELU_0_TO_1 158:SIGN
"""
OPERATORS: Mapping[int, str] = MappingProxyType(
    {int(number): name for number, name in (pair.split(":") for pair in _OPERATORS.split())}
)
"""Names of the operators that are read, by their numbers in the schema."""


class OptionTable(NamedTuple):
    """The options of an operator: the number of their table's type, and the table's fields.

    Each field has a number and a form: "b" a byte, "i" an integer, "f" a real number, "v" a vector
    of integers.
    """

    kind: int
    fields: Mapping[str, tuple[int, str]]


def _table(kind: int, told: str) -> OptionTable:
    parts = [part.split(":") for part in told.split()]
    return OptionTable(kind, {name: (int(number), form) for name, number, form in parts})


_POOL = _table(5, "padding:0:b stride_w:1:i stride_h:2:i filter_w:3:i filter_h:4:i fused:5:b")
_REDUCER = _table(27, "keep_dims:0:b")

OPTIONS: Mapping[str, OptionTable] = MappingProxyType(
    {
        "ADD": _table(11, "fused:0:b"),
        "AVERAGE_POOL_2D": _POOL,
        "BATCH_MATMUL": _table(101, "adj_x:0:b adj_y:1:b"),
        "CONCATENATION": _table(10, "axis:0:i fused:1:b"),
        "CONV_2D": _table(
            1, "padding:0:b stride_w:1:i stride_h:2:i fused:3:b dilation_w:4:i dilation_h:5:i"
        ),
        "CUMSUM": _table(102, "exclusive:0:b reverse:1:b"),
        "DEPTHWISE_CONV_2D": _table(
            2, "padding:0:b stride_w:1:i stride_h:2:i fused:4:b dilation_w:5:i dilation_h:6:i"
        ),
        "DEPTH_TO_SPACE": _table(94, "block_size:0:i"),
        "DIV": _table(29, "fused:0:b"),
        "FULLY_CONNECTED": _table(8, "fused:0:b weights_format:1:b keep_num_dims:2:b"),
        "GATHER": _table(23, "axis:0:i batch_dims:1:i"),
        "GELU": _table(116, "approximate:0:b"),
        "L2_NORMALIZATION": _table(12, "fused:0:b"),
        "LEAKY_RELU": _table(75, "alpha:0:f"),
        "LOCAL_RESPONSE_NORMALIZATION": _table(13, "radius:0:i bias:1:f alpha:2:f beta:3:f"),
        "MAX_POOL_2D": _POOL,
        "MIRROR_PAD": _table(77, "mode:0:b"),
        "MUL": _table(21, "fused:0:b"),
        "PACK": _table(59, "axis:1:i"),
        "RESHAPE": _table(17, "shape:0:v"),
        "RESIZE_BILINEAR": _table(15, "align_corners:2:b half_pixel:3:b"),
        "RESIZE_NEAREST_NEIGHBOR": _table(74, "align_corners:0:b half_pixel:1:b"),
        "SOFTMAX": _table(9, "beta:0:f"),
        "SPACE_TO_DEPTH": _table(19, "block_size:0:i"),
        "STRIDED_SLICE": _table(
            32, "begin_mask:0:i end_mask:1:i ellipsis_mask:2:i new_axis_mask:3:i shrink_mask:4:i"
        ),
        "SUB": _table(28, "fused:0:b"),
        "TRANSPOSE_CONV": _table(49, "padding:0:b stride_w:1:i stride_h:2:i fused:3:b"),
        "UNPACK": _table(64, "axis:1:i"),
        **dict.fromkeys(("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"), _REDUCER),
    }
)
"""The options that are read, by the operator's name; other operators have none that matter."""

SAME, VALID = 0, 1
"""Numbers of the kinds of padding."""
