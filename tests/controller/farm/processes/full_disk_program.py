"""A campaign on Ray whose disk fills while boards measure. Run in a mount namespace of its own:

    unshare --user --map-root-user --mount python -m THIS_MODULE FOLDER

`FOLDER/disk` becomes a file system of some MB in memory. On it are the store, Ray's folder with its
object store and the built models, and the state of the boards with their spools. The program fills
it under the campaign, makes room again, and runs the campaign again from its record. The last line
that it prints is what it saw, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from latfarm_controller.errors import StoreError
from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.farm.processes.building import SMALL_BYTES
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.farm.processes.open_ended import RECORD, OpenEnded, farm_on, until
from tests.controller.farm.processes.ray_farm import PLATFORM, large_request, two_boards

DISK_MIB = 256
"""Size of the disk: the reserve that uploads leave free on a board's disk is a quarter of it."""
SHARED_MIB = 8
"""Size of the shared memory, which is too small for Ray's object store: that goes to the disk."""
BEFORE, AFTER = 6, 20
"""Answers before the disk fills, and after there is room again."""


def mount(folder: Path, size_mib: int) -> None:
    """Mount a file system in memory, which ends with this namespace."""
    options = ["-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(folder)]
    subprocess.run(["mount", *options], check=True)


def fill(ballast: Path) -> None:
    """Write until no byte is left on the disk."""
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 20, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


def rows(store: DuckDBStore) -> dict[str, list[float | None]]:
    """The latencies of the stored measurements by request; more than one were told twice."""
    found: dict[str, list[float | None]] = {}
    for stored in store.measurements(platform=PLATFORM):
        if stored.ok:
            found.setdefault(stored.request_id, []).append(stored.latency_ms)
    return found


async def main(disk: Path) -> dict[str, object]:
    """Run the campaign until the disk is full, and again when there is room."""
    shard_pool.OWN_BOARDS = 1  # one board in the own event loop, one in a shard on Ray
    backend = RayBackend(RayOptions(disk / "ray", cpus=2, log_path=disk / "ray.log"))
    ballast, path, seen = disk / "ballast", disk / "store.duckdb", {}
    first = OpenEnded(make=large_request)

    async def full(campaign: OpenEnded) -> None:
        await until(lambda: backend.keeper.run and len(campaign.told) >= BEFORE)
        await asyncio.to_thread(fill, ballast)

    with two_boards(disk, measure_ms=50, noise=0.05) as boards:
        async with farm_on(backend, boards) as farm:
            with DuckDBStore(path) as store:
                filling = asyncio.create_task(full(first))
                try:
                    record = await Driver(store, farm).run(first, RECORD)
                    seen["ended"] = record.state
                except StoreError as error:
                    seen["ended"] = str(error)
                await filling
            seen["free_bytes"] = os.statvfs(disk).f_bavail
            ballast.unlink()
            again = OpenEnded(make=large_request)
            with DuckDBStore(path) as store:
                kept = rows(store)
                running = asyncio.create_task(Driver(store, farm).run(again, RECORD))
                await until(lambda: len(again.told) >= len(kept) + AFTER or running.done())
                again.ending = True
                seen["state"] = (await running).state
                seen |= {"kept": kept, "rows": rows(store)}
    told = {answer.request_id: answer.latency_ms for answer in first.told if answer.ok}
    failed = [answer.error_message for answer in first.told if not answer.ok]
    seen |= {"told": told, "failed": failed, "again": again.values(), "asked": again.asked}
    return seen


if __name__ == "__main__":
    folder = Path(sys.argv[1]) / "disk"
    folder.mkdir()
    mount(folder, DISK_MIB)
    mount(Path("/dev/shm"), SHARED_MIB)
    assert len(large_request(0).graph.dumps()) > SMALL_BYTES
    print(json.dumps(asyncio.run(main(folder))), flush=True)
