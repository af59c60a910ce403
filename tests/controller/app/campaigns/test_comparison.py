"""The board and platforms that a comparison chooses, and one run of it with a real agent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.agents.fleet import BoardView
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.app.campaigns.comparison import compared
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord

CONFIG = {
    "networks": ["squeezenet", "mobilenet-v1"],
    "resolution": 64,
    "passes": 2,
    "simulated": True,
    "settings": {"sessions": 1, "warmup_ms": 0.0, "max_ms": 10.0, "max_runs": 5},
}


def view(name: str, platforms: Sequence[str], *, real_time: bool = True) -> BoardView:
    offers = tuple(
        PlatformInfo(f"{name}-{p}", "mnn", "fp32", {"threads": "1"}, "f", real_time)
        for p in platforms
    )
    lacks = [
        RuntimeInfo(kind, False, missing=f"{kind} is not installed")
        for kind in ("openvino", "simulated")
    ]
    info = BoardInfo(
        f"id-{name}",
        name,
        hardware={"cpu": "a core"},
        runtimes=(RuntimeInfo("mnn", True, "3.6.1", platforms=offers), *lacks),
    )
    return BoardView(BoardEntry(name, "127.0.0.1:1"), info)


MNN = ("mnn3.6-fp32-1t", "mnn3.6-fp32-2t", "mnn3.6-fp32-4t")


def names(config: dict[str, Any]) -> list[str]:
    return [found["name"] for found in config["offers"]]


def test_all_platforms_of_the_only_board_that_fits_are_compared() -> None:
    away = BoardView(BoardEntry("away", "127.0.0.1:2"), None, "no answer")
    made = compared("*", {"threads": [1, 4]}, [view("pi", MNN), away])
    assert names(made) == ["pi-mnn3.6-fp32-1t", "pi-mnn3.6-fp32-4t"]
    assert (made["board"], made["board_id"], made["hardware"]) == ("pi", "id-pi", {"cpu": "a core"})
    assert made["threads"] == [1, 4]
    assert made["missing"] == {"openvino": "openvino is not installed"}
    assert made["offers"][1]["engine"] == "mnn3.6"
    assert made["offers"][1]["threads"] == 4


def test_of_several_boards_one_must_be_named() -> None:
    views = [view("pi", MNN), view("rock", MNN[:1])]
    with pytest.raises(UsageError, match="several boards offer '\\*': pi, rock"):
        compared("*", {}, views)
    assert names(compared("*", {"board": "rock"}, views)) == ["rock-mnn3.6-fp32-1t"]
    assert names(compared("*", {"board": "id-rock"}, views)) == ["rock-mnn3.6-fp32-1t"]
    assert names(compared("rock*", {}, views)) == ["rock-mnn3.6-fp32-1t"]


def test_where_nothing_fits_the_known_platforms_are_told() -> None:
    with pytest.raises(UsageError, match=r"nothing to compare.*known: pi-mnn3\.6-fp32-1t"):
        compared("*-int8-*", {}, [view("pi", MNN[:1])])
    with pytest.raises(UsageError, match="nothing to compare"):
        compared("*", {}, [view("sim", MNN, real_time=False)])
    with pytest.raises(UsageError, match="there is no board"):
        compared("*", {}, [])


async def end(controller: Any, name: str) -> None:
    async for _ in controller.campaigns.watch(name):
        pass


@pytest.mark.timeout(90)
def test_a_comparison_runs_stops_and_goes_on(lab: Any) -> None:
    async def main() -> CampaignRecord:
        async with lab.controller() as controller:
            started = await controller.campaigns.start("engines", "to*", CONFIG, "")
            async for state in controller.campaigns.watch(started.campaign_id):
                if state.measurements:
                    break
            stopped = await controller.campaigns.cancel(started.campaign_id)
            assert stopped.state == "cancelled"
        async with lab.controller() as controller:
            again = await controller.campaigns.start("engines", "to*", CONFIG, "")
            assert again.campaign_id == started.campaign_id
            await end(controller, again.campaign_id)
            found: CampaignRecord = await controller.campaigns.get(again.campaign_id)
            return found

    record = asyncio.run(main())
    assert (record.state, record.error) == ("done", "")
    assert record.platform == "to*"
    assert record.config["board"] == "toy"
    assert [found["name"] for found in record.config["offers"]] == ["toy"]
    cells = record.outcome["cells"]
    assert [cell["network"] for cell in cells] == CONFIG["networks"]
    assert all(len(cell["passes_ms"]) == 2 for cell in cells)
    assert record.measurements == 4
    assert all(cell["mean_ms"] for cell in cells)
