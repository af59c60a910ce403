"""Bundles on disk: `<bundles>/<platform>/<number>.zip`, the highest number counts."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import StoreError, UsageError

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

SUFFIX = ".zip"
FITTED = ".fitted"
"""Folder among the platforms' of what follows from bundles alone; see `fitted_cache`."""
_PLATFORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")


def newest(bundles_dir: Path) -> dict[str, Path]:
    """The newest bundle of each platform, by platform name."""
    numbered = [path for path in bundles_dir.glob(f"*/*{SUFFIX}") if path.stem.isdecimal()]
    found: dict[str, Path] = {}
    for path in sorted(numbered, key=lambda path: (path.parent.name, int(path.stem))):
        found[path.parent.name] = path
    return found


def choose(bundles_dir: Path, platform: str) -> Path:
    """The newest bundle of a platform; the only one where the platform is not named.

    Raises:
        UsageError: there is none, or several and no name; lists the known platforms.
    """
    found = newest(bundles_dir)
    known = ", ".join(found) or "none yet"
    if not platform:
        if len(found) == 1:
            return next(iter(found.values()))
        raise UsageError(
            f"which platform? --platform is one of: {known}"
            if found
            else "no platform has been characterised: latfarm characterize -p PLATFORM"
        )
    if platform not in found:
        raise UsageError(
            f"no bundle of platform {platform!r}; known: {known}; "
            f"latfarm characterize --platform {platform} makes one"
        )
    return found[platform]


def open_bundle(bundles_dir: Path, platform: str) -> PlatformPredictor:
    """The newest predictor of a platform.

    Raises:
        UsageError: see `choose`.
        BundleError: the bundle is damaged or of another version.
    """
    return load(choose(bundles_dir, platform))


def load(path: Path) -> PlatformPredictor:
    """A predictor that keeps what it fits when first asked for beside the bundles of its home.

    Raises:
        BundleError: the bundle is damaged or of another version.
    """
    from latfarm_predictors.bundle import load_bundle

    return load_bundle(path, path.parent.parent / FITTED if path.is_file() else None)


def digest(path: Path) -> str:
    """Of a bundle's file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def next_path(bundles_dir: Path, platform: str) -> Path:
    """Where the platform's next bundle belongs: 0001, 0002, ..."""
    folder = bundles_dir / platform
    numbers = [int(p.stem) for p in folder.glob(f"*{SUFFIX}") if p.stem.isdecimal()]
    return folder / f"{max(numbers, default=0) + 1:04d}{SUFFIX}"


def export(bundles_dir: Path, platform: str, path: Path) -> None:
    """Copy the newest bundle of a platform to a file.

    Raises:
        UsageError: there is none, or the file's folder does not exist.
        StoreError: the file cannot be written; what was there before stays.
    """
    source = choose(bundles_dir, platform)
    if os.path.isdir(path):  # noqa: PTH112 - pathlib raises where a name is too long
        raise UsageError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder")
    with _stored(path), written_whole(path) as part:
        shutil.copyfile(source, part)


def take_in(bundles_dir: Path, path: Path) -> tuple[str, Path]:
    """Keep a bundle from outside as the newest of its platform; (platform, where it is).

    Raises:
        UsageError: no such file, or its platform has a name that none can have.
        BundleError: it is damaged or of another version; nothing is kept.
        StoreError: it cannot be kept.
    """
    from latfarm_predictors.bundle import load_bundle

    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    platform = load_bundle(path).platform
    # It names a folder of ours: a stranger's file must not choose any other.
    if not _PLATFORM.fullmatch(platform):
        raise UsageError(f"{path}: {platform!r} is no name of a platform")
    kept = next_path(bundles_dir, platform)
    with _stored(kept), written_whole(kept, make_folder=True) as part:
        shutil.copyfile(path, part)
    return platform, kept


@contextmanager
def _stored(path: Path) -> Iterator[None]:
    """Tell of a file that cannot be written as the store does."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
