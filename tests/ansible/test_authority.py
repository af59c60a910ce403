"""The Ansible role of the certificate authority keeps what `latfarm certs` has made."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.certificates.ca_rotation import CaRotation

from tests.ansible.collection import NEEDS_ANSIBLE, ROOT, run

NAMES = ("farm.example.org", "192.0.2.1")

pytestmark = [
    NEEDS_ANSIBLE,
    pytest.mark.skipif(
        shutil.which("openssl") is None,
        reason="openssl is not installed: the role makes certificates with it",
    ),
    pytest.mark.timeout(300),
]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A playbook with only this part of the role."""
    path = tmp_path_factory.mktemp("authority") / "book.yml"
    role = {"name": "latfarm.farm.certificates", "tasks_from": "authority"}
    play = {
        "hosts": "localhost",
        "connection": "local",
        "gather_facts": False,
        "tasks": [{"name": "Create the authority", "ansible.builtin.import_role": role}],
    }
    path.write_text(json.dumps([play]))
    return path


def played(book: Path, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the role."""
    environment = {"LATFARM_HOME": str(home), **variables}
    return run("ansible-playbook", "-vvv", book, cwd=ROOT, **environment)


def changed(book: Path, home: Path) -> int:
    """Run the role; return how many tasks changed something."""
    done = played(book, home)
    assert done.returncode == 0, done.stdout + done.stderr
    recap = re.search(r"changed=(\d+)", done.stdout)
    assert recap is not None
    return int(recap[1])


def files(home: Path) -> dict[str, bytes]:
    tls = home / "tls"
    return {path.name: path.read_bytes() for path in tls.iterdir() if path.is_file()}


def test_an_existing_authority_stays_as_it_is(book: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    authority.init(NAMES)
    made = files(tmp_path)
    assert changed(book, tmp_path) == 0
    assert files(tmp_path) == made


def test_nothing_is_signed_again_while_the_authority_is_replaced(
    book: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "tls")
    authority.init(NAMES)
    succession = CaRotation(authority)
    succession.begin()
    succession.switch()
    present = files(tmp_path)
    assert changed(book, tmp_path) == 0
    assert files(tmp_path) == present


def test_an_authority_is_made_if_there_is_none(book: Path, tmp_path: Path) -> None:
    assert changed(book, tmp_path) > 0
    made = files(tmp_path)
    assert set(made) == {"ca.crt", "ca.key", "controller.crt", "controller.key", "revoked.json"}
    # `latfarm certs` continues from there, and then the role changes nothing.
    Authority(tmp_path / "tls").issue("ada", "viewer")
    succession = CaRotation(Authority(tmp_path / "tls"))
    assert [one.name for one in succession.trusted()] == ["latfarm"]
    succession.begin()
    succession.switch()
    assert succession.left_behind() == ["ada"]
    assert changed(book, tmp_path) == 0


def test_the_role_signs_with_a_key_that_has_a_passphrase_and_never_replaces_it(
    book: Path, tmp_path: Path
) -> None:
    secret = "correct horse battery"
    file = tmp_path / "passphrase"
    file.write_text(f"{secret}\n")
    file.chmod(0o600)
    home = tmp_path / "home"
    Authority(home / "tls", secret).init(NAMES)
    key = (home / "tls" / "ca.key").read_bytes()
    (home / "tls" / "controller.crt").unlink()

    without = played(book, home)
    assert without.returncode != 0
    assert (home / "tls" / "ca.key").read_bytes() == key

    done = played(book, home, LATFARM_PASSPHRASE_FILE=str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert secret not in done.stdout + done.stderr + without.stdout + without.stderr
    assert (home / "tls" / "ca.key").read_bytes() == key
    assert (home / "tls" / "controller.crt").exists()
    kept = [one.name for one in Authority(home / "tls").list()]
    assert kept == ["controller", "controller"], "the old one, and the one that the role signed"
