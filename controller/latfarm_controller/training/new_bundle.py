"""A new bundle gets its number when it is complete, because several processes may train at once.

A fit takes minutes. Until it has ended, its file lies beside the bundles of its platform under a
name that is no number, so that nobody takes it for a bundle.
"""

from __future__ import annotations

import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import UsageError
from latfarm_controller.training.bundles import SUFFIX, next_path, stored
from latfarm_controller.training.model_register import keep_register_locked, locked

_PLATFORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
"""Names of platforms that may become the name of a folder."""
LEFT_S = 24 * 3600.0
"""Age of an unfinished bundle, in seconds, from which on nobody writes it any more. It is written
within seconds, once its fit has ended."""


@contextmanager
def unnumbered_bundle(bundles_dir: Path, platform: str) -> Iterator[Path]:
    """The path for a bundle that is being made; what lies there after the block is removed.

    What processes that were killed have left there is removed, too.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform.

    Raises:
        UsageError: the platform's name leads to another folder.
    """
    folder = next_path(bundles_dir, platform).parent  # checks the name
    _remove_left(folder)
    path = folder / f".new-{secrets.token_hex(8)}{SUFFIX}"
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _remove_left(folder: Path) -> None:
    """Remove the unfinished bundles of processes that were killed."""
    for path in folder.glob("*.new-*"):
        with suppress(OSError):  # another process may have removed it
            if time.time() - path.stat().st_mtime > LEFT_S:
                path.unlink()


def numbered(path: Path) -> Path:
    """Give a complete bundle the next number of its platform; returns its new path.

    Args:
        path: what `unnumbered_bundle` gave, with a bundle.

    Raises:
        StoreError: the file cannot be moved, or the register cannot be read or written.
    """
    folder = path.parent
    with locked(folder):
        keep_register_locked(folder)
        kept = next_path(folder.parent, folder.name)
        with stored(kept):
            path.rename(kept)
    return kept


def take_in(bundles_dir: Path, path: Path) -> tuple[str, Path]:
    """Copy a bundle from another place into the bundles here, as the newest of its platform.

    It is a candidate, unless its platform had no bundle.

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
    with unnumbered_bundle(bundles_dir, platform) as copy:
        # The register that names it is flushed to the disk, so the bundle must be there before.
        with stored(copy), written_whole(copy, make_folder=True, durable=True) as part:
            shutil.copyfile(path, part)
        return platform, numbered(copy)
