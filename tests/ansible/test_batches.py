"""Boards are upgraded and rolled back in the order of the inventory, whichever answers first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ansible.collection import NEEDS_ANSIBLE, PLAYBOOKS, load, run

pytestmark = [NEEDS_ANSIBLE, pytest.mark.timeout(300)]

BOARDS = ("nuc-0", "nuc-1", "nuc-2")


@pytest.mark.parametrize("name", ["upgrade", "rollback"])
def test_the_first_board_of_the_inventory_is_the_canary(name: str, tmp_path: Path) -> None:
    batches = load(PLAYBOOKS / f"{name}.yml")[1]["hosts"]
    due = {"ansible.builtin.group_by": {"key": f"latfarm_{name}_due"}}
    # The boards are found in the opposite order, as if the last one had answered first.
    found = [{**due, "when": f"inventory_hostname == '{board}'"} for board in reversed(BOARDS)]
    shown = {"ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch }}"}}
    play = {"gather_facts": False, "connection": "local"}
    book = tmp_path / "book.json"
    last = {**play, "hosts": batches, "serial": 1, "tasks": [shown]}
    book.write_text(json.dumps([{**play, "hosts": "boards", "tasks": found}, last]))
    inventory = tmp_path / "inventory.json"
    hosts: dict[str, dict[str, str]] = {board: {} for board in (*BOARDS, "idle")}
    children = {"linux_cpu": {"hosts": hosts}}
    inventory.write_text(json.dumps({"boards": {"children": children}}))
    done = run("ansible-playbook", "-i", inventory, book)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if "batch [" in line]
    assert [next(board for board in BOARDS if board in line) for line in told] == list(BOARDS)
