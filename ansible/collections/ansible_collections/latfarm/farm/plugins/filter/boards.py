"""Filters about boards of one machine: which they are, what they must not share, their phones.

Each filter gets Ansible's `hostvars`, because the roles' defaults of other hosts are not known.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Names that systemd takes as the instance of a unit without escapes."""

_DEFAULT_PORT = 50051
"""Port of an agent where the inventory names none; as in roles/board/defaults/main.yml."""

_METRICS_OFFSET = 40950
"""What is subtracted from the port for the default port of a shared board's metrics."""

_DEFAULT_METRICS_PORT = 9101
"""Port of the metrics of a board that has its machine for itself."""

HostVars = Mapping[str, Mapping[str, Any]]


def neighbours(boards: Iterable[str], hostvars: HostVars, name: str) -> list[str]:
    """The boards on the machine of the board `name`, itself included, in the inventory's order.

    Boards share a machine if Ansible reaches them at the same address and port.
    """
    machine = _machine(hostvars, name)
    return [board for board in boards if _machine(hostvars, board) == machine] or [name]


def conflicts(boards: Iterable[str], hostvars: HostVars) -> list[str]:
    """What boards of one machine must not have in common, one sentence each."""
    names = list(boards)
    found = []
    if len(names) < 2:
        return found
    alone = [name for name in names if not _shared(hostvars[name])]
    if len(alone) > 1:
        found.append(
            f"{' and '.join(alone)} are on one machine: set latfarm_shared: true for all but one"
        )
    found += [
        f"{name!r} cannot be part of a unit's name: use letters, digits, '_.-'"
        for name in names
        if _shared(hostvars[name]) and not _NAME.fullmatch(name)
    ]
    found += _twice(names, hostvars, "latfarm_port", _port)
    found += _twice(names, hostvars, "latfarm_metrics_port", _metrics_port)
    found += _twice(names, hostvars, "latfarm_adb_serial", _serial)
    return found


def tcp_phones(boards: Iterable[str], hostvars: HostVars) -> list[str]:
    """Addresses that the adb server of a machine may reach; "any" if one of them is a name.

    Empty: the adb server has no network.
    """
    found: set[str] = set()
    for name in boards:
        values = hostvars[name]
        host, colon, _ = str(values.get("latfarm_adb_serial") or "").rpartition(":")
        if not colon or not _true(values.get("latfarm_adb_network")):
            continue
        try:
            found.add(str(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            found.add("any")
    return sorted(found)


def _machine(hostvars: HostVars, name: str) -> tuple[str, str]:
    values = hostvars[name]
    return str(values.get("ansible_host", name)), str(values.get("ansible_port", 22))


def _twice(
    names: list[str], hostvars: HostVars, variable: str, value: Callable[[Mapping[str, Any]], str]
) -> list[str]:
    of: dict[str, list[str]] = {}
    for name in names:
        if found := value(hostvars[name]):
            of.setdefault(found, []).append(name)
    return [
        f"{' and '.join(same)} are on one machine and have the same {variable} {found}"
        for found, same in of.items()
        if len(same) > 1
    ]


def _port(values: Mapping[str, Any]) -> str:
    """The port on which an agent listens; empty if it dials in."""
    if values.get("latfarm_controller"):
        return ""
    return str(values.get("latfarm_port", _DEFAULT_PORT))


def _metrics_port(values: Mapping[str, Any]) -> str:
    if not (port := _port(values)):
        return ""
    default = int(port) - _METRICS_OFFSET if _shared(values) else _DEFAULT_METRICS_PORT
    return str(values.get("latfarm_metrics_port", default))


def _serial(values: Mapping[str, Any]) -> str:
    return str(values.get("latfarm_adb_serial") or "")


def _shared(values: Mapping[str, Any]) -> bool:
    return _true(values.get("latfarm_shared"))


def _true(value: Any) -> bool:
    """What Ansible's filter `bool` says; an inventory in INI format has words."""
    return str(value).lower() in ("true", "yes", "on", "1")


class FilterModule:
    """The filters, under the names by which playbooks call them."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Names and functions."""
        return {
            "neighbours": neighbours,
            "conflicts": conflicts,
            "tcp_phones": tcp_phones,
        }
