"""What the shell completes."""

from __future__ import annotations

from pathlib import Path

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.cli.shell import complete
from latfarm_controller.config import load_config
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore


def test_platforms_with_a_bundle(home: Path) -> None:
    assert complete.platforms("") == []
    for name in ("toy-fp32", "toy-int8", "other"):
        folder = home / "bundles" / name
        folder.mkdir(parents=True)
        (folder / "0001.zip").touch()
    assert complete.platforms("toy") == ["toy-fp32", "toy-int8"]


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
