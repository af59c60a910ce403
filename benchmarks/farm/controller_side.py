"""The controller's side of a row, as a process of its own: farm, driver and store.

It does one thing at each line that it reads: it joins all boards, runs one campaign, and ends. It
prints what it found as one line of JSON each time. So the process that started it can read the
clocks of all processes exactly between these steps.

    python -m benchmarks.farm.controller_side FOLDER BOARDS MEASUREMENTS MEASURING_MS --longest-s S
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from latfarm_controller.agents.registry import BoardEntry, Registry
from latfarm_controller.api.dialled_boards import DialledBoards
from latfarm_controller.api.outside import LIMITS
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.boards.interfaces import FarmBackend, ShardSettings
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.processes.backends import InlineBackend, RayBackend, RayOptions
from latfarm_controller.farm.scheduling.scheduler import Scheduler
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement
from latfarm_protos.trust.contexts import Files
from latfarm_protos.trust.gate import Gate
from latfarm_protos.trust.identity import AGENT, OPERATOR

from benchmarks.farm.agents import HOST, authority_in
from benchmarks.farm.boards import PLATFORM
from benchmarks.farm.figures import utilisation
from benchmarks.farm.small_convolutions import CountingCampaign, conv_request

JOIN_S = 150.0
"""Longest time in seconds until all boards have joined."""


class TimedScheduler:
    """Counts the CPU time of all calls of the scheduler in this process."""

    def __init__(self) -> None:
        self.spent_s = 0.0
        for name in ("handle", "wake_at_s"):
            setattr(Scheduler, name, self._timed(getattr(Scheduler, name)))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return method(*args, **kwargs)
            finally:
                self.spent_s += time.thread_time() - began_s

        return call


class FarmCampaign(CountingCampaign):
    """Asks for small convolutions, each a model of its own, made when it is asked for.

    Args:
        total: number of measurements.
        longest_s: how long it may take; it ends then with what it has, in seconds.
    """

    kind = "farm-bench"

    def __init__(self, total: int, longest_s: float) -> None:
        super().__init__(total)
        self._ends_s = time.monotonic() + longest_s
        self._asked = 0
        self.failures = 0
        self.asking_s = 0.0
        self.starts_s: list[float] = []

    def ask(self, count: int) -> list[MeasurementRequest]:
        """The next requests; the CPU time that they take is counted."""
        began_s = time.thread_time()
        until = min(self.total, self._asked + count)
        asked = [
            conv_request(index % 256 + 1, 8 + index // 256, PLATFORM)
            for index in range(self._asked, until)
        ]
        for request in asked:
            _ = request.request_id  # the hash belongs to the graph, and not to the farm
        self._asked = until
        self.asking_s += time.thread_time() - began_s
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Note when each measurement started on its board."""
        self.told += len(measurements)
        for measurement in measurements:
            if measurement.ok:
                self.starts_s.append(measurement.measured_at_s)
            else:
                self.failures += 1

    @property
    def done(self) -> bool:
        """Whether all requests are answered, or the time is over."""
        return super().done or time.monotonic() > self._ends_s


class FirstResult(FarmObserver):
    """Notes when the first answer of a board arrived, by the monotonic clock; 0: not yet."""

    def __init__(self) -> None:
        self.at_s = 0.0

    def measured(self, board: str, measurement: Measurement, busy_s: float) -> None:
        """A board answered."""
        del board, measurement, busy_s
        self.at_s = self.at_s or time.monotonic()


async def serve(options: argparse.Namespace) -> None:
    """Do what each line asks for."""
    scheduler, first = TimedScheduler(), FirstResult()
    folder: Path = options.folder
    with DuckDBStore(folder / "store.duckdb") as store:
        began_s = time.monotonic()
        holder = f"bench-{os.getpid()}"
        # A lease as long as that of the product: it is renewed three times as often.
        lease_ms = ControllerConfig(home=folder).lease_ms
        settings = ShardSettings(holder, host_boot_id(), lease_ms=lease_ms)
        farm = Farm(_backend(options), holder, settings=settings, observer=first)
        await farm.start()
        gate = await _opened_gate(folder) if options.dialling else None
        try:
            _tell(start_s=time.monotonic() - began_s, port=0 if gate is None else gate.port)
            await _told_to("join")
            began_s = time.monotonic()
            await farm.add_boards(_reached(folder, gate))
            async with asyncio.timeout(JOIN_S):
                # Ray, which builds models, starts beside the boards.
                while len(farm.pool(PLATFORM)) < options.boards or not farm.builders.slots:
                    await asyncio.sleep(0.05)
            _tell(join_s=time.monotonic() - began_s)
            await _told_to("measure")
            scheduler.spent_s = 0.0
            began_s = time.monotonic()
            campaign = FarmCampaign(options.measurements, options.longest_s)
            record = CampaignRecord("bench", "bench", campaign.kind, PLATFORM)
            record = await Driver(store, farm).run(campaign, record)
            if record.state != "done":
                raise RuntimeError(f"the campaign is {record.state}: {record.error}")
            _tell(
                wall_s=time.monotonic() - began_s,
                first_result_s=first.at_s - began_s,
                measurements=campaign.told,
                failures=campaign.failures,
                asking_s=campaign.asking_s,
                scheduler_s=scheduler.spent_s,
                utilisation=utilisation(campaign.starts_s, options.measuring_ms, options.boards),
            )
            await _told_to("end")
        finally:
            await farm.stop()
            if gate is not None:
                await gate.close()


def _backend(options: argparse.Namespace) -> FarmBackend:
    if options.inline:
        return InlineBackend()
    folder: Path = options.folder
    log_path = folder / "ray.log"
    return RayBackend(RayOptions(folder / "ray", options.ray_address, log_path=log_path))


class OpenedGate(NamedTuple):
    """Where boards dial in: the port, the gate, and the boards that are connected."""

    port: int
    gate: Gate
    boards: DialledBoards

    async def close(self) -> None:
        """End all connections."""
        await asyncio.to_thread(self.gate.close)
        await self.boards.close()


async def _opened_gate(folder: Path) -> OpenedGate:
    """Take boards that dial in, as `latfarm serve --listen` does."""
    authority = authority_in(folder)
    own = authority.folder / "controller.crt"
    files = Files(own, own.with_suffix(".key"), authority.cert)
    gate = Gate(files, (OPERATOR,), limits=LIMITS, dialling=(AGENT,))
    port = gate.listen(HOST, 0)
    boards = DialledBoards(gate, Registry(folder / "boards.json"))
    await boards.open()
    gate.start()
    return OpenedGate(port, gate, boards)


def _reached(folder: Path, gate: OpenedGate | None) -> list[BoardEntry]:
    """The boards of the inventory, with the addresses through which they are called."""
    entries = Registry(folder / "boards.json").list()
    if gate is None:
        return entries
    return [replace(entry, address=gate.boards.address(entry.name)) for entry in entries]


def _tell(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


async def _told_to(word: str) -> None:
    """Wait for a line.

    Raises:
        EOFError: the benchmark has ended.
    """
    line = await asyncio.to_thread(sys.stdin.readline)
    if line.strip() != word:
        raise EOFError(f"{word!r} was expected, not {line!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("boards", type=int)
    parser.add_argument("measurements", type=int)
    parser.add_argument("measuring_ms", type=float)
    parser.add_argument("--longest-s", type=float, default=600.0, help="when the campaign ends")
    parser.add_argument("--inline", action="store_true", help="without Ray")
    parser.add_argument("--ray-address", default="", help="cluster to join; default: start one")
    parser.add_argument("--dialling", action="store_true", help="the boards dial in")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
