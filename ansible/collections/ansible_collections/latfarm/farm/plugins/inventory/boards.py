"""An inventory of Ansible that reads the boards of a latfarm controller."""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin, Constructable

DOCUMENTATION = r"""
name: boards
short_description: The boards of a latfarm controller
description:
  - Reads the boards of a controller by C(latfarm boards export --json), on the machine that runs
    Ansible.
  - All boards are in one group, and each of their tags is a group of its own. Characters that the
    name of a group cannot have become underscores. So a board with the tag C(jetson) gets the
    variables of the group C(jetson).
  - A board has the variables C(latfarm_tags), C(latfarm_location), C(latfarm_owner),
    C(latfarm_note), C(latfarm_access), C(latfarm_board_id),
    C(latfarm_platforms), C(latfarm_state) and C(latfarm_standing). C(ansible_host) and
    C(latfarm_address) are the host of its address, and C(latfarm_port) is its port; a board that
    dials in has none of them.
  - Write the options into a file whose name ends with C(latfarm.yml) or C(latfarm.yaml).
author: latfarm
options:
  plugin:
    description:
      - The name of this plugin. C(latfarm) is its old name, which works until version 0.2.0.
    required: true
    choices: [latfarm.farm.boards, latfarm]
  command:
    description: The program latfarm, as a name on the path or as a whole path.
    default: latfarm
  home:
    description: Folder of the controller's state. Without it, latfarm chooses the folder.
    type: path
  tags:
    description: Only boards that have all of these tags.
    type: list
    elements: str
    default: []
  group:
    description: Group of all boards.
    default: boards
  group_prefix:
    description: Begins the names of the groups that tags become.
    default: ""
  timeout:
    description: Seconds that latfarm may take. It waits five seconds for boards that are away.
    type: int
    default: 120
extends_documentation_fragment:
  - constructed
"""

EXAMPLES = r"""
---
# boards.latfarm.yml: all boards
plugin: latfarm.farm.boards

---
# jetsons.latfarm.yml: some boards of another home, and groups by location
plugin: latfarm.farm.boards
home: /srv/latfarm
tags: [jetson, lab2]
keyed_groups:
  - key: latfarm_location
    prefix: at
"""

OLD_NAME = "latfarm"
"""Name of this plugin in the folder `ansible/inventory_plugins` of a checkout."""

OLD_NAME_ENDS = "0.2.0"
"""First version that does not know this name."""

EXPORT_VERSION = 1
"""Version of what C(latfarm boards export --json) prints."""
FACTS = ("tags", "location", "owner", "note", "access", "board_id", "platforms")
STATES = ("state", "standing")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


def group_of(tag: str, prefix: str, boards: str) -> str:
    """The group that a tag becomes; no name of a group begins with a digit."""
    name = _NOT_IN_NAMES.sub("_", prefix + tag)
    return f"tag_{name}" if name in ("all", "ungrouped", boards) or name[0].isdigit() else name


def exported(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The boards that the controller tells, by their names.

    Raises:
        AnsibleParserError: latfarm failed, or told something else.
    """
    words = [options["command"], "boards", "export", "--json"]
    for tag in options["tags"]:
        words += ["--tag", tag]
    home = {"LATFARM_HOME": options["home"]} if options["home"] else {}
    try:
        done = subprocess.run(
            words,
            env={**os.environ, **home},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=options["timeout"],
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AnsibleParserError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode:
        said = " ".join(done.stderr.split()[-60:])
        raise AnsibleParserError(
            f"{' '.join(words)} ended with exit code {done.returncode}: {said}"
        )
    try:
        told = json.loads(done.stdout)
        if told["version"] != EXPORT_VERSION:
            raise AnsibleParserError(
                f"{words[0]} exports boards in version {told['version']}, and this plugin reads "
                f"version {EXPORT_VERSION}; use the plugin that belongs to it"
            )
        return {str(name): dict(board) for name, board in told["boards"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AnsibleParserError(f"{' '.join(words)} printed no boards: {error}") from error


class InventoryModule(BaseInventoryPlugin, Constructable):
    """Adds the boards of a controller to an inventory."""

    NAME = "latfarm.farm.boards"

    def verify_file(self, path: str) -> bool:
        """Whether a file holds options of this plugin, by its name."""
        named = path.endswith(("latfarm.yml", "latfarm.yaml"))
        return named and bool(super().verify_file(path))

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        """Read the options, ask the controller, and add what it tells."""
        super().parse(inventory, loader, path, cache)
        self._redirected_names = [self.NAME, OLD_NAME]  # a file may name either
        config = self._read_config_data(path)
        if config["plugin"] == OLD_NAME:
            self.display.deprecated(
                f"{path} names the inventory plugin {OLD_NAME}. Name it {self.NAME}",
                version=OLD_NAME_ENDS,
                collection_name="latfarm.farm",
            )
        names = ("command", "home", "tags", "timeout")
        boards = exported({name: self.get_option(name) for name in names})
        everyone = self.inventory.add_group(self.get_option("group"))
        for name, board in sorted(boards.items()):
            self.inventory.add_host(name, group=everyone)
            self._add_variables(name, board)
            for tag in board.get("tags", []):
                group = group_of(tag, self.get_option("group_prefix"), everyone)
                self.inventory.add_host(name, group=self.inventory.add_group(group))

    def _add_variables(self, name: str, board: dict[str, Any]) -> None:
        """Add what is known about one board."""
        found = {f"latfarm_{key}": board[key] for key in (*FACTS, *STATES) if key in board}
        host, colon, port = str(board.get("address", "")).rpartition(":")
        if colon and port.isdecimal():
            found["ansible_host"] = found["latfarm_address"] = host.strip("[]")
            found["latfarm_port"] = int(port)
        for key, value in found.items():
            self.inventory.set_variable(name, key, value)
        strict = self.get_option("strict")
        self._set_composite_vars(self.get_option("compose"), found, name, strict=strict)
        self._add_host_to_composed_groups(self.get_option("groups"), found, name, strict=strict)
        self._add_host_to_keyed_groups(self.get_option("keyed_groups"), found, name, strict=strict)
