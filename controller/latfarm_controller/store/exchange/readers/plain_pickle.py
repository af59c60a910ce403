"""Reads files of `torch.save` that hold plain lists, dictionaries, texts and numbers.

Such a file is a ZIP archive with a pickle. A pickle may run any code when it is loaded. Here it may
name no class and no function, and so it can make plain values alone; torch is not needed.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

from latfarm_controller.errors import UsageError

LARGEST_BYTES = 64 << 20
"""Largest pickle that is read, in bytes; HELP's largest has 1.5 MB."""


class _PlainUnpickler(pickle.Unpickler):
    """Loads plain values alone."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuse every class and every function."""
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is no plain value")


def read_plain(path: Path) -> Any:
    """The value in a file.

    Raises:
        UsageError: the file cannot be read, is too large, or holds more than plain values.
    """
    try:
        data = _pickle_of(path)
        return _PlainUnpickler(io.BytesIO(data)).load()
    # A damaged pickle may raise almost anything.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(f"{path}: this file holds no plain values of torch: {reason}") from error


def _pickle_of(path: Path) -> bytes:
    """The pickle in a file.

    Raises:
        ValueError: the file has none, several, or one that is too large.
    """
    with zipfile.ZipFile(path) as archive:
        (entry,) = [each for each in archive.infolist() if each.filename.endswith("/data.pkl")]
        with archive.open(entry) as file:
            data = file.read(LARGEST_BYTES + 1)
    if len(data) > LARGEST_BYTES:
        raise ValueError(f"the pickle has more than {LARGEST_BYTES} bytes")
    return data
