"""A controller in the event loop of the test, with a real store and agent but without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.app import inventory_watch
from latfarm_controller.app.app import Controller
from latfarm_controller.app.campaigns import patient_run
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.driving import campaign_run, run_recorder, waits
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from tests.controller.app.site import Site
from tests.controller.farm.conftest import full_disk

__all__ = ["full_disk"]

PROFILE = {
    "platform": "toy",
    "peak_macs_per_ms": 2e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "noise": 0.01,
    "measure_ms": 30,
    "fused_pairs": [["Conv", "Relu"]],
    "unsupported_ops": ["Erf"],
}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAgent]:
    """A simulated board that needs 30 ms for a measurement."""
    folder = tmp_path_factory.mktemp("board")
    profile = folder / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    with LocalAgent(LocalAgentOptions(folder / "s", folder / "log", "toy", simulate=profile)) as it:
        yield it


class Lab:
    """Makes controllers of one home, one after the other."""

    def __init__(self, home: Path, agent: LocalAgent) -> None:
        self.config = ControllerConfig(home=home, local_agent=False)
        self.config.make_dirs()
        self.store_file = self.config.store_file
        Registry(self.config.boards_file).add("toy", agent.address)

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[Controller]:
        """A controller, which is closed together with its store at the end of the block."""
        with DuckDBStore(self.store_file) as store:
            # Short, because a lease granted while the controller stopped only ends by time.
            settings = ShardSettings("test", lease_ms=2000)
            farm = Farm(InlineBackend(), "test", settings=settings)
            controller = Controller(self.config, store, Fleet(self.config, "test"), farm)
            try:
                async with asyncio.timeout(60):
                    yield controller
            finally:
                await controller.close()

    @staticmethod
    def graph(channels: int, *, gelu: bool = False) -> Graph:
        """A small network."""
        builder = GraphBuilder(f"net{channels}")
        x = builder.conv(builder.input((1, 3, 16, 16)), channels, 3)
        return builder.build([builder.gelu(x) if gelu else builder.relu(x)])


@pytest.fixture
def lab(tmp_path: Path, agent: LocalAgent) -> Iterator[Lab]:
    """A fresh home that knows the board."""
    lab = Lab(tmp_path / "home", agent)
    yield lab
    # Remove the folder of this home's sockets, which lies elsewhere if the path is long.
    if not lab.config.ray_dir.is_relative_to(lab.config.home):
        lab.config.ray_dir.rmdir()
        lab.config.ray_dir.parent.rmdir()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A fresh home, whose campaigns wait for milliseconds."""
    monkeypatch.setattr(waits, "GRACE_S", 0.05)
    monkeypatch.setattr(waits, "FIRST_RETRY_S", 0.02)
    monkeypatch.setattr(waits, "LEAST_RETRY_S", 0.0)
    monkeypatch.setattr(campaign_run, "LOOK_S", 0.01)
    monkeypatch.setattr(run_recorder, "FLUSH_S", 0.05)
    monkeypatch.setattr(patient_run, "LOOK_S", 0.01)
    monkeypatch.setattr(inventory_watch, "PAUSE_S", 0.02)
    return Site(tmp_path / "home")
