"""Vela's own estimate, which the controller's builder appends to a file that Vela compiled.

The estimate is stored with each measurement on an Ethos-U board, so that it can be compared with
our predictions. It stands behind the end of the flatbuffer, where readers of TFLite files do not
look: a JSON object, its length in 8 bytes (little-endian), and `MAGIC`.
"""

from __future__ import annotations

import json
from pathlib import Path

MAGIC = b"latfarm-vela-1\0\0"
"""The last bytes of a file with an estimate."""
_LENGTH_BYTES = 8
_MOST_BYTES = 1 << 20  # bound on the length of the JSON object


def estimate_of(path: Path) -> dict[str, str]:
    """Return the conditions that a file's estimate adds to a result; none if the file has none.

    They are `vela_estimate_ms`, `vela_version`, and `vela_on_cpu` if operators stay on the CPU.
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
