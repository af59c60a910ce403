"""What the store knows of measurements beside themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.app.result_details import ResultDetails, check_filters, find_graph
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.equivalences import network_hash_of
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome


def conv(channels: int) -> Graph:
    b = GraphBuilder(f"net{channels}")
    return b.build([b.relu(b.conv(b.input((1, 3, 16, 16)), channels, 3))])


def measured(graph: Graph, purpose: str, at_s: float, request: str = "") -> Measurement:
    return Measurement(
        request or f"{purpose}-{graph.name}",
        hash_of(graph),
        "toy",
        purpose,
        Outcome.OK,
        latency_ms=1.0,
        measured_at_s=at_s,
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DuckDBStore]:
    with DuckDBStore(tmp_path / "store.duckdb") as opened:
        for number, name in enumerate(("first", "second")):
            opened.put_campaign(CampaignRecord(f"c{number}", name, "kernels", "toy"))
        opened.add_measurements("c0", [(measured(conv(4), "kernel", 10.0), conv(4))])
        opened.add_measurements("c0", [(measured(conv(8), "network", 20.0), conv(8))])
        # Both campaigns were told this one.
        shared = (measured(conv(5), "network", 30.0), conv(5))
        opened.add_measurements("c0", [shared])
        opened.add_measurements("c1", [shared])
        yield opened


def details(store: DuckDBStore, **filters: Any) -> list[dict[str, Any]]:
    found = list(store.measurements(**filters))
    return ResultDetails(store).of(found, str(filters.get("campaign_id", "")))


def test_each_has_its_network_kernel_and_campaign(store: DuckDBStore) -> None:
    rows = details(store)
    assert [row["network"] for row in rows] == ["net5", "net5", "net8", "net4"]
    assert sorted(row["campaign"] for row in rows[:2]) == ["first", "second"]
    assert [row["campaign_id"] for row in rows[2:]] == ["c0", "c0"]
    assert [row["kernel"] for row in rows] == ["", "", "", "Conv+Relu"]
    assert rows[3]["configuration"]["out_channels"] == 4
    assert rows[3]["configuration"]["kernel"] == "3x3"
    assert rows[0]["configuration"] == {}


def test_the_campaign_that_was_asked_for_is_told(store: DuckDBStore) -> None:
    assert [row["campaign"] for row in details(store, campaign_id="c1")] == ["second"]


def test_filters_that_name_nothing_are_refused_with_the_nearest(store: DuckDBStore) -> None:
    check_filters(store, "toy", "kernel")
    with pytest.raises(
        UsageError, match="nothing was measured on platform 'tooy'; did you mean toy"
    ):
        check_filters(store, "tooy", "")
    elsewhere = replace(measured(conv(4), "query", 40.0), platform="board2-fp32")
    store.add_measurements("c2", [(elsewhere, conv(4))])
    with pytest.raises(UsageError, match="'board-fp32'; did you mean board2-fp32"):
        check_filters(store, "board-fp32", "")  # no campaign ran on that platform
    with pytest.raises(UsageError, match="no purpose 'kernels'; did you mean kernel"):
        check_filters(store, "", "kernels")


def test_a_store_without_measurements_tells_how_to_measure(tmp_path: Path) -> None:
    with (
        DuckDBStore(tmp_path / "new.duckdb") as empty,
        pytest.raises(UsageError, match="nothing was measured yet; latfarm query MODEL"),
    ):
        check_filters(empty, "toy", "")


def test_a_hash_is_turned_into_a_network(store: DuckDBStore) -> None:
    graph = conv(8)
    for text in (hash_of(graph), hash_of(graph)[:12], network_hash_of(graph)[:12].upper()):
        found, network = find_graph(store, text)
        assert found == hash_of(graph)
        assert network == graph


@pytest.mark.parametrize(
    ("text", "story"),
    [("abc", "at least 6"), ("no-hash", "is no hash"), ("0123456789ab", "latfarm results lists")],
)
def test_what_is_no_hash_is_told(store: DuckDBStore, text: str, story: str) -> None:
    with pytest.raises(UsageError, match=story):
        find_graph(store, text)


def test_the_beginning_of_several_hashes_is_refused(
    store: DuckDBStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = [hash_of(conv(4)), hash_of(conv(8))]
    monkeypatch.setattr(store, "graph_hashes", lambda _beginning, _limit: both)
    with pytest.raises(UsageError, match=r"several networks.*net4.*net8.*more digits"):
        find_graph(store, "abcdef")
