"""Bundles on disk: `<bundles>/<platform>/<number>.zip`.

The highest number is the newest. Predictions use the promoted one, which the platform's register
names (`model_register`); where there is no register, that is the newest.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.home import BUNDLES, home_without_settings
from latfarm_controller.nearest_names import hint
from latfarm_controller.training.model_register import (
    BUNDLE_SUFFIX,
    changed_register,
    now_s,
    numbers_in,
    read_register,
)
from latfarm_controller.training.model_register import FILE as REGISTER

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

SAMPLE = "sample"
"""Name by which a command is asked for the sample bundle, which ships with the predictors."""
SUFFIX = BUNDLE_SUFFIX
"""Suffix of a bundle's file name."""
FITTED = ".fitted"
"""Folder beside those of the platforms, in which predictors keep what they fit when first asked."""

_log = logging.getLogger(__name__)

FileState = tuple[int, int, int]
"""What tells a file from one that took its place: inode, time of the last change, size."""


def file_state(path: Path) -> FileState | None:
    """The state of a file; None if there is none, or it cannot be looked at."""
    try:
        told = path.stat()
    except OSError:
        return None
    return told.st_ino, told.st_mtime_ns, told.st_size


def own_folder() -> Path:
    """The folder of all bundles of this process's home.

    Raises:
        UsageError: a setting is wrong.
    """
    home = home_without_settings()
    if home is not None:
        return home / BUNDLES
    from latfarm_controller.config import load_config  # it is slow to import

    return load_config().bundles_dir


def newest(bundles_dir: Path) -> dict[str, Path]:
    """The newest bundle of each platform, by platform name."""
    numbered = [path for path in bundles_dir.glob(f"*/*{SUFFIX}") if path.stem.isdecimal()]
    found: dict[str, Path] = {}
    for path in sorted(numbered, key=lambda path: (path.parent.name, int(path.stem))):
        found[path.parent.name] = path
    return found


def promoted(bundles_dir: Path) -> dict[str, Path]:
    """The bundle in use of each platform, by platform name.

    A platform whose register cannot be read is left out with a warning.
    """
    used = {platform: promoted_of(bundles_dir, platform) for platform in newest(bundles_dir)}
    return {platform: path for platform, path in used.items() if path is not None}


def promoted_of(bundles_dir: Path, platform: str) -> Path | None:
    """The bundle in use of one platform; the folders of others are not looked at.

    Returns:
        None if it has no bundle, or, with a warning, if its register cannot be read.
    """
    if not platform or platform.startswith(".") or Path(platform).name != platform:
        return None  # such a name is a path
    folder = bundles_dir / platform
    try:
        number = read_register(folder).promoted
    except StoreError as error:
        if numbers_in(folder):
            _log.warning("no bundle of %s is used: %s", platform, error)
        return None
    return folder / f"{number}{SUFFIX}" if number else None


def choose(bundles_dir: Path, platform: str, number: str = "") -> Path:
    """The bundle in use of a platform, or the one with a number.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform; empty: the only one that has a bundle.
        number: the number of the model; empty: the one in use.

    Raises:
        UsageError: the platform has no bundle or none of that number, or no platform is given and
            several have one. The message lists what there is.
        StoreError: the register of the platform's models cannot be read.
    """
    in_use = promoted_of(bundles_dir, platform)
    if in_use is not None:
        return in_use if not number else _of_number(bundles_dir, platform, number)
    found = promoted(bundles_dir)
    known = ", ".join(found) or f"none yet (latfarm predict -p {SAMPLE} needs none)"
    if not platform:
        if len(found) == 1:
            return next(iter(found.values()))
        raise UsageError(
            f"several platforms have a bundle; choose one with --platform: {known}"
            if found
            else "no platform has a bundle yet; make one with latfarm characterize -p PLATFORM"
        )
    if platform in newest(bundles_dir):
        read_register(bundles_dir / platform)  # raises the error that left it out
    if platform == SAMPLE:
        raise UsageError(
            "the sample bundle is a part of latfarm, which latfarm predict alone reads; "
            f"platforms with a bundle: {known}"
        )
    raise UsageError(
        f"there is no bundle for platform {platform!r}; platforms with a bundle: {known}"
        f"{hint(platform, (*found, SAMPLE))}; latfarm platforms lists those of boards, and "
        "latfarm characterize makes a bundle of one of them"
    )


def _of_number(bundles_dir: Path, platform: str, number: str) -> Path:
    """The bundle of a platform with a number; leading zeros may be left out.

    Raises:
        UsageError: there is none.
    """
    known = numbers_in(bundles_dir / platform)
    same = [each for each in known if number.isdecimal() and int(each) == int(number)]
    if not same:
        raise UsageError(
            f"there is no model {number!r} of {platform}; its models are: {', '.join(known)}"
        )
    return bundles_dir / platform / f"{same[0]}{SUFFIX}"


def open_bundle(bundles_dir: Path, platform: str) -> PlatformPredictor:
    """The predictor in use of a platform.

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
        StoreError: the register of the platform's models cannot be read.
    """
    path_like = not platform or platform.startswith(".") or "/" in platform or "\\" in platform
    if path_like or not platform.isprintable():
        raise UsageError(f"{platform!r} is not a valid name of a platform: it is a path")
    folder = bundles_dir / platform
    # A number is not used again, because the register's history still names it.
    history = [change.model for change in read_register(folder).history if change.model]
    numbers = [int(name) for name in (*numbers_in(folder), *history)]
    return folder / f"{max(numbers, default=0) + 1:04d}{SUFFIX}"


def export(bundles_dir: Path, platform: str, path: Path, number: str = "") -> None:
    """Copy the bundle in use of a platform, or the one with a number, to a file.

    Raises:
        UsageError: there is no bundle, or the file's folder does not exist.
        StoreError: the file cannot be written; an older file of that name is unchanged.
    """
    source = choose(bundles_dir, platform, number)
    if os.path.isdir(path):  # noqa: PTH112 - pathlib raises where a name is too long
        raise UsageError(f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: there is no such folder; create it first")
    with stored(path), written_whole(path) as part:
        shutil.copyfile(source, part)


def remove(
    bundles_dir: Path, platform: str, *, every: bool = False, number: str = ""
) -> list[Path]:
    """Remove the bundle in use of a platform, another one, or all; returns the removed files.

    If the bundle in use goes, the one that was in use before is used again.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform.
        every: remove all bundles of the platform.
        number: the number of the model to remove; empty: the one in use.

    Raises:
        UsageError: the platform has no bundle, or none of that number.
        StoreError: a file cannot be removed, or the register cannot be changed.
    """
    chosen = choose(bundles_dir, platform, number)
    folder = chosen.parent
    gone = [folder / f"{n}{SUFFIX}" for n in numbers_in(folder)] if every else [chosen]
    if (folder / REGISTER).exists():  # without one, the highest number that is left is in use
        # The register first: a crash in between leaves a bundle that is not in use.
        with changed_register(folder) as register:
            register[0] = register[0].without({path.stem for path in gone}, at_s=now_s())
    try:
        for path in gone:
            path.unlink()
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be removed: {error.strerror}") from error
    return gone


@contextmanager
def stored(path: Path) -> Iterator[None]:
    """Turn the error of a file that cannot be written into a StoreError that names the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
