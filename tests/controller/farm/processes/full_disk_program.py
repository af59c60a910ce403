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
from typing import Any

from latfarm_controller.farm.boards import shard_pool
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
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


class Scene:
    """Where everything lies, and what was seen.

    Args:
        disk: the folder of the small disk.
        store: where the store lies: on the small disk, or beside it.
    """

    def __init__(self, disk: Path, store: Path) -> None:
        self.disk, self.store, self.ballast = disk, store, disk / "ballast"
        self.boards = store.parent
        self.backend = RayBackend(RayOptions(disk / "ray", cpus=2, log_path=disk / "ray.log"))
        self.seen: dict[str, Any] = {}

    async def until_full(self, farm: Farm, campaign: OpenEnded) -> None:
        """Run the campaign; the disk fills meanwhile, and has room again once Ray was lost.

        A campaign whose store is on the disk ends before that.
        """
        lost = []

        async def disturb() -> None:
            await until(lambda: self.backend.keeper.run and len(campaign.told) >= BEFORE)
            run = self.backend.keeper.run
            await asyncio.to_thread(fill, self.ballast)
            self.seen["free_bytes"] = os.statvfs(self.disk).f_bavail
            await until(lambda: self.backend.keeper.run is not run)
            lost.append(run)
            self.ballast.unlink()
            enough = len(campaign.told) + AFTER
            await until(lambda: self.backend.keeper.run and len(campaign.told) >= enough)
            campaign.ending = True

        with DuckDBStore(self.store) as store:
            disturbing = asyncio.create_task(disturb())
            record = await Driver(store, farm).run(campaign, RECORD)
            disturbing.cancel()
        self.ballast.unlink(missing_ok=True)
        told = [answer for answer in campaign.told if answer.ok]
        self.seen |= {"ended": record.state, "why": record.error, "ray_lost": bool(lost)}
        self.seen["failures"] = [a.error_message for a in campaign.told if not a.ok]
        self.seen["first"] = {answer.request_id: answer.latency_ms for answer in told}

    async def to_the_end(self, farm: Farm, campaign: OpenEnded) -> None:
        """Run the campaign again from its record, and beyond what was measured before."""
        with DuckDBStore(self.store) as store:
            self.seen["kept"] = rows(store)
            running = asyncio.create_task(Driver(store, farm).run(campaign, RECORD))
            enough = len(self.seen["first"]) + AFTER
            await until(lambda: len(campaign.told) >= enough or running.done())
            campaign.ending = True
            self.seen |= {"state": (await running).state, "rows": rows(store)}
        self.seen |= {"again": campaign.values(), "asked": campaign.asked}

    async def play(self) -> None:
        """Everything, on one farm."""
        shard_pool.OWN_BOARDS = 1  # one board in the own event loop, one in a shard on Ray
        with two_boards(self.boards, measure_ms=50, noise=0.05) as boards:
            async with farm_on(self.backend, boards) as farm:
                await self.until_full(farm, OpenEnded(make=large_request))
                await self.to_the_end(farm, OpenEnded(make=large_request))


if __name__ == "__main__":
    home = Path(sys.argv[1])
    disk = home / "disk"
    disk.mkdir()
    mount(disk, DISK_MIB)
    mount(Path("/dev/shm"), SHARED_MIB)
    scene = Scene(disk, (disk if "store" in sys.argv[2:] else home) / "store.duckdb")
    asyncio.run(scene.play())
    print(json.dumps(scene.seen), flush=True)
