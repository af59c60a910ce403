"""Large models in files of this host, which are removed when nobody needs them any more."""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path


class ModelOnDisk:
    """The bytes of a model in a file, which is removed when this object is.

    So the memory of the controller does not grow with the models that wait for boards, and a model
    is still there after the process that built it has died.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._finalizer = weakref.finalize(self, path.unlink, missing_ok=True)

    async def read(self) -> bytes:
        """The bytes of the model.

        Raises:
            OSError: the file cannot be read.
        """
        return await asyncio.to_thread(self.path.read_bytes)
