"""Refuses variables of a host that look like latfarm's and are none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.latfarm.farm.plugins.plugin_utils.variables import declared, mistakes

_ROLES = Path(__file__).parents[2] / "roles"
"""Folder of the collection's roles."""

_REMEDY = (
    "Correct the inventory or the command. If a variable is yours, and none of latfarm's, name it "
    "in latfarm_other_variables"
)

_OLD_PATH = "latfarm_old_path"
"""The variable by which a playbook at an old path tells its path."""

_OLD_PATHS_END = "0.2.0"
"""First version without the playbooks at their old paths."""


class ActionModule(ActionBase):
    """Compares the names of all variables of the host with those that the roles declare."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Fail with one sentence for each variable that latfarm does not have."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given = task_vars or {}
        if old := given.get(_OLD_PATH):
            self._display.deprecated(
                f"{old} is the old path of a playbook. Run latfarm.farm.{_name(old)} instead",
                version=_OLD_PATHS_END,
                collection_name="latfarm.farm",
            )
        found = mistakes(given, declared(_ROLES), {_OLD_PATH, *self._others(given)})
        result["changed"] = False
        if found:
            result["failed"] = True
            host = given.get("inventory_hostname", "")
            said = "; ".join(found)
            result["msg"] = f"{host}: {said}{'' if said.endswith('?') else '.'} {_REMEDY}"
        return result

    def _others(self, given: dict[str, Any]) -> set[str]:
        """The names that the user has declared to be theirs."""
        value = self._templar.template(given.get("latfarm_other_variables") or [])
        if isinstance(value, str):
            return set(value.replace(",", " ").split())
        return {str(each) for each in value} if isinstance(value, Iterable) else set()


def _name(path: str) -> str:
    """The name of the playbook of the collection for an old path."""
    return Path(path).stem.replace("-", "_")
