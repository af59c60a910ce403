"""`docs/architecture.md` shows every folder of every package, and the layers that are enforced."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DISTRIBUTIONS = ("protos", "predictors", "agent", "controller")


def folders() -> set[str]:
    """All folders with Python modules in the four packages; paths begin with the package's name."""
    found = set()
    for distribution in DISTRIBUTIONS:
        package = ROOT / distribution / f"latfarm_{distribution}"
        for module in package.rglob("*.py"):
            found.add(module.parent.relative_to(ROOT / distribution).as_posix())
    return found


def layers() -> dict[str, list[list[str]]]:
    """The layers of each package in the import contracts, from the highest to the lowest."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        contract["containers"][0]: [
            [name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]
        ]
        for contract in config["tool"]["importlinter"]["contracts"]
        if "containers" in contract
    }


def table() -> dict[str, str]:
    """The last column of the table, by folder: what the folder may import."""
    rows = re.findall(r"^\| `(latfarm_[\w/]+)` \| .+ \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a folder is in the table twice"
    return dict(rows)


def test_the_table_has_every_folder_and_no_other() -> None:
    assert set(table()) == folders()


def test_the_table_says_what_the_contracts_enforce() -> None:
    may = table()
    for package, levels in layers().items():
        for above, below in itertools.pairwise(levels):
            for name in above:
                if f"{package}/{name}" in may:
                    words = ", ".join(f"`{name}`" for name in below) + " and below"
                    assert may[f"{package}/{name}"] == words


def test_the_layers_are_drawn_as_they_are() -> None:
    for package, levels in layers().items():
        drawn = "\n".join("  " + "  |  ".join(names) for names in levels)
        assert f"{package}\n{drawn}\n" in TEXT


def test_the_map_of_rooms_names_real_folders() -> None:
    named = set(re.findall(r"`((?:protos|predictors|agent|controller)/[\w/]*)`", CONTRIBUTING))
    assert len(named) >= 10
    for folder in named:
        assert (ROOT / folder).is_dir(), folder
    files = set(re.findall(r"`([\w/]+/[\w]+\.(?:py|md|toml))`", CONTRIBUTING))
    for file in files:
        assert (ROOT / file).is_file(), file
