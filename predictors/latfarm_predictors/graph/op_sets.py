"""Sets of ops (ONNX names) that share a property, used wherever a graph is read or rewritten."""

from __future__ import annotations

COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal"})
"""The operands of these ops may be swapped without changing the result."""

REDUCTIONS = frozenset(
    {
        "ReduceMean",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceSumSquare",
    }
)
"""These ops reduce one or more axes to one value each."""

POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})
"""These ops slide a window over the input and have no weights."""

CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
"""These ops slide a window over the input and multiply it by weights."""

WINDOWED = POOLS | CONVOLUTIONS
"""All ops that slide a window: they share the attributes kernel_shape, strides and pads."""

PRODUCTS = frozenset({"Gemm", "MatMul"})
"""Matrix products."""

RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
"""Recurrent layers: each step of a sequence is a product with its input and one with its state."""

MULTIPLYING = CONVOLUTIONS | PRODUCTS | RECURRENT
"""All ops whose multiply-adds are counted."""

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""These ops change the shape of a tensor and move no data."""

FREE_OPS = RESHAPES | {"Identity", "Dropout"}
"""Views: these ops compute nothing and move no data at inference."""
