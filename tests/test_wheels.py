"""Each distribution has what a wheel needs: a README, the licence, and one version."""

from __future__ import annotations

import ast
import importlib
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LITERT = "ai-edge-litert"
"""What the controller uses where it happens to be there."""
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


def imports(folder: Path) -> Iterator[str]:
    """The top modules that the modules of a folder import, wherever in them."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module.partition(".")[0]


def declared(name: str) -> set[str]:
    """The distributions that one of ours may need, by what it tells."""
    text = (ROOT / name / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    return {canonicalize_name(Requirement(each).name) for group in groups for each in group}


def test_the_controller_declares_what_it_imports() -> None:
    """What another distribution happens to bring may go away with its next version."""
    told = {*declared("controller"), *declared("predictors"), LITERT}
    owners = packages_distributions()
    missing = {
        name
        for name in imports(ROOT / "controller" / "latfarm_controller")
        if name not in sys.stdlib_module_names
        and name != "latfarm_controller"
        and name in owners
        and not told & {canonicalize_name(owner) for owner in owners[name]}
    }
    assert not missing
