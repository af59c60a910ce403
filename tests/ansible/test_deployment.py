"""The scripts that keep, restore and remove what a board runs, on boards made of files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROLES = Path(__file__).parents[2] / "ansible/collections/ansible_collections/latfarm/farm/roles"
DEPLOYMENT = ROLES / "agent/files/deployment.sh"
PRUNE = ROLES / "agent/files/prune-releases.sh"

PLAIN = "-"
SHARED = "/agents/phone-1"


def run(root: Path, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(script), *words],
        env={**os.environ, "LATFARM_ROOT": str(root)},
        capture_output=True,
        text=True,
    )


def deploy(root: Path, *words: str) -> None:
    done = run(root, DEPLOYMENT, *words)
    assert done.returncode == 0, done.stderr


def prune(root: Path, *words: str) -> list[str]:
    done = run(root, PRUNE, *words)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split())


def releases(root: Path, *names: str) -> None:
    """Make releases, the oldest first."""
    for number, name in enumerate(names):
        folder = root / "opt/latfarm/releases" / name
        folder.mkdir(parents=True)
        (folder / "release.json").write_text("{}")
        os.utime(folder, (1000 + number, 1000 + number))


class FileBoard:
    """A board made of files: its unit, its configuration, and the link to its release."""

    def __init__(self, root: Path, place: str) -> None:
        below, name = ("", "") if place == PLAIN else (place, place.rpartition("/")[2])
        units = root / "etc/systemd/system"
        self.unit = units / f"latfarm-agent{'@' + name if name else ''}.service"
        self.config = root / f"etc/latfarm{below}/agent.json"
        self.rules = root / f"etc/udev/rules.d/70-latfarm{'-' + name if name else ''}.rules"
        self.link = root / f"opt/latfarm{below}/venv"
        self._above = "" if place == PLAIN else "../../"
        for file in (self.unit, self.config, self.rules, self.link):
            file.parent.mkdir(parents=True, exist_ok=True)
        (root / f"var/lib/latfarm{below}").mkdir(parents=True, exist_ok=True)

    def runs(self, release: str, text: str) -> None:
        """Let the board run a release, with a text as unit and configuration."""
        self.unit.write_text(text)
        self.config.write_text(text)
        self.link.unlink(missing_ok=True)
        self.link.symlink_to(f"{self._above}releases/{release}")

    @property
    def state(self) -> tuple[str, str, str]:
        """Name of the release, unit and configuration."""
        return self.link.resolve().name, self.unit.read_text(), self.config.read_text()


@pytest.mark.parametrize("place", [PLAIN, SHARED])
def test_a_failed_upgrade_leaves_the_board_as_it_was(tmp_path: Path, place: str) -> None:
    board = FileBoard(tmp_path, place)
    releases(tmp_path, "old", "new")
    board.runs("old", "old")
    deploy(tmp_path, "save", place, "next")
    board.runs("new", "new")
    board.rules.write_text("a rule that the old release has not")
    deploy(tmp_path, "restore", place, "next")
    assert board.state == ("old", "old", "old")
    assert not board.rules.exists()
    deploy(tmp_path, "forget", place, "next")
    assert run(tmp_path, DEPLOYMENT, "restore", place, "former").returncode != 0


def test_a_rollback_goes_one_release_back(tmp_path: Path) -> None:
    board = FileBoard(tmp_path, PLAIN)
    releases(tmp_path, "1", "2", "3")
    for number in "123":
        if number != "1":
            deploy(tmp_path, "save", PLAIN, "next")
        board.runs(number, number)
        if number != "1":
            deploy(tmp_path, "keep", PLAIN, "next")
    deploy(tmp_path, "restore", PLAIN, "former")
    assert board.state == ("2", "2", "2")


def test_boards_of_one_machine_go_back_alone(tmp_path: Path) -> None:
    one, other = FileBoard(tmp_path, SHARED), FileBoard(tmp_path, "/agents/phone-2")
    releases(tmp_path, "old", "new")
    for board, place in ((one, SHARED), (other, "/agents/phone-2")):
        board.runs("old", "old")
        deploy(tmp_path, "save", place, "next")
        board.runs("new", "new")
        deploy(tmp_path, "keep", place, "next")
    deploy(tmp_path, "restore", SHARED, "former")
    assert one.state == ("old", "old", "old")
    assert other.state == ("new", "new", "new")


def test_a_release_that_is_gone_is_not_restored(tmp_path: Path) -> None:
    board = FileBoard(tmp_path, PLAIN)
    releases(tmp_path, "new")
    board.runs("old", "old")
    deploy(tmp_path, "save", PLAIN, "former")
    board.runs("new", "new")
    done = run(tmp_path, DEPLOYMENT, "restore", PLAIN, "former")
    assert done.returncode == 1
    assert "releases/old is not installed any more" in done.stderr
    assert board.state == ("new", "new", "new")


def test_releases_stay_while_a_board_uses_them_or_can_go_back(tmp_path: Path) -> None:
    one, other = FileBoard(tmp_path, PLAIN), FileBoard(tmp_path, SHARED)
    releases(tmp_path, "1", "2", "3", "4", "5")
    other.runs("1", "")
    one.runs("2", "")
    deploy(tmp_path, "save", PLAIN, "former")
    one.runs("5", "")
    assert prune(tmp_path, "2") == ["3"]
    assert prune(tmp_path, "2") == []
    # The newest one goes if it failed and no board uses it.
    assert prune(tmp_path, "2", "4") == ["4"]
    assert prune(tmp_path, "2", "5") == []
