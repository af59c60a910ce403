"""The random values that fill the inputs of a model while its latency is measured."""

from __future__ import annotations

from typing import Any, Sequence


def input_noise(draw: Any, shape: Sequence[int], dtype: Any) -> Any:
    """Return random values for one input.

    Floats are drawn from a normal distribution. All other types get zeros and ones, which are valid
    where the input holds indices.

    Args:
        draw: a numpy Generator.
        shape: the shape of the input.
        dtype: a numpy dtype, or its name.

    Returns:
        an array of that shape and dtype.
    """
    import numpy as np

    kind = np.dtype(dtype)
    if kind.kind == "f":
        return draw.standard_normal(shape).astype(kind)
    return draw.integers(0, 2, shape).astype(kind)
