"""Kept facts are used until the data of the report changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.app import reporting
from latfarm_controller.reports.report_cache import ReportCache
from latfarm_controller.store.base import CampaignRecord

from tests.controller.reports import toy

FACTS = {"platform": "p", "made_at_s": 1.5, "networks": [0.1, 1e-300, None, "\u00e9"]}


@pytest.fixture
def cache(tmp_path: Path) -> ReportCache:
    return ReportCache(tmp_path / "kept", most=3)


def test_the_same_inputs_have_the_same_facts(cache: ReportCache) -> None:
    assert cache.get("p", "", "1") is None
    cache.put("p", "", "1", FACTS)
    assert cache.get("p", "", "1") == FACTS
    assert cache.get("p", "", "2") is None
    assert cache.get("p", "other", "1") is None
    assert cache.get("q", "", "1") is None


def test_what_is_damaged_is_nothing(cache: ReportCache, tmp_path: Path) -> None:
    cache.put("p", "", "1", FACTS)
    (path,) = (tmp_path / "kept").iterdir()
    content = path.read_bytes()
    for place in range(len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert cache.get("p", "", "1") is None, place
    path.write_bytes(content[:-5])
    assert cache.get("p", "", "1") is None


def test_no_name_leaves_the_folder_and_the_oldest_goes(cache: ReportCache, tmp_path: Path) -> None:
    for name in ("../../out", "/etc/out", "\0", "a" * 5000, "p"):
        cache.put(name, "", "1", FACTS)
        assert cache.get(name, "", "1") == FACTS
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    assert len(list((tmp_path / "kept").iterdir())) == 3


def test_a_folder_that_cannot_be_written_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("no folder")
    cache = ReportCache(tmp_path / "kept")
    cache.put("p", "", "1", FACTS)
    assert cache.get("p", "", "1") is None


def test_a_report_is_made_once_until_something_is_measured(
    lab: toy.Lab, cache: ReportCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def facts(record: Any) -> dict[str, Any]:
        made.append(record.platform)
        return {"platform": record.platform, "number": len(made)}

    monkeypatch.setattr(reporting, "platform_facts", facts)

    def ask(campaign: str = "") -> Any:
        return reporting.report(lab.store, lab.bundles, toy.PLATFORM, campaign, cache)["number"]

    assert [ask(), ask(), ask()] == [1, 1, 1]
    assert ask(toy.CAMPAIGN) == 2
    before = lab.store.revision(toy.PLATFORM)
    assert lab.store.revision(toy.PLATFORM) == before
    some = next(iter(lab.store.measurements(platform=toy.PLATFORM, limit=1)))
    graph = lab.store.get_graph(some.graph_hash)
    assert graph is not None
    lab.store.put_campaign(
        CampaignRecord("another", "another", "query", toy.PLATFORM, state="done")
    )
    assert lab.store.revision(toy.PLATFORM) != before
    assert [ask(), ask()] == [3, 3]
    told = lab.store.revision(toy.PLATFORM)
    assert lab.store.discard_measurements(some.board_id, some.measured_at_s - 1e-3, "a test")
    assert lab.store.revision(toy.PLATFORM) != told
    assert [ask(), ask()] == [4, 4]
