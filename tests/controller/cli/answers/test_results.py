"""`latfarm results`, `results export` and `graph show HASH` on a store that was filled before."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from latfarm_controller.config import load_config
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer

Latfarm = Callable[..., Any]
AT_S = 1_700_000_000.0
"""When the first measurement was taken: 2023-11-14 22:13:20 in Coordinated Universal Time."""


def conv(channels: int) -> Graph:
    b = GraphBuilder(f"net{channels}")
    return b.build([b.relu(b.conv(b.input((1, 3, 16, 16)), channels, 3))])


def measured(graph: Graph, purpose: str, number: int) -> Measurement:
    return Measurement(
        f"request-{number}",
        hash_of(graph),
        "toy-fp32",
        purpose,
        Outcome.OK,
        latency_ms=1.5,
        session_ms=(1.4, 1.6),
        runs=7,
        measured_at_s=AT_S + number,
        conditions={"governor": "performance"},
    )


@pytest.fixture
def filled(home: Path) -> None:
    config = load_config()
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        store.put_campaign(CampaignRecord("c1", "demo", "kernels", "toy-fp32", state="done"))
        layer = ProfiledLayer("conv_0", "Conv", 1.0, "cpu")
        network = replace(measured(conv(8), "network", 1), layers=(layer,))
        told = [(measured(conv(4), "kernel", 0), conv(4)), (network, conv(8))]
        store.add_measurements("c1", told)


def test_rows_have_names_campaign_and_time(latfarm: Latfarm, filled: None) -> None:
    ended = latfarm("results")
    assert ended.code == 0, ended
    header, network, kernel = (" ".join(line.split()) for line in ended.out.splitlines())
    assert header.startswith("graph network or kernel platform purpose campaign measured at")
    assert network.startswith(
        f"{hash_of(conv(8))[:12]} net8 toy-fp32 network demo 2023-11-14 22:13"
    )
    assert kernel.startswith(f"{hash_of(conv(4))[:12]} Conv+Relu toy-fp32 kernel demo 2023-11-14")
    told = json.loads(latfarm("results", "--json").out)
    assert [row["network"] for row in told] == ["net8", "net4"]
    assert told[1]["kernel"] == "Conv+Relu"
    assert told[1]["configuration"]["in_channels"] == 3
    assert told[0]["measured_at"] == "2023-11-14T22:13:21+00:00"
    assert told[0]["received_at"] is None


def test_parquet_has_nested_types_and_timestamps(
    latfarm: Latfarm, filled: None, tmp_path: Path
) -> None:
    path = tmp_path / "m.parquet"
    assert latfarm("results", "export", path).code == 0
    network, kernel = pq.read_table(path).to_pylist()
    assert (network["network"], network["campaign"], network["campaign_id"]) == (
        *("net8", "demo"),
        "c1",
    )
    assert kernel["kernel"] == "Conv+Relu"
    assert (kernel["config_family"], kernel["config_kernel"]) == ("conv", "3x3")
    assert (kernel["config_in_channels"], kernel["config_out_channels"]) == (3, 4)
    assert network["config_out_channels"] is None
    assert kernel["measured_at"] == datetime.fromtimestamp(AT_S, UTC)
    assert kernel["measured_at_s"] == AT_S
    assert kernel["received_at"] is None
    assert network["layers"] == [
        {"name": "conv_0", "op": "Conv", "latency_ms": 1.0, "device": "cpu"}
    ]
    assert network["settings"]["max_runs"] == 200
    assert dict(network["conditions"])["governor"] == "performance"
    assert network["session_ms"] == [1.4, 1.6]
    assert network["timed_ms"] == pytest.approx(1.5)


def test_csv_has_the_same_columns(latfarm: Latfarm, filled: None, tmp_path: Path) -> None:
    for name in ("m.csv", "m.parquet"):
        assert latfarm("results", "export", tmp_path / name).code == 0
    with (tmp_path / "m.csv").open(newline="") as file:
        network, kernel = csv.DictReader(file)
    assert list(network) == pq.read_table(tmp_path / "m.parquet").column_names
    assert kernel["kernel"] == "Conv+Relu"
    assert kernel["measured_at"].startswith("2023-11-14 22:13:20")
    assert json.loads(network["session_ms"]) == [1.4, 1.6]
    assert json.loads(network["layers"])[0]["name"] == "conv_0"
    assert kernel["config_out_channels"] == "4"


def test_what_does_not_exist_is_refused(latfarm: Latfarm, filled: None, tmp_path: Path) -> None:
    missing = tmp_path / "none" / "m.csv"
    for arguments, story in (
        (("results", "export", missing), "there is no such folder; create it first"),
        (("results", "export", tmp_path), ".csv or .parquet"),
        (("results", "-p", "toy-fp31"), "did you mean toy-fp32"),
        (("results", "--purpose", "networks"), "did you mean network"),
        (("results", "--campaign", "dem"), "did you mean demo"),
        (("results", "export", tmp_path / "m.csv", "-p", "toy"), "did you mean toy-fp32"),
    ):
        ended = latfarm(*arguments)
        assert ended.code == 2, ended
        assert story in ended.line
    assert not missing.parent.exists()
    assert latfarm("results", "--purpose", "query").code == 0, "it exists, and has no results"


def test_a_hash_shows_its_network(latfarm: Latfarm, filled: None) -> None:
    ended = latfarm("graph", "show", hash_of(conv(8))[:12])
    assert ended.code == 0, ended
    assert ended.out.startswith("net8 ")
    assert "Conv" in ended.out
    assert latfarm("graph", "show", "0123456789ab").code == 2


def test_a_campaign_is_taken_out_of_the_lists(latfarm: Latfarm, filled: None) -> None:
    assert [c["name"] for c in json.loads(latfarm("campaign", "list", "--json").out)] == ["demo"]
    assert "removed" in latfarm("campaign", "remove", "demo").out
    assert json.loads(latfarm("campaign", "list", "--json").out) == []
    assert latfarm("campaign", "show", "demo").code == 2
    assert len(json.loads(latfarm("results", "--json").out)) == 2, "its measurements stay"
