"""Names that the shell completes: platforms, boards and campaigns of this home.

A completion must never fail or print: the shell would show it in the middle of the user's line.
So every error means that there is nothing to complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import typer

from latfarm_controller.errors import ControllerError


def platforms(incomplete: str) -> list[str]:
    """Platforms that have a bundle here; the others are known to their boards alone."""
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest

    try:
        return _beginning(newest(load_config().bundles_dir), incomplete)
    except (ControllerError, OSError):
        return []


def measured_platforms(command: typer.Context, incomplete: str) -> list[str]:
    """Platforms on which something was measured; those of other farms where they are asked for."""
    from latfarm_controller.api.database_client import perform_at_home
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.config import load_config

    try:
        config = load_config()
        if config.controller:  # it has its own store, and tells what its campaigns measured
            with _silently(), controller() as client:
                named = {c.platform for c in client.campaigns() if "*" not in c.platform}
            return _beginning(sorted(named), incomplete)
        if not config.store_file.exists():
            return []
        with _silently():
            told = perform_at_home(config, "info", {})
        kinds = ("platforms", "foreign_platforms")[: 2 if command.params.get("foreign") else 1]
        found = (each["platform"] for kind in kinds for each in told[kind])
        return _beginning(found, incomplete)
    except (ControllerError, OSError):
        return []


def boards(incomplete: str) -> list[str]:
    """Boards of the inventory, and this machine."""
    from latfarm_controller.agents.fleet import LOCAL
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    try:
        config = load_config()
        own = [LOCAL] if config.local_agent else []
        names = [*own, *(entry.name for entry in Registry(config.boards_file).list())]
        return _beginning(names, incomplete)
    except (ControllerError, OSError):
        return []


def tags(incomplete: str) -> list[str]:
    """Tags of the boards of the inventory."""
    from latfarm_controller.agents.registry import Registry
    from latfarm_controller.config import load_config

    try:
        entries = Registry(load_config().boards_file).list()
        return _beginning(sorted({t for e in entries for t in e.profile.tags}), incomplete)
    except (ControllerError, OSError):
        return []


def campaigns(incomplete: str) -> list[str]:
    """Names and ids of campaigns, the newest first."""
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.config import load_config

    try:
        config = load_config()
        if not config.controller and not config.store_file.exists():
            return []
        with _silently(), controller() as client:
            found = client.campaigns()
        return _beginning((text for c in found for text in (c.name, c.campaign_id)), incomplete)
    except (ControllerError, OSError):
        return []


@contextmanager
def _silently() -> Iterator[None]:
    """Print nothing on standard error during the block."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        yield


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what was typed, each once, in their order."""
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
