"""What the records of campaigns mean for the boards, without any board."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from latfarm_controller.app.campaigns.campaign_runs import CampaignRuns
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore


class Spools:
    """Notes for which platforms the results on boards are still wanted."""

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()

    def want(self, platforms: Collection[str]) -> None:
        """Results of these platforms are wanted from now on."""
        self.wanted = frozenset(platforms)


def test_results_for_a_removed_campaign_are_not_wanted_any_more(tmp_path: Path) -> None:
    spools, nothing = Spools(), cast("Any", None)

    async def remove(store: DuckDBStore) -> None:
        runs = CampaignRuns(store, nothing, nothing, nothing, cast("Any", spools), tmp_path)
        assert spools.wanted == {"toy", "other"}
        await runs.remove("first")
        assert spools.wanted == {"other"}

    with DuckDBStore(tmp_path / "store.duckdb") as store:
        store.put_campaign(CampaignRecord("c1", "first", "kernels", "toy", state="paused"))
        store.put_campaign(CampaignRecord("c2", "second", "kernels", "other", state="paused"))
        asyncio.run(remove(store))
