"""Where a budget went is told by the report and by the command."""

from __future__ import annotations

from typing import Any

import pytest
from latfarm_controller.campaigns.budget.purse import Purse
from latfarm_controller.cli.campaigns.characterize import _show_spent
from latfarm_controller.reports.pages import conduct

SPENT: dict[str, Any] = {
    **Purse(500, 600_000.0).to_json(),
    "measurements": 64,
    "board_ms": 2500.0,
    "stages": [
        {"stage": "fusion", "measurements": 51, "board_ms": 500.0, "left_out": 7},
        {"stage": "kernels", "measurements": 13, "board_ms": 2000.0, "left_out": 0},
    ],
}
FACTS: dict[str, Any] = {
    "measurements": 64,
    "board_ms": 2500.0,
    "wall_ms": 0.0,
    "started_at_s": 0.0,
    "finished_at_s": 0.0,
    "purposes": [],
    "boards": {},
}


def test_the_report_tells_where_the_budget_went() -> None:
    page = conduct.duration({**FACTS, "spent": SPENT})
    assert "Where the budget went" in page
    assert "500 measurements" in page
    for told in ("fusion", "51", "kernels", "13"):
        assert f">{told}<" in page
    assert "Where the budget went" not in conduct.duration({**FACTS, "spent": {}})


def test_the_command_tells_where_the_budget_went(capsys: pytest.CaptureFixture[str]) -> None:
    _show_spent(SPENT)
    told = " ".join(capsys.readouterr().out.split())
    assert "where the budget of 500 measurements and 10 minutes went" in told
    for word in ("fusion", "51", "0.5", "7", "kernels", "13", "2.0", "64", "2.5"):
        assert word in told
