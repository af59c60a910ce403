"""Which variables the roles of this collection know, and which of a host's look mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from pathlib import Path

import yaml  # type: ignore[import-untyped]

OURS = "latfarm_"
"""Every variable whose name begins like this is latfarm's."""

SHARED = ("alertmanager_", "controller_", "grafana_", "prometheus_")
"""Variables of other collections begin like these, too; those that are near to ours are refused."""

_NEAR = 0.92
"""Least ratio of equal characters at which a shared name counts as mistyped: 0 to 1, see `difflib`.

Our names have fourteen letters or more. One that is wrong, missing or doubled leaves 0.928.
"""

_OFFERED = 0.6
"""Least ratio at which one of our names is offered, prefixes aside; the default of `difflib`."""

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def declared(roles: Path) -> frozenset[str]:
    """Names of all variables that the roles declare, and of those that they set themselves.

    Args:
        roles: the folder of the collection's roles.
    """
    names: set[str] = set()
    for file in roles.glob("*/meta/argument_specs.yml"):
        for entry in _read(file)["argument_specs"].values():
            names.update(entry.get("options") or {})
    for file in roles.glob("*/vars/main.yml"):
        names.update(_read(file))
    return frozenset(names)


def mistakes(names: Iterable[str], known: Collection[str], others: Collection[str]) -> list[str]:
    """One sentence for each variable that latfarm does not have, with the nearest one that it has.

    Args:
        names: names of all variables of a host.
        known: what `declared` returns.
        others: names that the user has declared to be theirs.
    """
    found = []
    for name in sorted({str(name) for name in names} - set(known) - set(others)):
        if name.startswith(OURS):
            found.append(f"there is no variable {name}{_offer(name, known)}")
        elif name.startswith(SHARED):
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            found += [f"there is no variable {name}; did you mean {each}?" for each in near]
    return found


def _offer(name: str, known: Collection[str]) -> str:
    """The end of a sentence that offers the nearest of our names; empty if none is near."""
    rests = [each.removeprefix(OURS) for each in known if each.startswith(OURS)]
    near = difflib.get_close_matches(name.removeprefix(OURS), rests, n=1, cutoff=_OFFERED)
    return f"; did you mean {OURS}{near[0]}?" if near else ""


def _read(file: Path) -> dict[str, dict[str, dict[str, object]]]:
    data: dict[str, dict[str, dict[str, object]]] = yaml.load(file.read_text(), Loader=_LOADER)
    return data
