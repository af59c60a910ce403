"""Characterise a simulated board from Python: measure, store, train, and write a bundle.

Usage: `python examples/characterize_simulated_board.py HOME`

The folder HOME receives the measurements (`store.duckdb`) and the bundle. The board is an agent in
a process of its own that computes latencies from a profile instead of running models, so that this
program needs no hardware. A real board differs in one line: give the registry its address instead.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app.app import Controller
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.training import bundles

PLATFORM = "example-npu"
PROFILE = {
    "platform": PLATFORM,
    "peak_macs_per_ms": 1e8,
    "vector_ops_per_ms": 1e7,
    "bandwidth_bytes_per_ms": 8e6,
    "overhead_ms": 0.004,
    "call_overhead_ms": 0.05,
    "noise": 0.01,
    "tiles": {"out_channels": 32, "in_channels": 16, "width": 4},
    "fused_pairs": [["Conv", "BatchNormalization"], ["Conv", "Relu"], ["Conv", "Clip"]],
}
"""The simulated hardware: how fast it computes and moves data, and which ops it fuses."""

OPTIONS = {
    "budget": 60,
    "calibration": 10,
    "context": 0,
    "insight": "single",
    "fusion": {"pairs": [["conv", "relu"], ["conv", "relu6"], ["conv", "bn"], ["conv", "add"]]},
}
"""Options of the campaign. With them it measures little and takes seconds. Without options it
measures 450 kernels, 20 networks and 72 pairs of ops. `CharacterizeOptions` describes every key."""


async def characterize(home: Path, agent: LocalAgent) -> CampaignRecord:
    """Run the campaign to its end and print its progress; return its record."""
    config = ControllerConfig(home=home, local_agent=False)
    config.make_dirs()
    Registry(config.boards_file).add("npu", agent.address)
    with DuckDBStore(config.store_file) as store:
        farm = Farm(
            InlineBackend(), "example"
        )  # one board needs no further process, so Ray is not used
        controller = Controller(config, store, Fleet(config, "example"), farm)
        try:
            runs = controller.campaigns
            started = await runs.start("characterize", PLATFORM, OPTIONS, "example")
            stage = ""
            async for record in runs.watch(started.campaign_id):
                if record.stage != stage:
                    stage = record.stage
                    print(f"stage: {stage}")
            return await runs.get(started.campaign_id)
        finally:
            await controller.close()


def main() -> None:
    """Characterise the board, and print the path of the bundle."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("home", type=Path, help="folder for the measurements and the bundle")
    home = parser.parse_args().home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    profile = home / "profile.json"
    profile.write_text(json.dumps(PROFILE), encoding="utf-8")
    options = LocalAgentOptions(home / "board", home / "board.log", "npu", simulate=profile)
    with LocalAgent(options) as agent:
        record = asyncio.run(characterize(home, agent))
    if record.state != "done":
        raise SystemExit(f"the campaign ended as {record.state}: {record.error}")
    bundle = bundles.choose(ControllerConfig(home=home).bundles_dir, PLATFORM)
    print(f"{record.measurements} measurements, {record.failures} failures")
    print(f"bundle: {bundle}")


if __name__ == "__main__":
    main()
