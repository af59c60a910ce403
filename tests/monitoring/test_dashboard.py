"""The dashboard is up to date with its builder, and all its metrics exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_controller.farm.observer import BOARD_STATES
from latfarm_controller.metrics.campaigns import CAMPAIGN_STATES

from tests.monitoring import exposed
from tests.monitoring.rendering import ANSIBLE, DASHBOARD, render

DOCS = ANSIBLE.parent / "docs"
BUILDER = ANSIBLE / "monitoring" / "dashboard.py"
WANTED = (
    "Campaigns by state",
    "Progress of campaigns",
    "Answers by platform and campaign",
    "Utilisation of boards",
    "Queue",
    "Time by stage, median",
    "Errors by type",
    "Temperature",
    "Clock",
    "Size of the store",
    "Error of predictions, median",
    "Coverage of intervals",
)


def test_the_checked_in_file_is_current() -> None:
    pytest.importorskip("grafana_foundation_sdk", reason="its builder is missing: make setup-farm")
    done = subprocess.run(
        [sys.executable, BUILDER, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_dashboard_has_all_required_panels() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    plots = [panel for panel in dashboard["panels"] if panel["type"] == "timeseries"]
    titles = [panel["title"] for panel in plots]
    assert set(WANTED) <= set(titles)
    assert len(set(titles)) == len(titles)
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in plots)


def test_each_state_has_a_colour_of_its_own() -> None:
    panels = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    for title, states in (
        ("States of boards", BOARD_STATES),
        ("Campaigns by state", CAMPAIGN_STATES),
    ):
        colours = {}
        for override in panels[title]["fieldConfig"]["overrides"]:
            assert override["matcher"]["id"] == "byName"
            (told,) = override["properties"]
            assert (told["id"], told["value"]["mode"]) == ("color", "fixed")
            colours[override["matcher"]["options"]] = told["value"]["fixedColor"]
        assert set(states) <= set(colours), "a state that is new needs a colour"
        assert len(set(colours.values())) == len(colours)
        for good in {"ready", "done"} & set(colours):
            assert colours[good] == "green"
        for bad in {"quarantined", "failed"} & set(colours):
            assert colours[bad] == "red"


def test_campaigns_are_shown_by_their_names() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            assert "{{campaign}}" not in target["legendFormat"], panel["title"]


def test_what_it_asks_for_exists(tmp_path: Path) -> None:
    pytest.importorskip("jinja2", reason="jinja2 renders the templates: make setup-farm")
    rules = tmp_path / "rules.yml"
    rules.write_text(render("rules.yml.j2"))
    known = exposed.metrics() | exposed.records([rules])
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            assert exposed.names_in(target["expr"]) <= known, target["expr"]


def test_the_documentation_shows_each_panel() -> None:
    page = (DOCS / "monitoring.md").read_text()
    shown = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] != "row":
            name = re.sub(r"[^a-z0-9]+", "-", panel["title"].lower()).strip("-")
            shown.add(f"{name}.svg")
            assert f"(images/monitoring/{name}.svg)" in page, panel["title"]
    assert {path.name for path in (DOCS / "images" / "monitoring").iterdir()} == shown
