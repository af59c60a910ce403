"""The files of a model that consists of several: the model itself, and companions beside it.

A companion holds data that the model names, as ONNX models do that are larger than 2 GB. It is
uploaded as a blob of its own, and a measurement lists the name and the hash of each companion. In
the folder that a worker may read, it lies under that name beside the model.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.errors import RequestError
from latfarm_agent.files.blobs import BlobStore, check_sha256

MOST_COMPANIONS = 64
"""Most companions of a model; with files of 1 GiB, as our controller writes them, 64 GiB."""

_NAME = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
"""Names of companions: plain names of files, which lead to no other folder on any system."""


def check_companions(companions: Mapping[str, str], model: str) -> None:
    """Check the names and hashes of a model's companions.

    Args:
        companions: the hash of each companion by its name.
        model: the file name of the model itself.

    Raises:
        RequestError: there are too many, or one has a name that is no plain name of a file, or
            that of the model.
        DigestError: a hash is malformed.
    """
    if len(companions) > MOST_COMPANIONS:
        raise RequestError(
            f"the model has {len(companions)} companions; a board takes {MOST_COMPANIONS}"
        )
    for name, sha256 in companions.items():
        if not _NAME.fullmatch(name) or name == model:
            raise RequestError(
                f"{name[:80]!r} cannot be the name of a companion: letters, digits, '.', '_' and "
                "'-' are allowed, after a first letter or digit"
            )
        check_sha256(sha256)


def acquire_all(blobs: BlobStore, names: Sequence[str]) -> Path:
    """Keep all blobs of a model from eviction until `release_all`; gives the file of the first.

    Raises:
        DigestError, BlobNotFoundError: as `BlobStore.acquire`; then none of them is kept.
    """
    kept: list[str] = []
    paths: list[Path] = []
    try:
        for name in names:
            paths.append(blobs.acquire(name))
            kept.append(name)
    except BaseException:
        release_all(blobs, kept)
        raise
    return paths[0]


def release_all(blobs: BlobStore, names: Sequence[str]) -> None:
    """End a use that began with `acquire_all`."""
    for name in names:
        blobs.release(name)


def distrust_all(blobs: BlobStore, names: Sequence[str]) -> None:
    """Hash these blobs again at their next use."""
    for name in names:
        blobs.distrust(name)
