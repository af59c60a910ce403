"""The store of this home, to read from: the file itself, or the server's copy of one platform.

While `latfarm serve` holds the store, no other process can open it. A command that reads much, such
as `latfarm train`, then lets the server write a copy of what it needs, and reads that. So neither
reading nor what follows takes time of the server.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from latfarm_controller.api.connect import OnWait, silent, wait_for_holder
from latfarm_controller.api.database_client import ask_server, held
from latfarm_controller.config import ControllerConfig
from latfarm_controller.store.duckdb import DuckDBStore

COPY_PREFIX = ".copy-"
"""How the names of the folders with copies begin, in the home; the id of their process follows."""


@contextmanager
def readable_store(
    config: ControllerConfig, platform: str, wait_s: float = 0.0, on_wait: OnWait = silent
) -> Iterator[DuckDBStore]:
    """A store with what is known about a platform. What is written into it may be lost.

    It is the store of the home where no other process holds it, and it is held during the block.
    Else it is a copy that the server made. That has all measurements of the platform with their
    graphs, and all campaigns.

    Args:
        config: the settings, which name the home.
        platform: the platform.
        wait_s: seconds to wait for another process that holds the store and does not serve it.
        on_wait: is told what is waited for.

    Raises:
        StoreBusyError: another process holds the store and does not serve it.
        StoreError: the store cannot be read, or the copy cannot be written.
    """
    wait_s = max(wait_s, config.lock_wait_ms / 1000.0)
    address = wait_for_holder(config, wait_s, on_wait)
    if not address:
        with held(config, wait_s), DuckDBStore(config.store_file) as store:
            yield store
        return
    _remove_left_copies(config.home)
    # The home, because the server may see another folder for temporary files than we do.
    prefix = f"{COPY_PREFIX}{os.getpid()}-"
    with TemporaryDirectory(prefix=prefix, dir=config.home) as folder:
        copy = Path(folder) / config.store_file.name
        ask_server(address, "copy_platform", {"platform": platform, "path": str(copy)})
        with DuckDBStore(copy) as store:
            yield store


def _remove_left_copies(home: Path) -> None:
    """Remove the copies of processes that were killed."""
    for folder in home.glob(f"{COPY_PREFIX}*"):
        pid = folder.name.removeprefix(COPY_PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
