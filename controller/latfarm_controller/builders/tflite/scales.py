"""Scales of int8 tensors: one with a zero point for an activation, one per channel for a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from latfarm_controller.builders.tflite.file import Array
from latfarm_controller.builders.tflite.moments import Moments

# Number of possible scales between a scale and its double (see `scale_for`).
_STEPS_PER_OCTAVE = 32
_MOST = 1e38  # largest absolute value of a range's end, less than float32's largest number


@dataclass(frozen=True)
class QuantizationScale:
    """Scale and zero point of a quantised tensor: real number = value * (integer - zero)."""

    value: float
    zero: int

    def integers(self, data: Array) -> NDArray[np.int8]:
        """Quantise real numbers to int8; numbers out of range become -128 or 127."""
        real = np.asarray(data, np.float64) / self.value
        whole: NDArray[np.int8] = np.clip(np.rint(real) + self.zero, -128, 127).astype(np.int8)
        return whole


def scale_for(moments: Moments) -> QuantizationScale:
    """Return the scale for the expected range of values; it always represents zero exactly.

    The scale is rounded up to a coarse grid whose steps are 2 %. The last bits of a measured range
    differ between processors, and the rounding keeps most of these differences out of the file. A
    range that exceeds float32, for example that of a tensor squared sixteen times, is cut to
    `_MOST`.
    """
    low = max(min(moments.low, 0.0), -_MOST)
    high = min(max(moments.high, 0.0), _MOST)
    value = max((high - low) / 255.0, 1e-9)
    value = 2.0 ** (math.ceil(math.log2(value) * _STEPS_PER_OCTAVE - 1e-3) / _STEPS_PER_OCTAVE)
    return QuantizationScale(value, int(np.clip(round(-128 - low / value), -128, 127)))


def symmetric(data: Array, axis: int) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Quantise a weight to int8 values in -127..127, with one scale per index of `axis`.

    Returns:
        the int8 values and the scales.
    """
    real = np.asarray(data, np.float32)
    others = tuple(a for a in range(real.ndim) if a != axis)
    peaks = real.max(axis=others, keepdims=True)
    np.maximum(peaks, -real.min(axis=others, keepdims=True), out=peaks)
    scales = np.maximum(peaks, 1e-9) / np.float32(127.0)
    scaled = real * (np.float32(1.0) / scales)
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int8), scales.reshape(-1)
