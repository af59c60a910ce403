"""What the correction for a slow core repairs: on an idle core, and on one disturbed on purpose.

    make bench-slow-core                          some ten minutes on a quiet machine
    python -m benchmarks.repeating.slow_core --quick    half a minute, to see that it works
    python -m benchmarks.repeating.slow_core -p mnn --cpu 2 --write

The same models are measured again and again, while the measuring core is idle, and while it is
disturbed in the ways that this machine allows:

- `same core`: a program computes on the very core. The kernel gives both the core in turn.
- `sibling`: a program computes on the other hardware thread of the core, if the machine shows one.
  This is what neighbours do to a virtual machine that cannot see them.
- `memory`: programs on all other cores stream through memory.

The truth is the latency as timed on the idle core, in the median. For each model and disturbance
the table shows how far latencies are from it as timed, corrected with the exponent that the
controller assumes, and corrected with what the other half of the rounds teaches about this runtime
(`felt`). `repaired` is the share of the excess that the last one removes, where there is any. Load
and stolen time are printed, because they say whether the idle core was idle.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import platform
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from latfarm_controller import builders
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.slow_core import felt
from latfarm_controller.farm.boards.interfaces import BoardRequest
from latfarm_predictors.measurement import Measurement, Settings
from latfarm_predictors.slow_core import AS_TOLD, SlowCore

from benchmarks.repeating.repeatability import models

SETTINGS = Settings(sessions=1, warmup_runs=3, warmup_ms=20.0, min_runs=8, max_ms=100.0)
LEASE_MS = 600_000
"""Duration of the lease, which is renewed in each round."""
IDLE = "idle"
COMPUTING = "import numpy as np\na = np.ones((96, 96), np.float32)\nwhile True:\n    a @ a\n"
"""A program that computes like the probe, and never ends."""
STREAMING = (
    "import numpy as np\na = np.ones(32_000_000)\nb = np.empty_like(a)\nwhile True:\n"
    "    np.copyto(b, a)\n"
)
"""A program that copies 256 MB from memory to memory, and never ends."""

EXCESS = 0.03
"""Least excess, as a share of the latency, of which a repaired share is told."""

Rounds = dict[str, dict[str, list[Measurement]]]
"""Measurements by disturbance and model, one for each round."""


def siblings_of(core: int) -> list[int]:
    """The other hardware threads of a core, as far as the machine shows them."""
    path = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not path.is_file():
        return []
    found: list[int] = []
    for part in path.read_text().strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return [each for each in found if each != core]


def disturbances(core: int) -> dict[str, list[tuple[str, int]]]:
    """The programs of each disturbance, each with the core that it is bound to."""
    beside = siblings_of(core)
    others = sorted(os.sched_getaffinity(0) - {core, *beside})
    found = {
        IDLE: [],
        "same core": [(COMPUTING, core)],
        "sibling": [(COMPUTING, each) for each in beside],
        "memory": [(STREAMING, each) for each in others],
    }
    return {name: programs for name, programs in found.items() if programs or name == IDLE}


@contextmanager
def disturbed(programs: Sequence[tuple[str, int]]) -> Iterator[None]:
    """Run programs, each on its core, while the block runs."""
    started = []
    try:
        for program, core in programs:
            text = f"import os\nos.sched_setaffinity(0, {{{core}}})\n{program}"
            command = [sys.executable, "-c", text]
            started.append(subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


async def measure(options: argparse.Namespace, address: str) -> tuple[str, Rounds]:
    """Measure all models in all rounds; returns the platform and the measurements."""
    found: Rounds = {}
    draw = random.Random(options.seed)
    ways = disturbances(options.cpu)
    graphs = dict(list(models().items())[: 2 if options.quick else None])
    async with AgentClient(address, "slow-core") as client:
        board = await client.describe()
        named = [p for p in board.platforms if options.platform in p.name]
        if not named:
            raise SystemExit(f"no platform of this machine has {options.platform!r} in its name")
        target = named[0]
        await client.acquire(LEASE_MS)
        blobs = {}
        for name, graph in graphs.items():
            data = builders.build(graph, target.model_format, target.dtype)
            blobs[name] = hashlib.sha256(data).hexdigest()
            await client.upload(blobs[name], data)
        for number in range(options.rounds):
            # The first look at the core must find it idle, because it tells how fast the core is.
            order = list(ways) if number == 0 else draw.sample(list(ways), len(ways))
            for way in order:
                await client.renew(LEASE_MS)
                with disturbed(ways[way]):
                    for name, graph in graphs.items():
                        asked = MeasurementRequest(
                            graph, target.name, f"bench {way}", SETTINGS, repeat=number
                        )
                        got = await client.measure(BoardRequest.of(asked), blobs[name])
                        await client.acknowledge([asked.request_id])
                        if not got.ok:
                            raise SystemExit(f"{name}: {got.error_code} {got.error_message}")
                        found.setdefault(way, {}).setdefault(name, []).append(got)
        await client.release()
    return target.name, found


def learned(found: Rounds, without: int) -> SlowCore:
    """What rounds of the other parity teach about the runtime."""
    return felt(
        m
        for models_ in found.values()
        for passes in models_.values()
        for number, m in enumerate(passes)
        if number % 2 != without % 2
    )


def off(found: Sequence[float], truth_ms: float) -> float:
    """How far latencies are from the truth, as the median of shares."""
    return median(abs(each / truth_ms - 1.0) for each in found)


def table(found: Rounds) -> list[dict[str, Any]]:
    """One row for each disturbance and model."""
    cores = [learned(found, 0), learned(found, 1)]
    rows = []
    for way, models_ in found.items():
        for name, passes in models_.items():
            truth_ms = median(each.timed_ms for each in AS_TOLD.latencies(found[IDLE][name]))
            assumed = AS_TOLD.latencies(passes)
            taught = [
                each.corrected_ms
                for number, m in enumerate(passes)
                if (each := cores[number % 2].latency(m)) is not None
            ]
            timed = off([each.timed_ms for each in assumed], truth_ms)
            rows.append(
                {
                    "disturbance": way,
                    "model": name,
                    "idle_ms": truth_ms,
                    "slowdown": median(each.slowdown for each in assumed),
                    "off_timed": timed,
                    "off_corrected": off([each.corrected_ms for each in assumed], truth_ms),
                    "off_learned": off(taught, truth_ms),
                    "repaired": 1.0 - off(taught, truth_ms) / timed if timed > EXCESS else None,
                }
            )
    return rows


def told(found: Rounds, name: str) -> str:
    """The median of a condition over all measurements; "unknown" if the board does not tell it."""
    values = []
    for models_ in found.values():
        for m in (m for passes in models_.values() for m in passes):
            try:
                values.append(float(m.conditions.get(name, "")))
            except ValueError:
                continue
    return f"{median(values):.3g}" if values else "unknown"


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the table."""
    print(
        f"{'disturbance':12} {'model':30} {'idle, ms':>9} {'slowdown':>8} {'timed':>8} "
        f"{'assumed':>8} {'learned':>8} {'repaired':>9}"
    )
    for row in rows:
        repaired = "" if row["repaired"] is None else f"{row['repaired']:.0%}"
        print(
            f"{row['disturbance']:12} {row['model']:30} {row['idle_ms']:9.3f} "
            f"{row['slowdown']:8.2f} {row['off_timed']:8.1%} {row['off_corrected']:8.1%} "
            f"{row['off_learned']:8.1%} {repaired:>9}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="how often each is measured")
    parser.add_argument("-p", "--platform", default="onnxruntime", help="part of its name")
    parser.add_argument("--cpu", type=int, default=max(os.sched_getaffinity(0)), help="the core")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two models, two rounds")
    parser.add_argument("--write", action="store_true", help="keep the results beside this file")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds = min(options.rounds, 2)
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        with LocalAgent(
            LocalAgentOptions(state / "agent", state / "agent.log", cpu=options.cpu)
        ) as agent:
            target, found = asyncio.run(measure(options, agent.address))
    rows, core = table(found), learned(found, -1)
    show(rows)
    both = {name: told(found, name) for name in ("load_1m", "steal_share", "clock_slowdown")}
    print(f"{target}; core {options.cpu}; medians: {both}")
    print(f"the exponent of one half of the rounds: {core.shift:+.2f} +- {core.error:.2f}")
    if options.write:
        record = {
            "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "processor": platform.processor() or platform.machine(),
            "platform": target,
            "rounds": options.rounds,
            "conditions": both,
            "learned": core.to_json(),
            "rows": rows,
        }
        path = Path(__file__).with_suffix(".json")
        path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n")
    return 0 if all(math.isfinite(row["off_learned"]) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
