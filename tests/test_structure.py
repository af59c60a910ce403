"""The shape of the code: no circles of imports, small folders, modules and functions."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "latfarm_protos": ROOT / "protos/latfarm_protos",
    "latfarm_predictors": ROOT / "predictors/latfarm_predictors",
    "latfarm_agent": ROOT / "agent/latfarm_agent",
    "latfarm_controller": ROOT / "controller/latfarm_controller",
}
"""The source folder of each package."""

TREES = (*PACKAGES.values(), ROOT / "tests", ROOT / "benchmarks", ROOT / "docs", ROOT / "examples")
"""The folders that hold Python code."""

MOST_MODULES = 20
"""The largest number of modules in one folder, `__init__.py` not counted."""

MOST_MODULE_LINES = 400
"""The largest number of lines in one module."""

MOST_FUNCTION_LINES = 60
"""The largest number of lines in one function, decorators not counted."""

DATA_TABLES: frozenset[str] = frozenset()
"""Modules and functions ("path" or "path:function") that may be longer: they are tables of data."""


def sources(folder: Path) -> Iterator[Path]:
    """The hand-written modules below a folder; generated stubs are left out."""
    for path in sorted(folder.rglob("*.py")):
        if not {".venv", "node_modules"}.intersection(path.parts) and "_pb2" not in path.name:
            yield path


def told(path: Path) -> str:
    """A path as messages and `DATA_TABLES` name it."""
    return path.relative_to(ROOT).as_posix()


def module_name(package: str, path: Path) -> str:
    """The dotted name under which a file of a package is imported."""
    parts = path.relative_to(PACKAGES[package].parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, name: str, modules: frozenset[str]) -> Iterator[str]:
    """The modules of the project that a module imports anywhere in it.

    Imports inside functions and under `TYPE_CHECKING` count. Importing a name from a package counts
    as importing the submodule of that name, and where there is none, the package.

    Args:
        tree: the module.
        name: its dotted name.
        modules: names of all modules of the project.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            wanted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import"
            base = node.module or ""
            longer = [f"{base}.{alias.name}" for alias in node.names]
            wanted = [each if each in modules else base for each in longer]
        else:
            continue
        yield from (each for each in wanted if each in modules and each != name)


def import_graph(package: str) -> dict[str, set[str]]:
    """For each module of a package, the modules of the same package that it imports."""
    paths = {module_name(package, path): path for path in sources(PACKAGES[package])}
    modules = frozenset(paths)
    return {
        name: set(imported(ast.parse(path.read_text()), name, modules))
        for name, path in paths.items()
    }


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a module, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_imports(package: str) -> None:
    graph = import_graph(package)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        pytest.fail(f"a circle of imports: {circle}")


def test_an_import_inside_a_function_or_for_type_checkers_counts() -> None:
    text = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from p.a import Thing\n"
        "def f():\n"
        "    from p import b, other\n"
        "    import p.c\n"
    )
    modules = frozenset({"p", "p.a", "p.b", "p.c", "p.d"})
    assert set(imported(ast.parse(text), "p.d", modules)) == {"p", "p.a", "p.b", "p.c"}


def test_folders_are_small() -> None:
    paths = [path for tree in TREES for path in sources(tree) if path.name != "__init__.py"]
    count = Counter(told(path.parent) for path in paths)
    large = {folder: n for folder, n in sorted(count.items()) if n > MOST_MODULES}
    assert not large, f"folders with more than {MOST_MODULES} modules: {large}"


def test_modules_are_short() -> None:
    lines = {told(path): path.read_text().count("\n") for tree in TREES for path in sources(tree)}
    long = {
        path: n for path, n in lines.items() if n > MOST_MODULE_LINES and path not in DATA_TABLES
    }
    assert not long, f"modules with more than {MOST_MODULE_LINES} lines: {long}"


def test_functions_are_short() -> None:
    long = {}
    for path in (path for tree in TREES for path in sources(tree)):
        for function in functions(path):
            assert function.end_lineno is not None
            lines = function.end_lineno - function.lineno + 1
            place = f"{told(path)}:{function.name}"
            if lines > MOST_FUNCTION_LINES and place not in DATA_TABLES:
                long[place] = lines
    assert not long, f"functions with more than {MOST_FUNCTION_LINES} lines: {long}"


def test_the_listed_tables_of_data_exist() -> None:
    for entry in DATA_TABLES:
        path, _, name = entry.partition(":")
        assert (ROOT / path).is_file(), entry
        assert not name or name in {function.name for function in functions(ROOT / path)}, entry
