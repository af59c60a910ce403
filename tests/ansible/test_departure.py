"""unenroll.yml takes a board out of the farm that nobody can reach any more."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.registry import Registry

from tests.ansible.collection import NEEDS_ANSIBLE, run

pytestmark = [
    NEEDS_ANSIBLE,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh")), reason="needs openssl and ssh"
    ),
    pytest.mark.timeout(600),
]


def unenroll(
    home: Path, folder: Path, *words: str, book: str = "latfarm.farm.unenroll"
) -> subprocess.CompletedProcess[str]:
    """Take the board `gone` out of the farm; nothing listens where its ssh would be."""
    inventory = folder / "inventory.yml"
    gone = {"ansible_host": "127.0.0.1", "ansible_port": 1, "latfarm_file_sd_dir": str(folder)}
    inventory.write_text(json.dumps({"boards": {"hosts": {"gone": gone}}}))
    return run(
        *("ansible-playbook", "-i", str(inventory), book, *words),
        LATFARM_HOME=str(home),
        LATFARM_LOCAL_AGENT="0",
    )


def test_a_board_that_is_gone_leaves_and_its_certificates_are_revoked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    authority = Authority(home / "tls")
    authority.init()
    authority.issue("gone", "agent", ["192.0.2.7"])
    authority.issue("gone", "agent", ["192.0.2.7"])
    authority.issue("stays", "agent")
    Registry(home / "boards.json").add("gone", "127.0.0.1:1")
    Registry(home / "boards.json").add("stays", "127.0.0.1:2")
    (tmp_path / "gone.json").write_text("[]")

    done = unenroll(home, tmp_path, "--limit", "gone")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unreachable=0" in done.stdout
    assert [entry.name for entry in Registry(home / "boards.json").list()] == ["stays"]
    states = [(one.name, one.state) for one in authority.list() if one.roles == ("agent",)]
    assert states == [("gone", "revoked"), ("gone", "revoked"), ("stays", "valid")]
    assert not (tmp_path / "gone.json").exists()
    assert "Stop the services" not in done.stdout or "skipping: [gone]" in done.stdout

    # The old path of the playbook does the same, and says what its new name is.
    assert "old path" not in done.stderr
    again = unenroll(home, tmp_path, "--limit", "gone", book="ansible/unenroll.yml")
    assert again.returncode == 0, again.stdout + again.stderr
    told = " ".join(again.stderr.split())
    assert "[DEPRECATION WARNING]: ansible/unenroll.yml is the old path of a playbook" in told
    assert "Run latfarm.farm.unenroll instead" in told


def test_a_board_whose_certificate_is_not_known_leaves_and_it_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Authority(home / "tls").init()
    done = unenroll(home, tmp_path, "--limit", "gone")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No certificate of gone is known" in done.stdout


@pytest.mark.parametrize("words", [(), ("--tags", "removal"), ("-e", "latfarm_unenroll=yes")])
def test_all_boards_at_once_are_refused_unless_this_is_confirmed(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    home = tmp_path / "home"
    Authority(home / "tls").init()
    Registry(home / "boards.json").add("gone", "127.0.0.1:1")
    done = unenroll(home, tmp_path, *words)
    assert done.returncode != 0
    assert "confirm that all leave with -e latfarm_unenroll=all" in " ".join(done.stdout.split())
    assert [entry.name for entry in Registry(home / "boards.json").list()] == ["gone"]


def test_all_boards_leave_once_this_is_confirmed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    Authority(home / "tls").init()
    Registry(home / "boards.json").add("gone", "127.0.0.1:1")
    done = unenroll(home, tmp_path, "-e", "latfarm_unenroll=all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert Registry(home / "boards.json").list() == []
