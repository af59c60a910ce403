"""How a pool of boards scales: the same campaign on 1, 2, 4 and 8 simulated boards.

Each board is an agent process of its own, which is reached over loopback like any board, and whose
simulated runtime takes real time to measure. The campaign uses the whole system: driver, scheduler,
builders and board shard on Ray, agent, and the DuckDB store. The figures are written into
`pool.json` beside this file.

Usage: `make bench-pool`, or `python -m benchmarks.pool --measure-ms 50 500 --boards 1 2 4 8`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from benchmarks.farm.small_convolutions import CountingCampaign, conv_request

REQUESTS = {50: 640}
"""Number of requests, by the duration of a measurement in ms."""
DEFAULT_REQUESTS = 160
"""Number of requests for other durations."""
JOIN_S = 60.0
"""Longest time in seconds until all boards have joined the pool."""


class Flat(CountingCampaign):
    """A campaign whose requests are all known from the start."""

    kind = "flat"

    def __init__(self, requests: Sequence[MeasurementRequest]) -> None:
        super().__init__(len(requests))
        self._left = list(requests)

    def ask(self, count: int) -> list[MeasurementRequest]:
        """The next requests."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        """Count the measurements; a failure ends the benchmark."""
        for measurement in measurements:
            if not measurement.ok:
                raise RuntimeError(f"{measurement.error_code} {measurement.error_message}")
        self.told += len(measurements)


def start_agents(
    stack: ExitStack, folder: Path, measure_ms: int, count: int
) -> tuple[str, list[BoardEntry]]:
    """Start agents of simulated boards of one platform; gives the platform and the boards."""
    platform = f"simulated-{measure_ms}ms"
    profile = folder / f"{platform}.json"
    text = json.dumps({"platform": platform, "noise": 0.01, "measure_ms": measure_ms})
    profile.write_text(text, encoding="utf-8")
    entries = []
    for index in range(count):
        name = f"{platform}-{index}"
        options = LocalAgentOptions(
            state_dir=folder / name,
            log_path=folder / f"{name}.log",
            name=name,
            hardware=name,
            simulate=profile,
        )
        entries.append(BoardEntry(name, stack.enter_context(LocalAgent(options)).address))
        print(f"\r{platform}: {index + 1} agents run", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return platform, entries


async def measure(
    farm: Farm, store: DuckDBStore, platform: str, measure_ms: int, boards: int, count: int
) -> dict[str, float]:
    """Run one campaign on the boards that are connected now; gives its figures."""
    requests = [conv_request(index + 1, 8 + boards, platform) for index in range(count)]
    campaign_id = f"{platform}-{boards}"
    record = CampaignRecord(campaign_id, campaign_id, "flat", platform)
    started_s = time.perf_counter()
    record = await Driver(store, farm).run(Flat(requests), record)
    wall_s = time.perf_counter() - started_s
    if record.state != "done":
        raise RuntimeError(f"{campaign_id}: {record.state}: {record.error}")
    busy_ms = sum(figures["busy_ms"] for figures in record.outcome["boards"].values())
    return {
        "measure_ms": measure_ms,
        "boards": boards,
        "requests": count,
        "wall_s": round(wall_s, 3),
        "each_ms": round(busy_ms / count, 2),
        "utilisation": round(busy_ms / (1e3 * wall_s * boards), 4),
    }


async def run(
    delays_ms: Sequence[int], sizes: Sequence[int], requests: int
) -> list[dict[str, Any]]:
    """Run all combinations one after the other, with one Ray."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="latfarm-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        store = DuckDBStore(folder / "store.duckdb")
        stack.callback(store.close)
        farm = Farm(RayBackend(RayOptions(folder / "ray")), f"bench-{os.getpid()}")
        await farm.start()
        try:
            while not farm.builders.slots:  # Ray is being started
                await asyncio.sleep(0.05)
            for measure_ms in delays_ms:
                with ExitStack() as agents:
                    platform, entries = start_agents(agents, folder, measure_ms, max(sizes))
                    for boards in sorted(sizes):
                        await farm.add_boards(entries[:boards])
                        async with asyncio.timeout(JOIN_S):
                            while len(farm.pool(platform)) < boards:
                                await asyncio.sleep(0.05)
                        count = requests or REQUESTS.get(measure_ms, DEFAULT_REQUESTS)
                        row = await measure(farm, store, platform, measure_ms, boards, count)
                        add_speed_up(row, rows)
                        rows.append(row)
                        show(row)
        finally:
            await farm.stop()
    return rows


def add_speed_up(row: dict[str, Any], earlier: Sequence[Mapping[str, Any]]) -> None:
    """Add the speed-up over the smallest pool of the same duration, and its share of linear."""
    base = next((r for r in earlier if r["measure_ms"] == row["measure_ms"]), row)
    speed_up = base["boards"] * base["wall_s"] / row["wall_s"]
    row["speed_up"] = round(speed_up, 3)
    row["of_linear"] = round(speed_up / row["boards"], 4)


def show(row: Mapping[str, Any]) -> None:
    print(
        f"{row['measure_ms']:>6} ms  {row['boards']:>2} boards  {row['requests']:>4} requests  "
        f"{row['wall_s']:>8.2f} s  speed-up {row['speed_up']:>5.2f}  "
        f"of linear {row['of_linear']:.3f}  utilisation {row['utilisation']:.3f}  "
        f"board time each {row['each_ms']:.1f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--measure-ms", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--boards", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--requests", type=int, default=0, help="default: 640 at 50 ms, else 160")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pool.json"))
    options = parser.parse_args()
    rows = asyncio.run(run(options.measure_ms, options.boards, options.requests))
    result = {"cpus": os.cpu_count(), "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
