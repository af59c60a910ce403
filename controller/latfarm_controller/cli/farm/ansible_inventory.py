"""Boards as an inventory of Ansible."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latfarm_controller.app.summaries import BoardSummary

EXPORT_VERSION = 1
"""Version of the format of `latfarm boards export --json`. Further keys may be added to it."""
ALL_BOARDS = "boards"
"""Group of all boards, as the playbooks name it."""
_RESERVED = frozenset({"all", "ungrouped", ALL_BOARDS})
"""Names of groups that no tag can have."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def group_of(tag: str, prefix: str = "") -> str:
    """The group that a tag becomes.

    A group's name has letters, digits and underscores only, and begins with no digit; see
    "How to build your inventory" in Ansible's documentation.
    """
    name = _NOT_IN_NAMES.sub("_", prefix + tag)
    if name in _RESERVED or name[0].isdigit():
        return f"tag_{name}"
    return name


def variables(board: BoardSummary) -> dict[str, str | int | list[str]]:
    """The variables of a board's host; a board that dials in has neither address nor port."""
    found: dict[str, str | int | list[str]] = {
        "latfarm_tags": list(board.tags),
        "latfarm_location": board.location,
        "latfarm_owner": board.owner,
        "latfarm_note": board.note,
        "latfarm_access": board.access,
        "latfarm_board_id": board.board_id,
        "latfarm_platforms": list(board.platforms),
        "latfarm_state": board.state,
        "latfarm_standing": board.standing,
    }
    host, colon, port = board.address.rpartition(":")
    if colon and port.isdecimal():
        found["ansible_host"] = found["latfarm_address"] = host.strip("[]")
        found["latfarm_port"] = int(port)
    return found


def inventory_yaml(boards: Iterable[BoardSummary], prefix: str = "") -> str:
    """An inventory in YAML.

    Texts are written as JSON, which YAML reads as it is. Boards tell some of them, so each is
    tagged `!unsafe`: Ansible runs no template that such a text contains.

    Args:
        boards: the boards.
        prefix: begins the names of the groups that tags become.
    """
    listed = sorted(boards, key=lambda board: board.name)
    lines = ["---", f"{ALL_BOARDS}:"]
    if listed:
        lines.append("  hosts:")
    for board in listed:
        lines.append(f"    {json.dumps(board.name)}:")
        for name, value in sorted(variables(board).items()):
            lines.append(f"      {name}: {_yaml(value)}")
    groups: dict[str, list[str]] = {}
    for board in listed:
        for tag in board.tags:
            members = groups.setdefault(group_of(tag, prefix), [])
            if board.name not in members:
                members.append(board.name)
    for group, members in sorted(groups.items()):
        lines += [f"{group}:", "  hosts:", *(f"    {json.dumps(name)}:" for name in members)]
    return "\n".join(lines) + "\n"


def _yaml(value: str | int | list[str]) -> str:
    """A number, a text or a list of texts in one line of YAML."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value) if isinstance(value, int) else f"!unsafe {json.dumps(value)}"
