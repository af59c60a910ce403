"""Bundles on disk: `<bundles>/<platform>/<number>.zip`. The highest number is the newest."""

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
from latfarm_controller.home import BUNDLES, home_without_settings
from latfarm_controller.nearest_names import hint

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

SAMPLE = "sample"
"""Name by which a command is asked for the sample bundle, which ships with the predictors."""
SUFFIX = ".zip"
"""Suffix of a bundle's file name."""
FITTED = ".fitted"
"""Folder beside those of the platforms, in which predictors keep what they fit when first asked."""
_PLATFORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
"""Names of platforms that may become the name of a folder."""


def own_folder() -> Path:
    """The folder of all bundles of this process's home.

    Raises:
        UsageError: a setting is wrong.
    """
    home = home_without_settings()
    if home is not None:
        return home / BUNDLES
    from latfarm_controller.config import load_config  # takes a tenth of a second

    return load_config().bundles_dir


def newest(bundles_dir: Path) -> dict[str, Path]:
    """The newest bundle of each platform, by platform name."""
    numbered = [path for path in bundles_dir.glob(f"*/*{SUFFIX}") if path.stem.isdecimal()]
    found: dict[str, Path] = {}
    for path in sorted(numbered, key=lambda path: (path.parent.name, int(path.stem))):
        found[path.parent.name] = path
    return found


def choose(bundles_dir: Path, platform: str) -> Path:
    """The newest bundle of a platform.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform; empty: the only one that has a bundle.

    Raises:
        UsageError: the platform has no bundle, or no platform is given and several have one. The
            message lists the platforms that have one.
    """
    found = newest(bundles_dir)
    known = ", ".join(found) or "none yet"
    if not platform:
        if len(found) == 1:
            return next(iter(found.values()))
        raise UsageError(
            f"several platforms have a bundle; choose one with --platform: {known}"
            if found
            else "no platform has a bundle yet; make one with latfarm characterize -p PLATFORM"
        )
    if platform not in found:
        raise UsageError(
            f"there is no bundle for platform {platform!r}; platforms with a bundle: {known}"
            f"{hint(platform, found)}; latfarm platforms lists those that boards offer, and "
            "latfarm characterize makes a bundle of one of them"
        )
    return found[platform]


def open_bundle(bundles_dir: Path, platform: str) -> PlatformPredictor:
    """The newest predictor of a platform.

    Raises:
        UsageError: see `choose`.
        BundleError: the bundle is damaged or of another version.
    """
    return load(choose(bundles_dir, platform))


def open_or_sample(bundles_dir: Path, platform: str) -> tuple[PlatformPredictor, bool]:
    """The newest predictor of a platform; the sample where no platform has a bundle yet.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform; `SAMPLE` names the sample; empty: the only one that has a bundle.

    Returns:
        The predictor, and whether it is the sample.

    Raises:
        UsageError: see `choose`.
        BundleError: the bundle is damaged or of another version.
    """
    found = newest(bundles_dir)
    if (platform == SAMPLE and SAMPLE not in found) or not (platform or found):
        from latfarm_predictors.sample import load_sample

        return load_sample(), True
    return open_bundle(bundles_dir, platform), False


def load(path: Path) -> PlatformPredictor:
    """Load the predictor of a bundle.

    Some parts of a predictor are fitted when they are first asked for. They are kept in the folder
    `FITTED` beside the bundles, so that the next process need not fit them.

    Raises:
        BundleError: the bundle is damaged or of another version.
    """
    from latfarm_predictors.bundle import load_bundle

    return load_bundle(path, path.parent.parent / FITTED if path.is_file() else None)


def digest(path: Path) -> str:
    """The SHA-256 digest of a bundle's file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def next_path(bundles_dir: Path, platform: str) -> Path:
    """The path of a platform's next bundle; bundles are numbered 0001, 0002, ...

    Raises:
        UsageError: the platform's name leads to another folder, or to a hidden one.
    """
    path_like = not platform or platform.startswith(".") or "/" in platform or "\\" in platform
    if path_like or not platform.isprintable():
        raise UsageError(f"{platform!r} is not a valid name of a platform: it is a path")
    folder = bundles_dir / platform
    numbers = [int(p.stem) for p in folder.glob(f"*{SUFFIX}") if p.stem.isdecimal()]
    return folder / f"{max(numbers, default=0) + 1:04d}{SUFFIX}"


def export(bundles_dir: Path, platform: str, path: Path) -> None:
    """Copy the newest bundle of a platform to a file.

    Raises:
        UsageError: there is no bundle, or the file's folder does not exist.
        StoreError: the file cannot be written; an older file of that name is unchanged.
    """
    source = choose(bundles_dir, platform)
    if os.path.isdir(path):  # noqa: PTH112 - pathlib raises where a name is too long
        raise UsageError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: there is no such folder; create it first")
    with _stored(path), written_whole(path) as part:
        shutil.copyfile(source, part)


def remove(bundles_dir: Path, platform: str, *, every: bool = False) -> list[Path]:
    """Remove the newest bundle of a platform, or all of them; returns the removed files.

    Raises:
        UsageError: the platform has no bundle.
        StoreError: a file cannot be removed.
    """
    last = choose(bundles_dir, platform)
    numbered = [path for path in last.parent.glob(f"*{SUFFIX}") if path.stem.isdecimal()]
    gone = sorted(numbered, key=lambda path: int(path.stem)) if every else [last]
    try:
        for path in gone:
            path.unlink()
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be removed: {error.strerror}") from error
    return gone


def take_in(bundles_dir: Path, path: Path) -> tuple[str, Path]:
    """Copy a bundle from another place into the bundles here, as the newest of its platform.

    Returns:
        The platform, and the path of the copy.

    Raises:
        UsageError: there is no such file, or the platform's name in it is not allowed.
        BundleError: the bundle is damaged or of another version; nothing is copied.
        StoreError: the copy cannot be written.
    """
    from latfarm_predictors.bundle import load_bundle

    if not path.is_file():
        raise UsageError(f"{path}: there is no such file; check the path")
    platform = load_bundle(path).platform
    # The name becomes a folder's name: a file from elsewhere must not choose a folder outside.
    if not _PLATFORM.fullmatch(platform):
        raise UsageError(
            f"{path} holds a bundle of {platform!r}, which is not a valid name of a platform; "
            "a name has up to 200 letters, digits, dots, pluses, hyphens and underscores"
        )
    kept = next_path(bundles_dir, platform)
    with _stored(kept), written_whole(kept, make_folder=True) as part:
        shutil.copyfile(path, part)
    return platform, kept


@contextmanager
def _stored(path: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be written into a `StoreError`."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
