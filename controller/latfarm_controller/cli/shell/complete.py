"""Names that the shell completes: platforms, boards and campaigns of this home.

A completion must never fail or print: the shell would show it in the middle of the user's line.
So every error means that there is nothing to complete.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import redirect_stderr
from pathlib import Path

from latfarm_controller.errors import ControllerError


def platforms(incomplete: str) -> list[str]:
    """Platforms that have a bundle here; the others are known to their boards alone."""
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import newest

    try:
        return _beginning(newest(load_config().bundles_dir), incomplete)
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
        with (
            Path(os.devnull).open("w") as nowhere,
            redirect_stderr(nowhere),
            controller() as client,
        ):
            found = client.campaigns()
        return _beginning((text for c in found for text in (c.name, c.campaign_id)), incomplete)
    except (ControllerError, OSError):
        return []


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """The names that begin with what was typed, each once, in their order."""
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]
