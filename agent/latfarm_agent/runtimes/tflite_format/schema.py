"""The tables of a TFLite file as layouts, and rules about its operators.

`runtimes.flatbuffer` explains layouts. Two more letters are used here: "g" for the index of a
subgraph, and "G" for a vector of such indices. The layouts, numbers and codes are those of the file
tflite/converter/schema/schema.fbs of LiteRT. The rules about operators are what LiteRT's kernels
need in order not to crash; tests compare all numbers with the published schema.
"""

from __future__ import annotations

IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of each file."""
VERSION = 3
"""The only version of the format."""

# The fields of a model: version, operator codes, subgraphs, description, buffers, metadata buffer,
# metadata, signatures, external buffer groups and external buffers.
MODEL = "4oosoioooo"
OPERATOR_CODE = "1s44"
SUBGRAPH = "oiios4"
TENSOR = "i14so1oi1o4"
QUANTIZATION = "iiil1o4"
VARIANT = "i11"
OPERATOR = "4ii1ob1bi881o4"
BUFFER = "b88"
METADATA = "s4"
SIGNATURE = "oos_4"
TENSOR_MAP = "s4"

QUANTIZATION_DETAILS = {1: "b", 2: "444i", 3: "444i"}
"""Layouts of the details of a quantization, by their number."""

STRING = 5
"""Number of the type of strings."""
EIGHT_BITS = (3, 9)
"""Numbers of the types uint8 and int8."""
ZERO_POINTS = {3: (0, 255), 7: (-(1 << 15), (1 << 15) - 1), 9: (-128, 127)}
"""Number of a type -> the least and the greatest zero point that it allows."""

BITS = {
    0: 32,  # float32
    1: 16,  # float16
    2: 32,  # int32
    3: 8,  # uint8
    4: 64,  # int64
    STRING: 0,
    6: 8,  # bool
    7: 16,  # int16
    8: 64,  # complex64
    9: 8,  # int8
    10: 64,  # float64
    11: 128,  # complex128
    12: 64,  # uint64
    13: 0,  # a resource
    14: 0,  # a variant
    15: 32,  # uint32
    16: 16,  # uint16
    17: 4,  # int4
    18: 16,  # bfloat16
    19: 2,  # int2
    20: 4,  # uint4
    21: 8,  # float8, 4 bits of exponent
    22: 8,  # float8, 5 bits of exponent
}
"""Number of a type -> bits of an element; 0 if the type does not determine the size of a tensor."""

OPTIONS = {
    **dict.fromkeys(range(1, 127), ""),
    1: "1441441",  # Conv2D
    2: "1444144",  # DepthwiseConv2D
    3: "4ii",  # ConcatEmbeddings
    4: "1",  # LSHProjection
    5: "144441",  # Pool2D
    6: "411",  # SVDF
    7: "11",  # RNN
    8: "11111b",  # FullyConnected
    9: "4",  # Softmax
    10: "41",  # Concatenation
    11: "11",  # Add
    12: "1",  # L2Norm
    13: "4444",  # LocalResponseNormalization
    14: "14411",  # LSTM
    15: "__11",  # ResizeBilinear
    16: "g",  # Call
    17: "i",  # Reshape
    18: "441",  # SkipGram
    19: "4",  # SpaceToDepth
    20: "1",  # EmbeddingLookupSparse
    21: "1",  # Mul
    23: "44",  # Gather
    27: "1",  # Reducer
    28: "11",  # Sub
    29: "1",  # Div
    30: "i",  # Squeeze
    31: "111",  # SequenceRNN
    32: "444441",  # StridedSlice
    35: "4",  # Split
    37: "11",  # Cast
    40: "1",  # ArgMax
    49: "14411",  # TransposeConv
    50: "1",  # SparseToDense
    55: "1",  # Shape
    57: "1",  # ArgMin
    58: "4441",  # FakeQuant
    59: "44",  # Pack
    61: "4",  # OneHot
    64: "44",  # Unpack
    69: "144111",  # BidirectionalSequenceLSTM
    70: "1111",  # BidirectionalSequenceRNN
    71: "144111",  # UnidirectionalSequenceLSTM
    74: "11",  # ResizeNearestNeighbor
    75: "4",  # LeakyRelu
    77: "1",  # MirrorPad
    79: "4",  # SplitV
    80: "1",  # Unique
    87: "44",  # ReverseSequence
    92: "gg",  # If
    93: "gg",  # While
    94: "4",  # DepthToSpace
    101: "111",  # BatchMatMul
    102: "11",  # Cumsum
    103: "g",  # CallOnce
    106: "14441444",  # Conv3D
    107: "411",  # Hashtable
    111: "ss",  # VarHandle
    114: "88",  # Random
    115: "i",  # Bucketize
    116: "1",  # Gelu
}
"""Layouts of BuiltinOptions by their number; kinds without an entry of their own have no fields."""

OPTIONS_2 = {
    **dict.fromkeys(range(1, 24), ""),
    1: "8",  # StablehloConcatenate
    2: "l",  # StablehloBroadcastInDim
    3: "lll",  # StablehloSlice
    4: "llllb88l88l88l88i",  # StablehloConvolution
    5: "s1s4ib",  # StablehloCustomCall
    6: "lg",  # StablehloReduce
    7: "1lll81g",  # StablehloScatter
    8: "44",  # StablehloCompare
    9: "l",  # StablehloDynamicSlice
    10: "lll",  # StablehloPad
    11: "8",  # StablehloIota
    12: "lllli",  # StablehloDotGeneral
    13: "lllllg",  # StablehloReduceWindow
    14: "81g",  # StablehloSort
    15: "gg",  # StablehloWhile
    16: "lll8l1",  # StablehloGather
    17: "l",  # StablehloTranspose
    19: "1",  # StablehloRngBitGenerator
    20: "4",  # ReduceWindow
    21: "sgb14",  # StableHLOComposite
    23: "G",  # StablehloCase
}
"""Layouts of BuiltinOptions2 by their number; kinds without an entry here have no fields."""

# Pairs of an operator's code and the number of its BuiltinOptions, where both have the same name.
_OF = """
0:11 2:10 3:1 4:2 5:94 9:8 11:12 13:13 15:4 16:14 18:21 22:17 23:15 24:7 25:9 26:19 27:6 29:3
30:18 31:16 33:20 35:31 36:23 41:28 42:29 43:30 44:71 45:32 46:70 49:35 52:69 53:37 56:40 67:49
68:50 77:55 79:57 80:58 83:59 85:61 88:64 97:74 98:75 100:77 102:79 103:80 112:87 118:92 119:93
126:101 128:102 129:103 136:107 142:111 147:115 150:116
"""

OPTIONS_OF = {
    **dict.fromkeys((1, 12, 17), 5),  # pools
    **dict.fromkeys((40, 74, 81, 82, 89, 91, 140), 27),  # reductions
    **dict.fromkeys((132, 141), 106),  # 3-D convolutions
    **dict.fromkeys((145, 148, 149), 114),  # random numbers
    **{int(pair.split(":")[0]): int(pair.split(":")[1]) for pair in _OF.split()},
}
"""Code of an operator -> number of its BuiltinOptions, for options that have fields."""

MEANINGS = {
    1: "pssadd.",
    2: "pss.add",
    5: "pssssa",
    8: "a.....",
    10: ".a",
    11: "a.",
    12: "a",
    21: "a",
    28: "a.",
    29: "a",
    49: "pssa.",
    106: "psssaddd",
}
"""Number of BuiltinOptions -> what its fields mean, one letter each: "p" a padding, "a" a fused
activation, "s" a size or stride, "d" a dilation (1 if absent), "." anything else."""

PADDINGS, ACTIVATIONS = 2, 6
"""How many kinds of padding and of fused activations the schema has."""

PACK, SPLIT, SPLIT_V, UNPACK = 83, 49, 102, 88
"""Codes of operators whose options say how many tensors they read or make."""
CUSTOM = 32
"""Code of custom operators."""

ETHOS_U = b"ethos-u"
"""Name of the custom operator into which Vela compiles what an Ethos-U NPU runs."""

OPTIONAL_FROM = {
    **dict.fromkeys((3, 4, 9, 132), 2),  # convolutions and fully connected: the bias
    **dict.fromkeys((16, 44, 52), 1),  # LSTMs
    27: 4,  # SVDF
    35: 3,  # a sequence of RNN cells
    46: 1,  # the same in both directions
    67: 3,  # transposed convolutions
    141: 3,
}
"""Code of an operator -> index of the first operand that may be missing."""

NO_OPERANDS = frozenset({31, 119, 129, 136, 142, 196, 200})
"""Codes of operators that may have no operands: calls, loops, handles, iota."""

NO_RESULTS = frozenset({31, 118, 119, 129, 138, 144, 200, 209})
"""Codes of operators that may make no tensor."""

LEAST_OPERANDS = {
    **dict.fromkeys((0, 3, 4, 7, 9, 18, 23, 34, 36, 39, 40, 41, 42, 48, 49, 54, 55, 56, 57, 58), 2),
    **dict.fromkeys(
        (61, 62, 63, 69, 70, 71, 72, 74, 78, 79, 81, 82, 84, 86, 89, 90, 91, 94, 95), 2
    ),
    **dict.fromkeys((97, 99, 100, 105, 107, 112, 115, 125, 126, 128, 130, 131, 132, 140, 144), 2),
    **dict.fromkeys((145, 149, 156, 160, 161), 2),
    **dict.fromkeys((10, 37, 38, 60, 64, 65, 67, 96, 102, 122, 123, 137, 138, 141, 151), 3),
    **dict.fromkeys((153, 154, 155, 157), 3),
    **dict.fromkeys((27, 45, 68, 85), 4),
    **dict.fromkeys((24, 33, 35, 120), 5),
    121: 6,
    46: 12,
    44: 20,
    52: 35,
}
"""Code of an operator -> the least number of its operands, where that is more than one."""

LEAST_RESULTS = {48: 2, 103: 2, 120: 2, 121: 3}
"""Code of an operator -> the least number of its results, where that is more than one."""

HANDLERS = frozenset({31, 32, 118, 119, 129, 136, 137, 138, 139, 142, 143, 144, 200, 206, 209})
"""Codes of operators that accept a resource or a variant as operand."""

STRING_HANDLERS = HANDLERS.union(
    (2, 10, 15, 22, 30, 34, 36, 39, 43, 45, 49, 64, 65, 69, 70, 71, 72, 77, 83, 88, 94, 102, 107),
    (109, 110, 123, 130),
)
"""Codes of operators that accept strings as operands."""

QUANTISED = frozenset(
    (0, 1, 3, 4, 6, 9, 11, 14, 18, 25, 28, 41, 42, 44, 47, 50, 54, 67, 73, 75, 76, 98, 99, 111, 114)
) | {117, 126, 150}
"""Codes of operators whose 8-bit kernels need a scale for each operand."""
