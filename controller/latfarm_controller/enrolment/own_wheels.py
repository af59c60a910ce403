"""Finds wheels of this project: given in a folder, built from a checkout, or brought to a machine.

A controller that was deployed from wheels has no sources. Its deployment has put the wheels that
boards install into the folder `boards` of its environment; see `deployed`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlparse

from packaging.utils import canonicalize_name

from latfarm_controller.enrolment import wheels
from latfarm_controller.enrolment.deployed import boards_folder
from latfarm_controller.errors import UsageError


def own_wheels(names: Sequence[str], folder: Path, given: Path | None = None) -> list[Path]:
    """Return wheels of distributions of this project; build those of a checkout if needed.

    Args:
        names: the distributions.
        folder: the folder that keeps the wheels that were built.
        given: a folder with the wheels; if it is None, they are built from the checkout from which
            this controller runs, or taken from what its deployment has brought.

    Raises:
        UsageError: a wheel is not in the given folder, or there are neither sources nor wheels.
        WheelError: a wheel cannot be built.
    """
    if given is not None:
        return _found(names, given, f"--own-wheels {given}")
    brought = boards_folder()
    if brought.is_dir():
        return _found(names, brought, f"no --own-wheels: {brought}, which a deployment has filled,")
    sources = [source(name) for name in names]
    place = folder / "own" / _digest(sources)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".building-") as text:
            wheels.build(sources, Path(text) / "wheels")
            (Path(text) / "wheels").rename(place)
    return sorted(place.glob("*.whl"))


def source(name: str) -> Path:
    """Return the source folder from which a distribution runs.

    Raises:
        UsageError: the distribution does not run from a source folder.
    """
    try:
        text = importlib.metadata.distribution(name).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    url = json.loads(text)["url"] if text else ""
    path = Path(unquote(urlparse(url).path))
    if not url.startswith("file:") or not (path / "pyproject.toml").exists():
        raise UsageError(
            f"{name} does not run from a checkout here: give its wheel with --own-wheels"
        )
    return path


def _found(names: Sequence[str], folder: Path, told: str) -> list[Path]:
    """The newest wheel of each distribution in a folder."""
    found = [max(folder.glob(f"{_stem(name)}-*.whl"), default=None) for name in names]
    if None in found:
        raise UsageError(f"{told} must hold wheels of {' and '.join(names)}")
    return [path for path in found if path is not None]


def _digest(sources: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        for path in sorted(source.rglob("*")):
            shown = path.relative_to(source)
            if path.is_file() and not any(
                part.startswith(".") or part == "__pycache__" or part in ("build", "dist")
                for part in shown.parts
            ):
                data = path.read_bytes()
                digest.update(f"{source.name}/{shown}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def _stem(name: str) -> str:
    return canonicalize_name(name).replace("-", "_")
