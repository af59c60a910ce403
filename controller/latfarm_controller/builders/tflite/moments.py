"""Estimates the range of each activation of a kernel, from one operator to the next.

The estimate carries the mean and the standard deviation of each tensor through the operators. It
assumes that the values of a tensor are independent and normally distributed, which is not exactly
true. The result is accurate enough to choose the quantisation scales of a few operators, and the
estimate is a hundred times faster than running them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from latfarm_controller.builders.tflite.file import Array, BuiltOperator, TfliteTensor

DEVIATIONS = 4.0
"""Distance from the mean to each end of an estimated range, in standard deviations."""


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of a tensor's values, and the range that int8 must represent."""

    mean: float
    deviation: float
    low: float
    high: float

    def union(self, other: Moments) -> Moments:
        """Return moments whose range covers both ranges; mean and deviation are those of self."""
        return Moments(
            self.mean, self.deviation, min(self.low, other.low), max(self.high, other.high)
        )

    @property
    def second(self) -> float:
        """The second moment: the mean of the squared values."""
        return self.mean**2 + self.deviation**2


def normal(mean: float, variance: float, low: float = -math.inf, high: float = math.inf) -> Moments:
    """Return the moments of a normally distributed tensor.

    The range is `DEVIATIONS` standard deviations to each side of the mean, cut to `low` and `high`.
    """
    deviation = math.sqrt(max(variance, 1e-12))
    return Moments(
        mean,
        deviation,
        max(mean - DEVIATIONS * deviation, low),
        min(mean + DEVIATIONS * deviation, high),
    )


def moments_of_data(data: Array) -> Moments:
    """Return the exact moments of a constant's values."""
    real = np.asarray(data, np.float64)
    return Moments(float(real.mean()), float(real.std()), float(real.min()), float(real.max()))


def moments_of(
    operator: BuiltOperator, tensors: Sequence[TfliteTensor], known: Sequence[Moments | None]
) -> Moments | None:
    """Estimate the moments of an operator's results.

    Args:
        operator: the operator whose results are estimated.
        tensors: all tensors of the model.
        known: the moments of each tensor of the model, by its index; None for indices, for large
            weights, and for other tensors whose moments are unknown.

    Returns:
        None if the results are not float32 or if nothing is known about them.
    """
    if tensors[operator.outputs[0]].dtype != "float32":
        return None
    operands = [m for m in (known[i] for i in operator.inputs if i >= 0) if m is not None]
    code = operator.code
    if code in _WEIGHTED:
        return _weighted(operator, tensors, known)
    if code == "MUL" and operator.inputs[0] == operator.inputs[1]:
        return _through(np.square, operands[0])
    if code in _FUNCTIONS:
        return _through(_FUNCTIONS[code], operands[0])
    if code == "LEAKY_RELU":
        slope = float(operator.options.get("alpha", 0.01))
        return _through(lambda x: np.where(x < 0, slope * x, x), operands[0])
    if code in ("ADD", "SUB"):
        return _sum(operands, -1.0 if code == "SUB" else 1.0)
    if code == "MUL":
        return _product(operands)
    # Neighbouring pixels resemble each other, so the standard deviation of their mean is smaller
    # than theirs, but not by the factor sqrt(n), as for n independent values. Half is assumed.
    if code == "MEAN":
        source = operands[0]
        return normal(source.mean, source.deviation**2 / 4, source.low, source.high)
    if code == "SOFTMAX":
        return Moments(0.0, 0.1, 0.0, 1.0)
    if code == "CONCATENATION":
        return _mixture(operands)
    if code in ("MAXIMUM", "MINIMUM"):
        return _bounded(code, operands)
    return operands[0] if operands else None


# Most output channels of a weight, and most terms of each channel's sum, that an estimate reads.
# Larger weights are sampled at regular steps, which is enough for an estimate.
_MOST_ROWS, _MOST_TERMS = 256, 1024

# Operators that have a weight and a bias as operands.
_WEIGHTED = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"})


