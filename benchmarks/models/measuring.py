"""The latency of one ONNX file in onnxruntime, on one thread; runs in a process of its own.

Usage: `python -m benchmarks.models.measuring FILE SECONDS`, which prints the median in ms.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

WARM_UP = 3
"""Number of runs that are not counted."""
LEAST_RUNS = 10
"""Least number of runs that are counted."""
TOKENS = 1000
"""Token ids are below this number, which every vocabulary holds."""
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}
"""Types of inputs that exports of the suite have."""


def inputs_of(session: Any) -> dict[str, Any]:
    """Random inputs of a model; sizes that the model leaves open are 1."""
    rng = np.random.default_rng(0)
    made = {}
    for told in session.get_inputs():
        shape = [size if isinstance(size, int) else 1 for size in told.shape]
        kind = _TYPES[told.type]
        drawn = rng.standard_normal(shape) if kind is np.float32 else rng.integers(0, TOKENS, shape)
        made[told.name] = drawn.astype(kind)
    return made


def median_ms(path: str, longest_s: float) -> float:
    """The median latency of a model in milliseconds, from runs of at most `longest_s` seconds."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = inputs_of(session)
    for _ in range(WARM_UP):
        session.run(None, given)
    taken_ms: list[float] = []
    until_s = time.perf_counter() + longest_s
    while len(taken_ms) < LEAST_RUNS or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        session.run(None, given)
        taken_ms.append(1000.0 * (time.perf_counter() - began_s))
    return median(taken_ms)


if __name__ == "__main__":
    print(median_ms(sys.argv[1], float(sys.argv[2])))
