"""Nothing in the playbooks becomes root on the controller, whatever password a board has."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.collection import (
    BIN,
    COLLECTION,
    COLLECTIONS,
    NEEDS_ANSIBLE,
    PLAYBOOKS,
    ROLES,
    load,
    run,
)

HERE = ("localhost", "{{ latfarm_file_sd_host }}")
"""Hosts to which tasks are delegated that run on the controller."""

OF_MONITORING = "{{ latfarm_file_sd_become | bool }}"
"""Becomes root on another machine than the controller only; see `test_the_default_...`."""

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]


def tasks_of(entries: Any, inherited: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All tasks of a list, with what they inherit from their blocks."""
    for entry in entries or []:
        own = {key: entry[key] for key in ("delegate_to", "become") if key in entry}
        known = {**inherited, **own}
        inner = [key for key in ("block", "rescue", "always") if key in entry]
        if not inner:
            yield {**known, "name": entry.get("name", "")}
        for key in inner:
            yield from tasks_of(entry[key], known)


def every_task() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(ROLES.glob("*/tasks/*.yml")):
        for task in tasks_of(load(path), {}):
            yield str(path.relative_to(COLLECTION)), task
    for path in sorted(PLAYBOOKS.glob("*.yml")):
        for play in load(path):
            if isinstance(play, dict):
                for key in ("tasks", "pre_tasks", "post_tasks"):
                    for task in tasks_of(play.get(key), {}):
                        yield path.name, task


def test_no_task_becomes_root_on_the_controller() -> None:
    delegated = [(where, task) for where, task in every_task() if "delegate_to" in task]
    assert len(delegated) >= 20
    for where, task in delegated:
        assert task["delegate_to"] in HERE, (where, task)
        allowed = (False,) if task["delegate_to"] == "localhost" else (OF_MONITORING,)
        assert task.get("become") in allowed, (where, task)


def test_the_default_becomes_root_on_another_machine_only() -> None:
    defaults = load(ROLES / "board/defaults/main.yml")
    assert defaults["latfarm_file_sd_become"] == "{{ latfarm_file_sd_host != 'localhost' }}"


class RegistrationRun:
    """The role `latfarm.farm.registration`, in a play that becomes a user who does not exist here.

    A task that becomes this user on the controller fails, or calls a sudo that refuses all.

    Args:
        work: an empty folder.
        targets: the folder that Prometheus reads.
        variables: further variables of Ansible.
    """

    def __init__(self, work: Path, targets: Path, **variables: object) -> None:
        programs = work / "bin"
        programs.mkdir()
        sudo = programs / "sudo"
        sudo.write_text(f'#!/bin/sh\necho "$@" >>{work}/sudo.log\nexit 1\n')
        sudo.chmod(0o755)
        home = work / "home"
        home.mkdir(mode=0o700)
        inventory = work / "inventory.json"
        board = {"ansible_host": "192.0.2.11", "ansible_become_password": "of the board"}
        inventory.write_text(json.dumps({"boards": {"hosts": {"nuc-1": board}}}))
        play = {
            "hosts": "boards",
            "become": True,
            "become_user": "somebody-else",
            "gather_facts": False,
            "roles": ["latfarm.farm.registration"],
        }
        book = work / "book.yml"
        book.write_text(json.dumps([play]))
        given = {
            "latfarm_file_sd_dir": str(targets),
            "ansible_python_interpreter": sys.executable,
            **variables,
        }
        self.done = run(
            *("ansible-playbook", "-i", inventory, book, "-e", json.dumps(given)),
            cwd=work,
            ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS),
            PATH=f"{programs}:{BIN}:{os.environ['PATH']}",
            LATFARM_HOME=str(home),
            LATFARM_LOCAL_AGENT="0",
        )
        self.asked_sudo = (work / "sudo.log").exists()
        boards = home / "boards.json"
        self.boards = set(json.loads(boards.read_text())["boards"]) if boards.exists() else set()
        self.told = " ".join(self.done.stdout.split())


def test_registration_asks_no_sudo_of_the_controller(tmp_path: Path) -> None:
    targets = tmp_path / "targets"
    targets.mkdir()
    run = RegistrationRun(tmp_path, targets)
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    assert not run.asked_sudo
    assert run.boards == {"nuc-1"}
    (target,) = json.loads((targets / "nuc-1.json").read_text())
    assert target["targets"] == ["192.0.2.11:9101"]


def test_a_folder_that_cannot_be_written_is_told_and_the_board_is_registered(
    tmp_path: Path,
) -> None:
    run = RegistrationRun(tmp_path, Path("/proc/latfarm.d"))
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    assert not run.asked_sudo
    assert run.boards == {"nuc-1"}
    assert "Prometheus does not know the board" in run.told


def test_these_tests_notice_a_task_that_becomes_somebody_else(tmp_path: Path) -> None:
    run = RegistrationRun(tmp_path, tmp_path / "targets", latfarm_file_sd_become=True)
    assert run.asked_sudo or run.done.returncode != 0
