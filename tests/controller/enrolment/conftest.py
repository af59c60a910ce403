"""Wheels that tests make, and a stand-in for the package index."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from latfarm_controller.enrolment import wheels
from latfarm_controller.enrolment.target import WheelTarget

EXTRAS = ("toy", "young")


def make_wheel(
    folder: Path, name: str, version: str = "1.0", requires: Sequence[str] = (), tag: str = ""
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{stem}-{tag or 'py3-none-any'}.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {each}" for each in requires]
    lines += [f"Provides-Extra: {each}" for each in EXTRAS]
    files = {
        "dep/vendored/x.dist-info/METADATA": "Name: vendored\n",
        f"{stem}.dist-info/METADATA": "\n".join(lines) + "\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            # ZipInfo has a fixed date, so that an equal wheel made later is an equal file.
            archive.writestr(zipfile.ZipInfo(place), text)
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    folder = tmp_path / "own"
    make_wheel(folder, "latfarm-protos", requires=["proto>=2"])
    needs = ['toy>=1; extra == "toy"', "young; python_version >= '3.10' and extra == 'young'"]
    make_wheel(folder, "latfarm-agent", requires=["latfarm-protos", "base", *needs])
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace pip: `wheels.fetch` copies the wheels asked for, but not their requirements."""
    folder = tmp_path / "index"
    make_wheel(folder, "pip", "25.0")
    make_wheel(folder, "proto", "2.5")
    make_wheel(folder, "base", requires=["backport; python_version < '3.9'"])
    make_wheel(folder, "backport")
    make_wheel(folder, "toy", "1.2", ["base[toy]"])
    make_wheel(folder, "young")

    def fetch(wanted: Sequence[str], target: WheelTarget, pins: Sequence[str], place: Path) -> None:
        for each in wanted:
            name = each.split(">")[0].split("=")[0]
            (path,) = folder.glob(f"{name}-*.whl")
            (place / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(wheels, "fetch", fetch)
    return folder
