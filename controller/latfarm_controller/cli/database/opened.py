"""Opens the store of this home for a command, as the only process that has it open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from latfarm_controller.errors import UsageError

if TYPE_CHECKING:
    from latfarm_controller.config import ControllerConfig
    from latfarm_controller.store.duckdb_file import DuckDBFile


@contextmanager
def held(wait_s: float) -> Iterator[ControllerConfig]:
    """The settings, while no other process may open the store.

    Args:
        wait_s: seconds to wait for another process that holds it.

    Raises:
        StoreBusyError: another process holds the store; the message names it.
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.store.lock import StoreLock

    config = load_config()
    config.make_dirs()
    lock = StoreLock(config.lock_file)
    lock.acquire(1000.0 * max(wait_s, config.lock_wait_ms / 1000.0))
    with lock:
        yield config


@contextmanager
def opened(wait_s: float, *, make: bool = False) -> Iterator[DuckDBFile]:
    """The database of this home.

    Args:
        wait_s: seconds to wait for another process that holds it.
        make: make an empty store if there is none.

    Raises:
        UsageError: there is no store yet.
        StoreError: the store cannot be opened.
    """
    from latfarm_controller.store.duckdb_file import DuckDBFile

    with held(wait_s) as config:
        if not make and not config.store_file.exists():
            raise UsageError(
                f"{config.home}: there is no store yet; it is made by the first measurement, or by "
                "latfarm db import"
            )
        file = DuckDBFile(config.store_file)
        try:
            yield file
        finally:
            file.close()
