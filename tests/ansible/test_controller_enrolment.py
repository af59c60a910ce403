"""What a deployed controller needs to enrol boards is packed, unpacked, and used by its account."""

from __future__ import annotations

import getpass
import importlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.ansible.collection import COLLECTION, NEEDS_ANSIBLE, ROLES, load, run
from tests.unpacking import unpack

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]

FILES = ROLES / "controller/files"
WRAPPER = ROLES / "controller/templates/latfarm-playbook.j2"
PLAYBOOK = "ansible_collections/latfarm/farm/playbooks/enroll.yml"
RELEASE = """#!/bin/sh
env | grep -E '^(HOME|LATFARM_|ANSIBLE_)' | sort
for word; do echo "word $word"; done
"""
"""Stands for ansible-playbook: it prints its environment and its arguments."""


def pack(target: Path, *collections: str) -> str:
    words = [sys.executable, str(FILES / "pack_collections.py"), str(target), *collections]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def install(shared: Path, digest: str) -> None:
    words = ["sh", str(FILES / "install-collections.sh"), str(shared), digest]
    subprocess.run(words, check=True)


def small(folder: Path, module: str) -> Path:
    """A collection with one module, and with files that no playbook reads."""
    for name in (f"plugins/modules/{module}.py", "tests/unit/test.py", ".git/config"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name}\n")
    return folder


def test_equal_collections_are_equal_files(tmp_path: Path) -> None:
    own = f"latfarm.farm={COLLECTION}"
    first = pack(tmp_path / "a" / "one.tar", own)
    assert pack(tmp_path / "two.tar", own) == first
    assert (tmp_path / "two.tar").read_bytes() == (tmp_path / "a" / "one.tar").read_bytes()
    with tarfile.open(tmp_path / "two.tar") as tar:
        names = set(tar.getnames())
        assert {(each.uid, each.gid, each.mtime) for each in tar} == {(0, 0, 0)}
    assert PLAYBOOK in names
    assert not any("__pycache__" in name or "/." in name for name in names)
    before = (tmp_path / "two.tar").stat().st_ino
    other = small(tmp_path / "some", "one")
    assert pack(tmp_path / "two.tar", own) == first
    assert (tmp_path / "two.tar").stat().st_ino == before
    assert pack(tmp_path / "two.tar", own, f"their.own={other}") != first


def test_new_collections_take_the_place_of_former_ones(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for module in ("one", "two"):
        digest = pack(shared / "collections.tar", f"their.own={small(tmp_path / module, module)}")
        install(shared, digest)
        files = {
            str(path.relative_to(shared / "collections"))
            for path in (shared / "collections").rglob("*")
            if path.is_file()
        }
        assert files == {digest, f"ansible_collections/their/own/plugins/modules/{module}.py"}
        assert [path.name for path in shared.iterdir()] == ["collections"]


def test_ansible_plays_from_what_was_packed(tmp_path: Path) -> None:
    """The lookup finds the collections where they are loaded from, wherever that is."""
    book = tmp_path / "find.yml"
    lookup = "lookup('latfarm.farm.collection_path', '{}')"
    wanted = (
        f"{name}={{{{ {lookup.format(name)} }}}}" for name in ("latfarm.farm", "community.crypto")
    )
    argv = ["{{ ansible_playbook_python }}", FILES / "pack_collections.py", tmp_path / "all.tar"]
    task = {"ansible.builtin.command": {"argv": [*map(str, argv), *wanted]}, "register": "packed"}
    book.write_text(to_yaml([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    done = run("ansible-playbook", book)
    assert done.returncode == 0, done.stdout + done.stderr
    unpack(tmp_path / "all.tar", tmp_path / "there")
    modules = tmp_path / "there/ansible_collections/community/crypto/plugins/modules"
    assert (modules / "x509_certificate.py").exists()
    inventory = tmp_path / "boards.json"
    inventory.write_text('{"boards": {"hosts": {"nuc": {}}}}')
    empty = tmp_path / "empty.cfg"
    empty.write_text("")
    words = ("--syntax-check", "-i", inventory, "latfarm.farm.enroll")
    place = {"ANSIBLE_COLLECTIONS_PATH": str(tmp_path / "there"), "ANSIBLE_CONFIG": str(empty)}
    done = run("ansible-playbook", *words, cwd=tmp_path, **place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(tmp_path / "there" / PLAYBOOK) in done.stdout


def test_a_collection_that_is_missing_is_named(tmp_path: Path) -> None:
    book = tmp_path / "find.yml"
    task = {
        "ansible.builtin.debug": {"msg": "{{ lookup('latfarm.farm.collection_path', 'no.such') }}"}
    }
    book.write_text(to_yaml([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    done = run("ansible-playbook", book)
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "the collection no.such is not installed where Ansible runs: ansible-galaxy" in said


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """The folder of the releases of a deployed controller."""
    (tmp_path / "opt/venv/bin").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "home").mkdir()
    lines = "# Settings\nLATFARM_HOME=/somewhere\nLATFARM_PASSPHRASE_FILE=/srv/a b\nRAY_x=5\n"
    (tmp_path / "etc/controller.env").write_text(lines)
    return tmp_path / "opt"


def call(prefix: Path, *words: str, account: str) -> subprocess.CompletedProcess[str]:
    """Run the command `latfarm-playbook` of a controller with that account."""
    script = prefix.parent / "latfarm-playbook"
    variables = {
        **load(ROLES / "controller/defaults/main.yml"),
        "controller_account": account,
        "controller_prefix": str(prefix),
        "controller_config_dir": str(prefix.parent / "etc"),
        "controller_home": str(prefix.parent / "home"),
    }
    # jinja2 is installed with Ansible only.
    script.write_text(
        importlib.import_module("jinja2").Template(WRAPPER.read_text()).render(variables)
    )
    environment = {"PATH": os.environ["PATH"], "ANSIBLE_FORKS": "3", "HOME": "/root"}
    return subprocess.run(
        ["sh", script, *words], env=environment, cwd=prefix, capture_output=True, text=True
    )


def test_the_command_gives_ansible_what_was_brought(prefix: Path) -> None:
    program = prefix / "venv/bin/ansible-playbook"
    program.write_text(RELEASE)
    program.chmod(0o755)
    done = call(prefix, "-i", "my boards.yml", "latfarm.farm.enroll", account=getpass.getuser())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-3:] == ["word -i", "word my boards.yml", "word latfarm.farm.enroll"]
    told = dict(line.split("=", 1) for line in lines[:-3])
    assert told["LATFARM_HOME"] == "/somewhere"
    assert told["LATFARM_PASSPHRASE_FILE"] == "/srv/a b"
    assert told["HOME"] == str(prefix.parent / "home")
    assert told["ANSIBLE_FORKS"] == "3"
    assert told["ANSIBLE_CONFIG"] == str(prefix.parent / "etc/ansible.cfg")


def test_the_command_says_what_it_needs(prefix: Path) -> None:
    done = call(prefix, account=getpass.getuser())
    assert done.returncode == 1
    assert "set controller_enrols: true and run latfarm.farm.upgrade_controller" in done.stderr


def test_nobody_else_may_use_the_command(prefix: Path, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.mkdir()
    (names / "id").write_text("#!/bin/sh\necho eve\n")
    (names / "id").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{names}:{os.environ['PATH']}")
        done = call(prefix, account="latfarm-controller")
    assert done.returncode == 2
    assert "only root and the account latfarm-controller may use it" in done.stderr


def to_yaml(play: object) -> str:
    return str(importlib.import_module("yaml").safe_dump(play))
