"""The simulated boards of the benchmarks and tests, whose latencies are known exactly."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from latfarm_agent.runtimes.simulated.built_in import BUILT_IN, NOISE, PROFILES

__all__ = ["NOISE", "PROFILES", "profile", "write"]


def profile(kind: str, *, noise: float = NOISE, seed: int = 0) -> dict[str, Any]:
    """A board's profile: a built-in one, or "drawn", with tiles and rates drawn by `seed`."""
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
        found = dict(BUILT_IN[kind])
    name = f"sim-{kind}{seed if kind == 'drawn' else ''}"
    return {"platform": name, "noise": noise, "session_noise": noise / 3, "seed": seed, **found}


def write(kind: str, path: Path, *, noise: float = NOISE, seed: int = 0) -> str:
    """Write a profile for an agent; gives the platform's name."""
    found = profile(kind, noise=noise, seed=seed)
    path.write_text(json.dumps(found))
    return str(found["platform"])
