"""Tests of `latfarm serve` with its clients, and of what happens when one of them dies."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet


@pytest.fixture(scope="module")
def served(characterized: Any) -> Iterator[Any]:
    """Run `latfarm serve` on the characterised home during the tests of this module."""
    with characterized.shell.start("serve") as serve:
        assert "latfarm serves on unix:" in serve.line()
        yield serve
        assert serve.process.poll() is None
        ended = serve.signal(signal.SIGTERM)
        assert ended.code == 130
        assert ended.err == "latfarm: interrupted\n"
    assert not (characterized.shell.home / "controller.sock").exists()


@pytest.fixture
def shell(served: Any) -> Any:
    """Return a shell whose commands are clients of the running `latfarm serve`."""
    return served.shell


def measured(characterized: Any) -> int:
    return sum(board.measured for board in characterized.boards)


def test_listings_parse(shell: Any, characterized: Any, farm: Any) -> None:
    boards = shell.run("boards", "--json").json
    assert [(b["name"], b["platforms"]) for b in boards] == [
        ("toy1", [farm.platform]),
        ("toy2", [farm.platform]),
    ]
    (platform,) = (p for p in shell.run("platforms", "--json").json if p["name"])
    assert platform["boards"] == ["toy1", "toy2"]
    assert platform["bundle"] == "0001"
    assert platform["available"] is True
    (listed,) = shell.run("campaign", "list", "--json").json
    assert (listed["kind"], listed["state"]) == ("characterize", "done")
    assert not {"config", "outcome"} & listed.keys()  # they may be large, `show` tells them
    shown = shell.run("campaign", "show", listed["campaign_id"], "--json").json
    assert shown["outcome"]["rules"] == characterized.ended.json["rules"]
    assert shown["measurements"] > 0
    for command in ("boards", "platforms", "campaign list", "results", "bundle"):
        text = shell.run(*command.split())
        assert text.code == 0
        assert text.err == ""
        assert len(text.out.splitlines()) >= 2


def test_results_listed_and_exported(shell: Any, characterized: Any, tmp_path: Path) -> None:
    name = characterized.ended.json["campaign_id"]
    everything = shell.run("results", "--limit", "0", "--campaign", name, "--json").json
    assert len(everything) == characterized.measured
    assert len(shell.run("results", "--limit", "7", "--json").json) == 7
    networks = [m for m in everything if m["purpose"] == "network"]
    kept = shell.run("results", "--purpose", "network", "--campaign", name, "--json").json
    assert kept == networks
    refused = shell.run("results", "--platform", "none", "--json")
    assert refused.code == 2
    assert "nothing was measured on platform 'none'" in refused.err
    for suffix in ("csv", "parquet"):
        path = tmp_path / f"all.{suffix}"
        ended = shell.run("results", "export", path, "--campaign", name)
        assert ended.code == 0
        assert f"{len(everything)} measurements" in ended.err
        if suffix == "csv":
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        else:
            rows = parquet.read_table(path).to_pylist()
        assert sorted(row["request_id"] for row in rows) == sorted(
            m["request_id"] for m in everything
        )
        assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []
    ended = shell.run("results", "--campaign", "nope")
    assert ended.code == 2
    assert name in ended.err


def test_query_measures_on_a_miss_and_remembers(
    shell: Any, characterized: Any, farm: Any, models: Callable[..., Path]
) -> None:
    path = models(1, 50) / "net050.onnx"
    command = ("query", path, "-p", farm.platform, "--json")
    before = measured(characterized)
    first = shell.run(*command)
    assert first.json["hit"] is False
    assert measured(characterized) == before + 1
    assert "net50 is being measured on" in first.err
    again = shell.run(*command)
    assert again.json == first.json | {"hit": True}
    assert again.err == ""
    assert measured(characterized) == before + 1
    fresh = shell.run(*command, "--refresh").json
    assert fresh["hit"] is False
    assert measured(characterized) == before + 2
    predicted = shell.run("predict", path, "--json").json
    assert predicted["latency_ms"] > 0
    table = shell.run("query", path, "-p", farm.platform)
    assert "store" in table.out


def test_the_same_question_at_once_is_measured_once(
    shell: Any, characterized: Any, farm: Any, models: Callable[..., Path]
) -> None:
    path = models(1, 60) / "net060.onnx"
    before = measured(characterized)
    with (
        shell.start("query", path, "-p", farm.platform, "--json", alone=False) as one,
        shell.start("query", path, "-p", farm.platform, "--json", alone=False) as two,
    ):
        answers = [running.process.communicate(timeout=60) for running in (one, two)]
    first, second = (json.loads(out) for out, _ in answers)
    assert first | {"hit": 0} == second | {"hit": 0}
    assert measured(characterized) == before + 1


def test_unknown_platforms_list_the_known(
    shell: Any, farm: Any, models: Callable[..., Path]
) -> None:
    path = models(1, 70) / "net070.onnx"
    for command in (
        ("query", path, "-p", "nope"),
        ("characterize", "-p", "nope"),
        ("campaign", "run", "kernels", "-p", "nope"),
        ("predict", path, "-p", "nope"),
    ):
        ended = shell.run(*command)
        assert ended.code == 2
        assert "'nope'" in ended.err
        assert f": {farm.platform}" in ended.err
        assert len(ended.err.splitlines()) == 1
    for config in ('{"count": -1}', '{"cuont": 1}'):
        ended = shell.run("campaign", "run", "kernels", "-p", farm.platform, "--config", config)
        assert ended.code == 2
        assert "campaign kernels: " in ended.err


def test_a_second_controller_names_the_first(served: Any, shell: Any) -> None:
    ended = shell.run("serve")
    assert ended.code == 1
    assert f"process {served.pid}" in ended.err
    assert len(ended.err.splitlines()) == 1


def test_campaigns_outlive_their_clients(
    shell: Any, characterized: Any, farm: Any, models: Callable[..., Path], quick: str
) -> None:
    folder = models(240, 200)
    config = json.loads(quick) | {"passes": 3}
    config["settings"]["sessions"] = 3
    command: tuple[Any, ...] = ("campaign", "run", "networks", "-p", farm.platform)
    command += (folder, "--config", json.dumps(config), "--name", "many", "--json")
    before = measured(characterized)
    for board in characterized.boards:
        board.allow(20)  # the campaign cannot end before it is cancelled
    with shell.start(*command, alone=False) as client:
        assert client.line() == "networks: 720 steps\n"
        ended = client.signal(signal.SIGINT)
    assert ended.code == 130
    assert "the campaign goes on; latfarm campaign cancel" in ended.err
    cancelled = shell.run("campaign", "cancel", "many", "--json").json
    assert cancelled["state"] == "cancelled"
    for board in characterized.boards:
        board.allow(None)
    resumed = shell.run("campaign", "resume", "many", "--json").json
    assert (resumed["state"], resumed["measurements"]) == ("done", 720)
    assert resumed["config"]["graphs"] == [f"net{number}" for number in range(200, 440)]
    watched = shell.run("campaign", "watch", "many", "--json").json
    assert watched["outcome"]["networks"] == resumed["outcome"]["networks"]
    # The measurement that ran when the campaign was cancelled may have been repeated.
    assert 720 <= measured(characterized) - before <= 726
    done = shell.run(*command).json
    assert done["campaign_id"] == resumed["campaign_id"]
