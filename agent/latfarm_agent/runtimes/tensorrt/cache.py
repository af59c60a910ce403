"""The timing cache: what the builder measured of single kernels, kept from one build to the next.

With it a second build takes seconds, and chooses the kernels that the first one chose. Its bytes
are only given to TensorRT if this runtime wrote them, for this TensorRT on this GPU.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from pathlib import Path

from latfarm_agent.runtimes.cuda import CudaDevice

_MAGIC = b"latfarm timing cache 1\n"
_DIGEST_BYTES = 64  # a SHA-256 in hex
_LIMIT_BYTES = 256 << 20


class TimingCache:
    """One file for a TensorRT version, a GPU's name and its compute capability.

    Args:
        folder: where it lies; None: nothing is kept.
        version: of TensorRT.
        device: the GPU.
    """

    def __init__(self, folder: Path | None, version: str, device: CudaDevice) -> None:
        self._key = f"{version}\n{device.name}\n{device.capability}\n".encode()
        self._path: Path | None = None
        if folder is not None:
            capability = "".join(map(str, device.capability))
            gpu = re.sub(r"[^A-Za-z0-9]+", "-", device.name).strip("-")
            told = hashlib.sha256(self._key).hexdigest()[:8]
            self._path = folder / f"timing-{version}-{gpu}-sm{capability}-{told}.cache"

    @property
    def path(self) -> Path | None:
        """Where it is kept."""
        return self._path

    def load(self) -> bytes:
        """What was saved last; empty where there is nothing, or it is damaged and was dropped."""
        if self._path is None:
            return b""
        try:
            data = self._path.read_bytes()
        except OSError:
            return b""
        head = len(_MAGIC) + _DIGEST_BYTES + 1
        payload = data[head:]
        if data[:head] != self._head(payload):
            self.drop()
            return b""
        return payload

    def save(self, payload: bytes) -> bool:
        """Keep these bytes instead; whole or not at all. False where they could not be kept."""
        if self._path is None or len(payload) > _LIMIT_BYTES:
            return False
        temporary: str | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(prefix=".timing-", dir=str(self._path.parent))
            with os.fdopen(handle, "wb") as file:
                file.write(self._head(payload) + payload)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self._path)
        except OSError:
            # A full or read-only disk costs the next build its head start, nothing else.
            if temporary is not None:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
            return False
        return True

    def drop(self) -> None:
        """Forget what was saved."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _head(self, payload: bytes) -> bytes:
        # The key is part of the digest: a file copied from another board is no match.
        digest = hashlib.sha256(self._key + payload).hexdigest()
        return _MAGIC + digest.encode() + b"\n"
