"""Bundles on disk: `<bundles>/<platform>/<version>.zip`, the newest version counts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_predictors.predictor import PlatformPredictor

SUFFIX = ".zip"


def newest(bundles_dir: Path) -> dict[str, Path]:
    """The newest bundle of each platform, by platform name."""
    found: dict[str, Path] = {}
    for path in sorted(bundles_dir.glob(f"*/*{SUFFIX}")):
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
            else "no platform has been characterised: latfarm characterize --platform P"
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
    from latfarm_predictors.bundle import load_bundle

    return load_bundle(choose(bundles_dir, platform))


def next_path(bundles_dir: Path, platform: str) -> Path:
    """Where the platform's next bundle belongs: 0001, 0002, ..."""
    folder = bundles_dir / platform
    numbers = [int(p.stem) for p in folder.glob(f"*{SUFFIX}") if p.stem.isdigit()]
    return folder / f"{max(numbers, default=0) + 1:04d}{SUFFIX}"


def export(bundles_dir: Path, platform: str, path: Path) -> None:
    """Copy the newest bundle of a platform to a file.

    Raises:
        UsageError: there is none, or the file's folder does not exist.
    """
    source = choose(bundles_dir, platform)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no such folder")
    shutil.copyfile(source, path)


def take_in(bundles_dir: Path, path: Path) -> tuple[str, Path]:
    """Keep a bundle from outside as the newest of its platform; (platform, where it is).

    Raises:
        UsageError: no such file.
        BundleError: it is damaged or of another version; nothing is kept.
    """
    from latfarm_predictors.bundle import load_bundle

    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    platform = load_bundle(path).platform
    kept = next_path(bundles_dir, platform)
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_suffix(".part")
    shutil.copyfile(path, part)
    part.replace(kept)
    return platform, kept
