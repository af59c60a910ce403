"""The size of the processor's caches, and how to empty them without numpy."""

from __future__ import annotations

from pathlib import Path

DEFAULT_BYTES = 64 << 20
"""How much is read to empty caches of unknown size."""

MOST_BYTES = 128 << 20
"""Most that is read. A server's last level of 300 MB is shared by many machines, and what a network
touches between two runs of a kernel hardly fills it; reading 600 MB took 54 ms before each run."""

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_bytes(core: int = 0, root: Path = Path("/")) -> int | None:
    """Size of the largest data cache that `core` sees; None where the kernel does not tell."""
    sizes = []
    folder = root / f"sys/devices/system/cpu/cpu{core}/cache"
    try:
        found = list(folder.glob("index*"))
    except OSError:  # it may not be listed, as on Android
        found = []
    for index in found:
        try:
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
            size = int(text[:-1]) * _UNITS[text[-1]] if text[-1:] in _UNITS else int(text)
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            sizes.append(size)
    return max(sizes) if sizes else None


class CacheFlusher:
    """Empties the caches by reading through a buffer of twice the last level's size.

    It reads `MOST_BYTES` at most: of a larger last level, only the levels above it are emptied. The
    buffer is made at the first flush and then kept; `size_bytes` tells its size.
    """

    def __init__(self, last_level: int | None) -> None:
        self._wanted = min(2 * last_level, MOST_BYTES) if last_level else DEFAULT_BYTES
        self._buffer = bytearray()

    @property
    def size_bytes(self) -> int:
        """Size of the buffer; 0 before the first flush."""
        return len(self._buffer)

    def flush(self) -> None:
        """Read the whole buffer: about 10 ms for 72 MB."""
        if not self._buffer:
            # The buffer is written once, as untouched pages all map to the kernel's one page of
            # zeros, which fits any cache. It is read afterwards, as a long write may bypass the
            # caches.
            self._buffer = bytearray(b"\x02") * self._wanted
        self._buffer.find(b"\x01")
