"""`latfarm engines`: errors before anything runs, and the output for a stored comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.campaigns.engines.campaign import EngineOptions, EnginesCampaign
from latfarm_controller.campaigns.engines.platforms import offer
from latfarm_controller.config import load_config
from latfarm_controller.store.base import CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.testing.campaigns import SimulatedPlatform, drive
from latfarm_predictors.kernels.fusion import FusionRules

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def stored(home: Path) -> str:
    """The id of a comparison in the store."""
    offers = [
        offer(f"pi-{name}-1t", runtime=kind, version="3.6.1", model_format=kind, dtype="fp32")
        for name, kind in (("mnn3.6-fp32", "mnn"), ("ncnn3.6-fp32", "ncnn"), ("mnn3.6-int8", "mnn"))
    ]
    options = EngineOptions.model_validate(
        {
            "networks": ["squeezenet", "mobilenet-v1", "resnet18"],
            "resolution": 64,
            "passes": 2,
            "board": "pi",
            "board_id": "b",
            "offers": [found.model_dump() for found in offers],
        }
    )
    campaign = EnginesCampaign("*", options)
    drive(campaign, SimulatedPlatform(rules=FusionRules.none(), noise=0.001).measure)
    config = load_config()
    config.make_dirs()
    record = CampaignRecord(
        "engines-1", "night", "engines", "*", state="done", outcome=dict(campaign.outcome())
    )
    with DuckDBStore(config.store_file) as store:
        store.put_campaign(record)
        store.put_campaign(CampaignRecord("fusion-1", "f", "fusion", "p", state="done"))
        store.put_campaign(CampaignRecord("engines-2", "new", "engines", "*", state="interrupted"))
    return record.campaign_id


def test_a_stored_comparison_is_shown(latfarm: Any, stored: str, tmp_path: Path) -> None:
    html, page, picture = (tmp_path / f"engines.{kind}" for kind in ("html", "md", "svg"))
    ended = latfarm(
        "engines", "show", "night", "--html", html, "--markdown", page, "--svg", picture
    )
    assert ended.code == 0, ended.err
    assert "mnn3.6 1t" in ended.out
    assert "squeezenet" in ended.out
    assert "int8, ms" in ended.out
    assert html.read_text().startswith("<!doctype html>")
    assert "(engines.svg)" in page.read_text()
    assert picture.read_text().startswith("<svg xmlns=")


def test_a_stored_comparison_as_json(latfarm: Any, stored: str) -> None:
    ended = latfarm("engines", "show", stored, "--json", "--clock-mhz", "2000")
    assert ended.code == 0, ended.err
    data = json.loads(ended.out)
    assert (data["campaign_id"], data["state"], len(data["cells"])) == (stored, "done", 9)
    assert data["mnn_model"]["clock"] == "the caller"
    assert len(data["mnn_model"]["rows"]) == 3


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("fusion-1", "a campaign of kind fusion; name one of kind engines"),
        ("engines-2", "is interrupted and has measured nothing yet"),
        ("engines-9", "no campaign 'engines-9'"),
    ],
)
def test_what_cannot_be_shown(latfarm: Any, stored: str, name: str, complaint: str) -> None:
    ended = latfarm("engines", "show", name)
    assert ended.code == 2
    assert complaint in ended.line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--threads", "one"], "--threads 'one': thread counts are numbers"),
        (["--network", "resnet-18"], "no zoo family 'resnet-18'"),
        ([], "there is no board"),
    ],
)
def test_what_cannot_be_run(latfarm: Any, home: Path, arguments: list[str], complaint: str) -> None:
    ended = latfarm("engines", "run", *arguments)
    assert ended.code == 2
    assert complaint in ended.line
