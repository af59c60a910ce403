"""What the shell completes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.cli import main
from latfarm_controller.cli.shell import complete
from latfarm_controller.config import load_config
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import Measurement, Outcome
from typer.main import get_command


def test_platforms_with_a_bundle(home: Path) -> None:
    assert complete.platforms("") == []
    for name in ("toy-fp32", "toy-int8", "other"):
        folder = home / "bundles" / name
        folder.mkdir(parents=True)
        (folder / "0001.zip").touch()
    assert complete.platforms("toy") == ["toy-fp32", "toy-int8"]


def measured(platform: str) -> tuple[Measurement, Graph]:
    builder = GraphBuilder("net")
    graph = builder.build([builder.relu(builder.input((1, 8)))])
    return Measurement(f"r-{platform}", hash_of(graph), platform, "query", Outcome.OK), graph


def test_every_option_that_names_a_platform_is_completed(home: Path) -> None:
    """Filters of measurements offer what was measured, whether it has a bundle or not."""
    config = load_config()
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [measured("toy-int8"), measured("other-fp32")])
    folder = home / "bundles" / "toy-fp32"
    folder.mkdir(parents=True)
    (folder / "0001.zip").touch()
    group: Any = get_command(main.app)
    root = group.make_context("latfarm", [], resilient_parsing=True)
    commands = dict(group.commands)
    for name, command in group.commands.items():
        below = getattr(command, "commands", {})
        commands |= {f"{name} {each}": found for each, found in below.items()}
    options = {
        name: parameter
        for name, command in commands.items()
        for parameter in command.params
        if "--platform" in parameter.opts
    }
    assert {"query", "probes plan", "db export", "demo", "predict"} <= options.keys()
    filters = {"results", "results export", "db export"}
    for name, option in options.items():
        told = [item.value for item in option.shell_complete(root, "toy")]
        assert told == ["toy-int8" if name in filters else "toy-fp32"], name


def test_boards_of_the_inventory(home: Path) -> None:
    home.mkdir()
    Registry(load_config().boards_file).add("pixel4", "127.0.0.1:1")
    assert complete.boards("pix") == ["pixel4"]
    assert complete.boards("x") == []


def test_campaigns_by_name_and_id(home: Path) -> None:
    assert complete.campaigns("") == []
    assert not home.exists()
    config = load_config()
    config.make_dirs()
    with DuckDBStore(config.store_file) as store:
        store.put_campaign(CampaignRecord("characterize-1f2e", "demo", "characterize", "toy"))
    assert complete.campaigns("de") == ["demo"]
    assert complete.campaigns("char") == ["characterize-1f2e"]


def test_a_broken_home_completes_nothing(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    home.mkdir()
    (home / "boards.json").write_text("{")
    (home / "store.duckdb").write_text("no store")
    assert complete.boards("") == complete.campaigns("") == []
    assert capfd.readouterr() == ("", "")
