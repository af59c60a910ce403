"""A campaign over several platforms of one board: pinned there, whatever others offer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from latfarm_controller.campaigns.base import MeasurementRequest, Progress
from latfarm_controller.farm.driving.campaign_run import NOT_OFFERED
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.measurement import Measurement, Outcome

from tests.controller.farm.conftest import until

RECORD = CampaignRecord("c1", "first", "engines", "*")


class Once:
    """Asks its requests at once."""

    kind = "once"

    def __init__(self, requests: Sequence[MeasurementRequest]) -> None:
        self._left = list(requests)
        self._total = len(requests)
        self.told: dict[str, Measurement] = {}

    def ask(self, count: int) -> list[MeasurementRequest]:
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, measurements: Sequence[Measurement]) -> None:
        self.told |= {m.request_id: m for m in measurements}

    @property
    def done(self) -> bool:
        return len(self.told) == self._total

    def progress(self) -> Progress:
        return Progress("once", len(self.told), self._total)

    def outcome(self) -> Mapping[str, Any]:
        return {}


def run(lab: Any, store: DuckDBStore, campaign: Once, scope: CampaignScope, **driver: Any) -> Any:
    async def scenario() -> CampaignRecord:
        async with lab.farm() as farm:
            names = {board.board_id for board in lab.boards}
            await until(lambda: {s.name for s in farm.boards() if s.online} == names)
            return await Driver(store, farm, **driver).run(campaign, RECORD, scope=scope)

    return asyncio.run(scenario())


def on(lab: Any, platform: str, board: str, numbers: range) -> list[MeasurementRequest]:
    return [replace(lab.request(number, platform), board=board) for number in numbers]


def test_all_platforms_are_measured_on_the_board_that_was_chosen(
    lab: Any, store: DuckDBStore
) -> None:
    mine, other = (lab.board(name, platforms=("p", "q")) for name in ("mine", "other"))
    requests = on(lab, "p", "mine", range(20)) + on(lab, "q", "mine", range(20))
    campaign = Once(requests)
    record = run(lab, store, campaign, CampaignScope(("p", "q"), "mine"))
    assert (record.state, record.measurements, record.failures) == ("done", 40, 0)
    assert sorted(mine.measured) == sorted(r.request_id for r in requests)
    assert other.measured == []
    assert set(record.outcome["boards"]) == {"mine"}
    assert {m.platform for m in campaign.told.values()} == {"p", "q"}


def test_the_same_question_to_a_certain_board_is_another_one(lab: Any) -> None:
    request = lab.request(0)
    assert replace(request, board="b1").request_id != request.request_id
    assert replace(request, board="b1").request_id != replace(request, board="b2").request_id


def test_a_platform_that_is_gone_fails_its_own_requests_alone(lab: Any, store: DuckDBStore) -> None:
    lab.board("mine", platforms=("p",))
    campaign = Once(on(lab, "p", "mine", range(3)) + on(lab, "gone", "mine", range(3)))
    record = run(lab, store, campaign, CampaignScope(("p", "gone"), "mine"))
    assert record.state == "done"
    failed = [m for m in campaign.told.values() if not m.ok]
    assert [m.error_code for m in failed] == [NOT_OFFERED] * 3
    assert {m.outcome for m in failed} == {Outcome.INFRASTRUCTURE_ERROR}
    assert {m.platform for m in failed} == {"gone"}


def test_another_board_of_the_platform_is_no_help(lab: Any, store: DuckDBStore) -> None:
    lab.board("mine", platforms=("p", "q"), answer=lambda board, question: 1 / 0)
    lab.board("other", platforms=("p", "q"))
    campaign = Once(on(lab, "p", "mine", range(20)))
    record = run(lab, store, campaign, CampaignScope(("p", "q"), "mine"), patience_s=0.01)
    assert record.state == "interrupted"
    assert "no board of p works" in record.error or "none by its own fault" in record.error
