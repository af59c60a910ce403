"""A filter that adds entries to lists of a Prometheus configuration without touching anything else.

The text is edited, so that comments and order stay. The result is parsed and compared with what was
wanted, and a text in which that fails is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]
from ansible.errors import AnsibleFilterError


def add_to_lists(text: str, wanted: Mapping[str, Sequence[str]]) -> str:
    """Add strings to lists at the top level of a YAML file. Those that are there are not repeated.

    Args:
        text: the file.
        wanted: for the key of each list, its further entries. A list that is missing is appended.

    Raises:
        AnsibleFilterError: the file is not YAML, or is written in a way that cannot be edited.
    """
    present = _parsed(text)
    expected = dict(present)
    for key, entries in wanted.items():
        there = present.get(key) or []
        if not isinstance(there, list):
            raise AnsibleFilterError(f"{key} is not a list")
        missing = [entry for entry in entries if entry not in there]
        if not missing:
            continue
        expected[key] = [*there, *missing]
        text = _insert(text, key, missing) if there else _append(text, key, missing, present)
    if _parsed(text) != expected:
        raise AnsibleFilterError("the file is written in a way that cannot be edited line by line")
    return text


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise AnsibleFilterError(f"not YAML: {error}") from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise AnsibleFilterError("not an object at the top level")
    return data


def _insert(text: str, key: str, entries: Sequence[str]) -> str:
    """Write the entries below the last one of a list that has entries."""
    for name, node in yaml.compose(text).value:
        if name.value == key:
            if node.flow_style:
                raise AnsibleFilterError(f"{key} is written as [...]: write one entry a line")
            last = node.value[-1]
            indent = " " * node.start_mark.column
            lines = text.splitlines(keepends=True)
            place = last.end_mark.line + (1 if last.end_mark.column else 0)
            if place and not lines[place - 1].endswith("\n"):
                lines[place - 1] += "\n"
            lines[place:place] = [f"{indent}- {entry}\n" for entry in entries]
            return "".join(lines)
    raise AnsibleFilterError(f"{key} is not there")


def _append(text: str, key: str, entries: Sequence[str], present: Mapping[str, Any]) -> str:
    """Write a new list at the end of the file."""
    if key in present:
        raise AnsibleFilterError(f"{key} is there and empty: remove this line")
    end = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{end}\n{key}:\n" + "".join(f"  - {entry}\n" for entry in entries)


class FilterModule:
    """The filter, under the name by which playbooks call it."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Names and functions."""
        return {"added": add_to_lists}
