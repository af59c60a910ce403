"""The simulated boards of the benchmarks and tests, whose latencies are known exactly."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

NOISE = 0.03
"""Relative standard deviation of a run, by default."""
_CLAMPS = [["Conv", "BatchNormalization"], ["Conv", "Relu"], ["Conv", "Clip"]]

PROFILES: dict[str, dict[str, Any]] = {
    # This board has wide tiles, fast arithmetic and slow transfers.
    "npu": {
        "peak_macs_per_ms": 1e9,
        "vector_ops_per_ms": 4e7,
        "bandwidth_bytes_per_ms": 8e6,
        "overhead_ms": 0.004,
        "call_overhead_ms": 0.3,
        "io_bytes_per_ms": 1.5e6,
        "tiles": {"out_channels": 32, "in_channels": 16, "width": 4},
        "fused_pairs": [*_CLAMPS, ["Conv", "Add"], ["Conv", "Sigmoid"], ["Add", "Relu"]],
        "multi_inbound": 2,
    },
    "gpu": {
        "peak_macs_per_ms": 4e8,
        "vector_ops_per_ms": 6e7,
        "bandwidth_bytes_per_ms": 2.5e7,
        "overhead_ms": 0.02,
        "call_overhead_ms": 0.15,
        "tiles": {"out_channels": 64, "in_channels": 4, "width": 8},
        "fused_pairs": [*_CLAMPS, ["Conv", "Add"], ["Add", "Relu"], ["MaxPool", "Relu"]],
        "multi_inbound": 1,
    },
    "cpu": {
        "peak_macs_per_ms": 3e7,
        "vector_ops_per_ms": 8e6,
        "bandwidth_bytes_per_ms": 1.2e7,
        "overhead_ms": 0.003,
        "call_overhead_ms": 0.01,
        "cold_bytes_per_ms": 6e6,
        "tiles": {"out_channels": 16, "in_channels": 1, "width": 2},
        "fused_pairs": [["Conv", "BatchNormalization"], ["Conv", "Relu"], ["Gemm", "Relu"]],
    },
}


def profile(kind: str, *, noise: float = NOISE, seed: int = 0) -> dict[str, Any]:
    """A board's profile: one of `PROFILES`, or "drawn", with tiles and rates drawn by `seed`."""
    if kind == "drawn":
        draw = Random(f"board {seed}")
        found = dict(PROFILES[draw.choice(sorted(PROFILES))])
        found["tiles"] = {
            "out_channels": draw.choice((8, 12, 20, 24, 40, 48)),
            "in_channels": draw.choice((1, 3, 6, 12, 20)),
            "width": draw.choice((1, 2, 3, 5, 7)),
        }
        for name in ("peak_macs_per_ms", "bandwidth_bytes_per_ms", "overhead_ms"):
            found[name] *= 4 ** draw.uniform(-1.0, 1.0)
    else:
        found = dict(PROFILES[kind])
    name = f"sim-{kind}{seed if kind == 'drawn' else ''}"
    return {"platform": name, "noise": noise, "session_noise": noise / 3, "seed": seed, **found}


def write(kind: str, path: Path, *, noise: float = NOISE, seed: int = 0) -> str:
    """Write a profile for an agent; gives the platform's name."""
    found = profile(kind, noise=noise, seed=seed)
    path.write_text(json.dumps(found))
    return str(found["platform"])
