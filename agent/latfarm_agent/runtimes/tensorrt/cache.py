"""The timing cache: the times of single kernels that TensorRT's builder measured in earlier builds.

With the cache, a second build takes seconds and chooses the same kernels as the first one. Its
bytes are passed to TensorRT only if this runtime wrote them, for the same TensorRT on the same GPU.
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
_LIMIT_BYTES = 256 << 20  # larger caches are not kept; our choice


class TimingCache:
    """One file for a TensorRT version, a GPU's name and its compute capability.

    Args:
        folder: folder of the file; None: nothing is kept.
        version: version of TensorRT.
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
        """Path of the file; None if nothing is kept."""
        return self._path

    def load(self) -> bytes:
        """Return what was saved last; empty if there is nothing. A damaged file is removed."""
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
        """Replace the file's content as a whole; return False if that failed."""
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
            # On a full or read-only disk, the next build only takes longer.
            if temporary is not None:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()
            return False
        return True

    def drop(self) -> None:
        """Remove the file."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _head(self, payload: bytes) -> bytes:
        # The digest includes the key, so that a file copied from another board does not match.
        digest = hashlib.sha256(self._key + payload).hexdigest()
        return _MAGIC + digest.encode() + b"\n"