def _weighted(
    operator: BuiltOperator, tensors: Sequence[TfliteTensor], known: Sequence[Moments | None]
) -> Moments:
    """Estimate the results of a layer with known weights.

    Each output channel is a sum of products, whose moments are computed first. They are then
    combined into the moments of all channels.
    """
    data, bias = (2, 3) if operator.code == "TRANSPOSE_CONV" else (0, 2)
    source = known[operator.inputs[data]]
    weight, shift = (tensors[operator.inputs[i]].data for i in (1, bias))
    if source is None or weight is None or shift is None:
        return normal(0.0, 1.0)
    axis = 3 if operator.code == "DEPTHWISE_CONV_2D" else 0
    rows = np.moveaxis(weight, axis, 0)
    rows = rows[:: rows.shape[0] // _MOST_ROWS + 1].reshape(-1, weight.size // weight.shape[axis])
    shift = shift[:: shift.shape[0] // _MOST_ROWS + 1]
    step = rows.shape[1] // _MOST_TERMS + 1
    terms = rows.shape[1] / len(range(0, rows.shape[1], step))
    rows = rows[:, ::step]
    totals = terms * rows.sum(axis=1)
    squares = terms * np.einsum("ij,ij->i", rows, rows)
    means = source.mean * totals + shift
    variances = np.maximum(source.deviation**2 * squares, 1e-12)
    spread = float(np.mean(variances) + np.var(means))
    edges = DEVIATIONS * np.sqrt(variances)
    return Moments(
        float(np.mean(means)),
        math.sqrt(spread),
        float(np.min(means - edges)),
        float(np.max(means + edges)),
    )


# 128 quantiles of the standard normal distribution. A function is applied to them to estimate the
# moments of its results.
_QUANTILES: NDArray[np.float64] = np.array(
    [NormalDist().inv_cdf((i + 0.5) / 128) for i in range(128)]
)
# The functions that elementwise operators compute; for GELU and PRELU, an approximation.
_FUNCTIONS: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "RELU": lambda x: np.maximum(x, 0.0),
    "RELU6": lambda x: np.clip(x, 0.0, 6.0),
    "RELU_0_TO_1": lambda x: np.clip(x, 0.0, 1.0),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1.0, 1.0),
    "LOGISTIC": lambda x: 1.0 / (1.0 + np.exp(-np.clip(x, -50, 50))),
    "TANH": np.tanh,
    "HARD_SWISH": lambda x: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    "ELU": lambda x: np.where(x < 0, np.expm1(np.clip(x, -50, 0)), x),
    "GELU": lambda x: x / (1.0 + np.exp(-np.clip(1.702 * x, -50, 50))),
    "PRELU": lambda x: np.where(x < 0, 0.25 * x, x),
}
# Operators for which the estimated moments are accurate enough.
ESTIMATED = (
    _WEIGHTED
    | _FUNCTIONS.keys()
    | {
        *("ADD", "SUB", "MUL", "MEAN", "LEAKY_RELU", "SOFTMAX", "CONCATENATION", "RESHAPE"),
        *("MAXIMUM", "MINIMUM", "MAX_POOL_2D", "AVERAGE_POOL_2D", "TRANSPOSE", "PAD", "PADV2"),
        *("SLICE", "STRIDED_SLICE", "SPLIT", "SPLIT_V", "LOCAL_RESPONSE_NORMALIZATION"),
        *("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH"),
    }
)


def _through(
    function: Callable[[NDArray[np.float64]], NDArray[np.float64]], source: Moments
) -> Moments:
    points = np.clip(source.mean + source.deviation * _QUANTILES, source.low, source.high)
    values = function(points)
    ends = function(np.linspace(source.low, source.high, 65))
    return Moments(
        float(values.mean()),
        max(float(values.std()), 1e-6),
        float(ends.min()),
        float(ends.max()),
    )


def _sum(operands: Sequence[Moments], sign: float) -> Moments:
    first, second = operands[0], operands[-1]
    low, high = (second.low, second.high) if sign > 0 else (-second.high, -second.low)
    return normal(
        first.mean + sign * second.mean,
        first.deviation**2 + second.deviation**2,
        first.low + low,
        first.high + high,
    )


def _product(operands: Sequence[Moments]) -> Moments:
    first, second = operands[0], operands[-1]
    mean = first.mean * second.mean
    ends = [a * b for a in (first.low, first.high) for b in (second.low, second.high)]
    return normal(mean, first.second * second.second - mean**2, min(ends), max(ends))


def _mixture(operands: Sequence[Moments]) -> Moments:
    mean = sum(m.mean for m in operands) / len(operands)
    second = sum(m.second for m in operands) / len(operands)
    return Moments(
        mean,
        math.sqrt(max(second - mean**2, 1e-12)),
        min(m.low for m in operands),
        max(m.high for m in operands),
    )


def _bounded(code: str, operands: Sequence[Moments]) -> Moments:
    first, second = operands[0], operands[-1]
    choose = max if code == "MAXIMUM" else min
    return Moments(
        choose(first.mean, second.mean),
        first.deviation,
        choose(first.low, second.low),
        choose(first.high, second.high),
    )
