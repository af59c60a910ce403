"""Simulated boards that are built in: `latfarm-agent serve --simulate npu` needs no file.

Their latencies are known exactly. Benchmarks and tests of this project use the same boards.
"""

from __future__ import annotations

from typing import Any, Mapping

NOISE = 0.03
"""Standard deviation of a run as a share of its latency: about that of a quiet small board."""
_CLAMPS = [["Conv", "BatchNormalization"], ["Conv", "Relu"], ["Conv", "Clip"]]

PROFILES: Mapping[str, Mapping[str, Any]] = {
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
"""What each board is able to do whose time of a model is the sum of its kernels; all else is as in
`profile.BoardProfile`."""

NOT_ADDITIVE: Mapping[str, Mapping[str, Any]] = {
    # This board runs branches beside each other.
    "branches": {
        "peak_macs_per_ms": 2e8,
        "vector_ops_per_ms": 3e7,
        "bandwidth_bytes_per_ms": 1.5e7,
        "overhead_ms": 0.008,
        "call_overhead_ms": 0.1,
        "streams": 4,
        "sync_ms": 0.004,
        "tiles": {"out_channels": 32, "in_channels": 4, "width": 4},
        "fused_pairs": [*_CLAMPS, ["Conv", "Add"], ["Add", "Relu"]],
        "multi_inbound": 1,
    },
    # This board keeps most of what the next kernel reads on the chip.
    "overlap": {
        "peak_macs_per_ms": 2e8,
        "vector_ops_per_ms": 3e7,
        "bandwidth_bytes_per_ms": 6e6,
        "overhead_ms": 0.006,
        "call_overhead_ms": 0.1,
        "overlap": 0.8,
        "tiles": {"out_channels": 16, "in_channels": 8, "width": 4},
        "fused_pairs": [*_CLAMPS, ["Add", "Relu"]],
    },
}
"""The same of boards whose time of a model is not the sum of its kernels, on which correctors of
sums can be judged. Benchmarks that draw boards draw from `PROFILES`."""

BUILT_IN: Mapping[str, Mapping[str, Any]] = {**PROFILES, **NOT_ADDITIVE}
"""All built-in boards by their names."""


def built_in(kind: str) -> dict[str, Any]:
    """The content of the profile of a built-in board; its platform is named `sim-KIND`."""
    return {
        "platform": f"sim-{kind}",
        "noise": NOISE,
        "session_noise": NOISE / 3,
        **BUILT_IN[kind],
    }
