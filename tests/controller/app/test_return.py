"""A controller that was killed comes back: it gets its board, and what the board had finished."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.app.app import Controller
from latfarm_controller.errors import LeaseError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.processes.backends import InlineBackend
from latfarm_controller.holder import holder_id
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement

from tests.controller.app.spools import CONFIG, acknowledge_nothing, spooled

KEY = "0" * 32
LONG_MS = 600_000
"""A lease that no test waits for."""


async def campaign(lab: Any, store: DuckDBStore, count: int) -> CampaignRecord:
    """Run the campaign `c` in a controller with the secret `KEY`, from start to end."""
    settings = ShardSettings("test", holder_key=KEY, lease_ms=LONG_MS)
    farm = Farm(InlineBackend(), "test", settings=settings)
    controller = Controller(lab.config, store, Fleet(lab.config, "test"), farm)
    graphs = [lab.graph(60 + number).to_json() for number in range(count)]
    try:
        await controller.campaigns.continue_unattended()
        await controller.campaigns.start("networks", "toy", CONFIG | {"graphs": graphs}, "c")
        return [record async for record in controller.campaigns.watch("c")][-1]
    finally:
        await controller.close()


def measured(store: DuckDBStore) -> dict[str, Measurement]:
    return {m.request_id: m for m in store.measurements()}


def test_a_board_that_is_leased_to_a_dead_controller_of_this_home_is_not_waited_for(
    lab: Any, agent: Any
) -> None:
    async def main() -> CampaignRecord:
        async with AgentClient(agent.address, "dead") as dead:
            await dead.acquire(LONG_MS, holder_id(KEY, "toy"))
            async with AgentClient(agent.address, "thief") as thief:
                with pytest.raises(LeaseError, match="leased to dead"):
                    await thief.acquire(1000, holder_id(KEY, "another-board"))
            with DuckDBStore(lab.store_file) as store:
                record = await campaign(lab, store, 1)
            with pytest.raises(LeaseError, match=r"stale|expired or was released"):
                await dead.renew()
            return record

    record = asyncio.run(main())
    assert (record.state, record.measurements) == ("done", 1)


def test_what_the_board_had_finished_is_used_and_its_spool_is_emptied(
    lab: Any, agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, DuckDBStore(lab.store_file) as store:
        acknowledge_nothing(patched)
        asyncio.run(campaign(lab, store, 5))
        first = measured(store)
    assert sorted(asyncio.run(spooled(agent))) == sorted(first)
    # The controller that comes back knows the campaign, but stored none of its results.
    lab.store_file.unlink()
    with DuckDBStore(lab.store_file) as store:
        record = asyncio.run(campaign(lab, store, 6))
        second = measured(store)
        assert store.found_results() == []
    assert (record.state, record.measurements) == ("done", 6)
    assert first.keys() < second.keys()
    for name, answer in first.items():
        assert second[name].measured_at_s == answer.measured_at_s, "it was measured again"
        assert second[name].latency_ms == answer.latency_ms
    assert asyncio.run(spooled(agent)) == []
