"""Each distribution has what a wheel needs: a README, the licence, and one version."""

from __future__ import annotations

import importlib
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = ("protos", "agent", "predictors", "controller")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_readme_licence_and_version(name: str) -> None:
    folder = ROOT / name
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = (folder / project["readme"]).read_text(encoding="utf-8")
    assert readme.startswith(f"# {project['name']}\n")
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    package = importlib.import_module(f"latfarm_{name}")
    assert package.__version__ == project["version"] == version(project["name"])
