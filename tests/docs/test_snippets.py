"""Snippets of the docs: every command and option exists, and every import works."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from latfarm_controller.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "examples" / "README.md",
    )
    if page.name != "cli.md"  # generated from the commands themselves
)
LATFARM: Any = typer.main.get_command(app)


def named(page: Path) -> str:
    """The name of a page in the names of tests."""
    return str(page.relative_to(ROOT))


def code_blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The language and the text of each code block of a page."""
    text = page.read_text(encoding="utf-8")
    yield from re.findall(r"^ *```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[list[str]]:
    """The `latfarm` commands of a page's shell blocks, as words."""
    for language, text in code_blocks(page):
        if language not in ("", "sh", "bash", "console"):
            continue
        for line in text.replace("\\\n", " ").splitlines():
            plain = re.sub(r"^\$ |^\w+=\S+ |^\S*/(?=latfarm )", "", line.strip())
            if plain.startswith("latfarm "):
                yield shlex.split(plain, comments=True)


def options(command: Any) -> set[str]:
    """The options of a command, and --help."""
    return {name for parameter in command.params for name in parameter.opts} | {"--help"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_exist_with_their_options(page: Path) -> None:
    for words in commands(page):
        command: Any = LATFARM
        known = options(LATFARM)
        for word in words[1:]:
            found = getattr(command, "commands", {}).get(word)
            if found is not None:
                command = found
                known |= options(command)
            elif re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in known, f"{' '.join(words)}: {word}"
        assert command is not LATFARM, " ".join(words)
        assert not hasattr(command, "commands") or command.invoke_without_command, " ".join(words)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_imports_work(page: Path) -> None:
    for language, text in code_blocks(page):
        if language != "python":
            continue
        tree = ast.parse(text)
        tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        exec(compile(tree, str(page), "exec"), {})


def test_there_are_commands_and_imports() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 50
    languages = [language for page in PAGES for language, _ in code_blocks(page)]
    assert languages.count("python") >= 6
