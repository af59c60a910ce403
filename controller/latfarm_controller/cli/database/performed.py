"""Lets the store of this home do something, and shows how far it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latfarm_controller.api.database_client import perform_at_home
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell import progress as shown
from latfarm_controller.config import load_config
from latfarm_controller.private_files import callers_umask


def performed(
    action: str,
    options: Mapping[str, Any],
    wait_s: float,
    *,
    make: bool = False,
    bars: bool = False,
) -> dict[str, Any]:
    """Do something with the store, and return what was found or done.

    Args:
        action: one of `store.actions.ACTIONS`.
        options: the action's own options; paths in them are absolute.
        wait_s: seconds to wait for another process that holds the store and does not serve it.
        make: make an empty store if there is none.
        bars: show how far it is.

    Raises:
        ControllerError: see `perform_at_home`.
    """
    config = load_config()
    if not bars:
        return perform_at_home(
            config, action, options, wait_s=wait_s, make=make, on_wait=output.error
        )
    with shown.bars() as progress:
        stages = shown.StageBars(progress)
        found = perform_at_home(
            config,
            action,
            options,
            wait_s=wait_s,
            make=make,
            on_progress=stages.show,
            on_wait=output.error,
        )
        stages.finish()
    return found


def for_the_caller(folder: Path) -> None:
    """Give a new folder and its files the permissions that the caller's umask leaves.

    The server makes files that only their owner may read; these were asked for to be given away.
    """
    with callers_umask():
        mask = os.umask(0)
        os.umask(mask)
    for path in (folder, *folder.iterdir()):
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
