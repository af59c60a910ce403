"""Results that boards had kept wait in the store until a campaign asks for them."""

from __future__ import annotations

from pathlib import Path

import duckdb
from latfarm_controller.store.base import CampaignRecord, FoundResult
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.migrate import known_migrations, migrate


def result(request_id: str, payload: bytes = b"\x00\xffresult") -> FoundResult:
    return FoundResult(request_id, "b", "p", "f", 1.5, payload)


def test_they_come_back_equal_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with DuckDBStore(path) as store:
        store.add_found_results([result("r2"), result("r1")])
        store.add_found_results([])
    with DuckDBStore(path) as store:
        assert store.found_results() == [result("r2"), result("r1")]
        store.add_found_results([result("r2", b"newer")])
        assert store.found_results() == [result("r1"), result("r2", b"newer")]
        store.drop_found_results(["r1", "unknown"])
        store.drop_found_results([])
        assert store.found_results() == [result("r2", b"newer")]


def test_a_campaign_keeps_why_it_waits_and_who_continues_it(store: DuckDBStore) -> None:
    record = CampaignRecord("c", "c", "kernels", "p", state="waiting")
    waiting = CampaignRecord(
        "c", "c", "kernels", "p", state="waiting", waiting_for="no board", unattended=True
    )
    store.put_campaign(record)
    store.put_campaign(waiting)
    assert store.get_campaign("c") == waiting


def test_campaigns_of_an_older_store_wait_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    steps = known_migrations()
    version = next(step.version for step in steps if step.name == "unattended")
    columns = "campaign_id, name, kind, platform, config, state, stage"
    with duckdb.connect(str(path)) as connection:
        migrate(connection, steps[: version - 1])
        connection.execute(
            f"INSERT INTO campaigns (seq, {columns}, stage_done, stage_total, measurements, "
            "failures, board_ms, wall_ms, started_at_s, finished_at_s, outcome, error) VALUES "
            "(1, 'c', 'c', 'kernels', 'p', '{}', 'running', '', 0, 0, 3, 0, 0, 0, 1, 0, '{}', '')"
        )
    with DuckDBStore(path) as store:
        found = store.get_campaign("c")
        assert found is not None
        assert (found.waiting_for, found.unattended, found.measurements) == ("", False, 3)
        assert store.found_results() == []
