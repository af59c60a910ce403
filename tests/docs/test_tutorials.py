"""Every tutorial with console blocks runs word for word, and prints what it shows."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.checkout_files import ROOT, checkout_files
from tests.docs.reader_shell import ReaderShell
from tests.docs.tutorial_page import PageError, agrees, steps_of

TUTORIALS = ROOT / "docs" / "tutorials"
PROGRAMS = Path(sys.executable).parent
ROLES = (
    "model-designer",
    "researcher",
    "lab-engineer",
    "search-program",
    "contributor",
)
"""Roles of readers; each has a tutorial of this name."""

IN_CHECKOUT = "contributor"
"""The tutorial whose reader changes a checkout."""


@pytest.fixture
def reader(request: pytest.FixtureRequest) -> Iterator[ReaderShell]:
    """A reader with an empty home and a folder in it; its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lf", ignore_cleanup_errors=True) as name:
        home = Path(name)
        folder = home / "work"
        programs = [PROGRAMS]
        if request.getfixturevalue("role") == IN_CHECKOUT:
            copy_checkout(folder)
            programs = []
        else:
            folder.mkdir()
        yield ReaderShell(folder, home, programs)


def copy_checkout(folder: Path) -> None:
    """A copy of this checkout as after `make setup`, whose programs run the copy's modules."""
    for path in checkout_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / path, folder / path)
    somebody = ("-c", "user.name=Somebody", "-c", "user.email=somebody@example.org")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run(["git", *somebody, *words], cwd=folder, check=True)
    environment = folder / ".venv"
    venv.create(environment, symlinks=True, with_pip=False)
    (packages,) = environment.glob("lib/*/site-packages")
    own = [str(folder / name) for name in ("protos", "predictors", "agent", "controller")]
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "checkout.pth").write_text("\n".join([*own, *shared]), encoding="utf-8")
    python = environment / "bin" / "python"
    latfarm = environment / "bin" / "latfarm"
    latfarm.write_text(
        f"#!{python}\nfrom latfarm_controller.__main__ import main\nmain()\n", encoding="utf-8"
    )
    latfarm.chmod(0o755)
    for name in ("ruff", "codespell"):
        (environment / "bin" / name).symlink_to(PROGRAMS / name)


@pytest.mark.slow
@pytest.mark.timeout(360)
@pytest.mark.parametrize(
    "role",
    [
        # One Ray at a time: those that start it are in the group of the other tests that do.
        pytest.param(role, marks=pytest.mark.xdist_group("command"))
        for role in ROLES
    ],
)
def test_a_tutorial_runs_word_for_word(role: str, reader: ReaderShell) -> None:
    page = TUTORIALS / f"{role}.md"
    steps = steps_of(page)
    assert len(steps) >= 8
    ran = reader.run(steps)
    for step, found in zip(steps, ran.told, strict=False):
        place = f"{page.name}:{step.line}: $ {step.command}"
        assert found.code == step.code, f"{place}\n{found.printed}"
        shown = "\n".join(step.shown)
        assert agrees(step.shown, found.printed), f"{place}\n{shown}\nbut:\n{found.printed}"
    assert len(ran.told) == len(steps)
    assert ran.left == []


def test_every_page_with_console_blocks_is_a_role() -> None:
    with_commands = {page.stem for page in TUTORIALS.glob("*.md") if steps_of(page)}
    assert with_commands == set(ROLES)


@pytest.mark.parametrize("start", ["README.md", "docs/index.md", "mkdocs.yml"])
def test_every_role_finds_its_tutorial(start: str) -> None:
    text = (ROOT / start).read_text(encoding="utf-8")
    for role in ROLES:
        assert f"tutorials/{role}.md" in text


@pytest.mark.parametrize(
    ("shown", "printed", "agreed"),
    [
        ("", "", True),
        ("", "x\n", False),
        ("x", "x\n\n", True),
        ("x", "", False),
        ("x", "x\ny\n", False),
        ("x\n...", "x\n", True),
        ("x\n...", "x\ny\nz\n", True),
        ("x\n...", "y\nx\n", False),
        ("...", "", True),
        ("...\nx", "y\nx\n", True),
        ("...\nx", "x\ny\n", False),
        ("...\nx\n...\ny\n...", "a\nx\nb\ny\nc\n", True),
        ("...\ny\n...\nx\n...", "a\nx\nb\ny\nc\n", False),
        ("a\n...\na", "a\n", False),
        ("a\n...\na", "a\na\n", True),
        ("...\na\nb\n...", "a\nx\na\nb\n", True),
        ("1.25 ms", "9.5   ms\n", True),
        ("1.25 ms", "9 ms\n", False),
        ("12 graphs", "13 graphs\n", False),
        ("id ... is new", "id 7a is new\n", True),
        ("a (b) [c]", "a (b) [c]\n", True),
        ("a (b) [c]", "a b c\n", False),
        ("1.0e-05", "2.5e-07\n", True),
    ],
)
def test_what_is_shown_is_compared_with_what_is_printed(
    shown: str, printed: str, agreed: bool
) -> None:
    assert agrees(shown.splitlines(), printed) is agreed


def test_the_blocks_of_a_page_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n```sh\n$ not run\n```\n```console\n$ cat <<END\n> a\n>\n> b\n> END\na\n\n> c\n"
        "$ false\n$ echo $?\n1\n```\ntext\n```console\n$ true\n```\n",
        encoding="utf-8",
    )
    steps = steps_of(page)
    assert [step.command for step in steps] == [
        "cat <<END\na\n\nb\nEND",
        "false",
        "echo $?",
        "true",
    ]
    assert steps[0].shown == ("a", "", "> c")
    assert [step.code for step in steps] == [0, 1, 0, 0]
    assert steps[-1].line == 20


@pytest.mark.parametrize("text", ["```console\noutput\n```\n", "```console\n$ true\n"])
def test_a_block_that_cannot_be_understood_is_refused(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(PageError):
        steps_of(page)


@pytest.fixture
def role() -> str:
    return ""


def test_the_shell_tells_output_and_exit_codes(tmp_path: Path, reader: ReaderShell) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ export WHO=you\n$ echo hello $WHO; echo there >&2\nhello you\nthere\n"
        "$ cat missing 2> /dev/null\n$ echo $?\n1\n$ env | cut -d= -f1 | sort\n$ (exit 3)\n"
        "$ echo unreached\n```\n",
        encoding="utf-8",
    )
    told = reader.run(steps_of(page)).told
    assert [found.code for found in told] == [0, 0, 1, 0, 0, 3]
    assert told[1].printed == "hello you\nthere\n"
    assert told[3].printed == "1\n"
    variables = set(told[4].printed.split())
    assert {"HOME", "PATH", "WHO"} <= variables
    assert variables <= {"HOME", "PATH", "WHO", "PWD", "SHLVL", "_", "OLDPWD"} | {
        "TEST_RUN_OF_LATFARM"
    }


def test_what_a_page_leaves_behind_is_ended_and_told(tmp_path: Path, reader: ReaderShell) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ sleep 600 > /dev/null &\n$ true\n```\n", encoding="utf-8")
    shell = replace(reader, end_s=0.5)
    ran = shell.run(steps_of(page))
    assert [found.code for found in ran.told] == [0, 0]
    assert ran.left == ["sleep 600"]
    assert shell.run([]).left == []
