"""Tests of `latfarm report`, and of the report at the end of a characterisation."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_characterize_ends_with_a_report(characterized: Any) -> None:
    path = Path(characterized.ended.json["report"])
    assert path.parent == characterized.shell.home / "reports"
    html = path.read_text(encoding="utf-8")
    assert f"What is known about {characterized.ended.json['rules']['platform']}" in html
    assert "<script" not in html
    for section in ("networks", "kernels", "fusion", "trust", "cost", "conditions"):
        assert f'id="{section}"' in html


def test_report_makes_it_again_as_data_and_as_a_file(characterized: Any, tmp_path: Path) -> None:
    platform = characterized.ended.json["rules"]["platform"]
    shell = characterized.shell
    target = tmp_path / "deep" / "again.html"
    done = shell.run("report", "-p", platform, "--json", "--output", target)
    facts = done.json
    assert facts["platform"] == platform
    assert facts["campaign"]["campaign_id"] == characterized.ended.json["campaign_id"]
    assert facts["networks"]["calibration"]["methods"]["latfarm"]["count"] == 9
    assert facts["fusion"]["counts"]["fused"] > 0
    assert facts["trust"]["missing"] == ""
    assert facts["failures"] == [] or facts["failures"][0]["count"] > 0
    assert f"What is known about {platform}" in target.read_text(encoding="utf-8")


def test_an_unknown_platform_is_a_usage_error(characterized: Any) -> None:
    ended = characterized.shell.run("report", "-p", "no-such")
    assert ended.code == 2
    assert "nothing is known about platform 'no-such'" in ended.err
    assert len(ended.err.strip().splitlines()) <= 2
