"""What the controller's builder left behind a file that Vela compiled: Vela's own estimate.

On a real Ethos-U board the compiler's estimate stands as a predictor beside ours, so it is kept
with the measurement. It stands behind the end of the flatbuffer, where no reader of TFLite files
looks: JSON, its length in 8 bytes (little-endian), and a word to know it by.
"""

from __future__ import annotations

import json
from pathlib import Path

MAGIC = b"latfarm-vela-1\0\0"
_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 20


def estimate_of(path: Path) -> dict[str, str]:
    """Conditions to add to a result: `vela_estimate_ms`, and `vela_on_cpu` where it left something.

    Nothing for a file without such an end.
    """
    tail = _LENGTH_BYTES + len(MAGIC)
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        if size_bytes < tail:
            return {}
        file.seek(size_bytes - tail)
        end = file.read(tail)
        length = int.from_bytes(end[:_LENGTH_BYTES], "little")
        if end[_LENGTH_BYTES:] != MAGIC or not 0 < length <= min(_MOST_BYTES, size_bytes - tail):
            return {}
        file.seek(size_bytes - tail - length)
        text = file.read(length)
    try:
        told = json.loads(text)
        found = {
            "vela_estimate_ms": repr(float(told["latency_ms"])),
            "vela_version": str(told["version"]),
        }
        if told["on_cpu"]:
            found["vela_on_cpu"] = ", ".join(str(name) for name in told["on_cpu"])
    except (ValueError, KeyError, TypeError):
        return {}
    return found
