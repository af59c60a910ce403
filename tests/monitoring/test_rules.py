"""Rules and alerts: promtool checks them over time, and all their metrics exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.monitoring import exposed
from tests.monitoring.rendering import render

pytest.importorskip("jinja2", reason="jinja2 renders the templates: make setup-farm")
CASES = Path(__file__).with_name("rules_test.yml")
NAMES = ("latfarm.rules.yml", "latfarm.alerts.yml")
TEMPLATES = ("rules.yml.j2", "alerts.yml.j2")


def cases(about: str = "") -> dict[str, str]:
    """Files of cases for promtool, by their names: one for each pause between two samples.

    promtool evaluates all rules again and again until the last moment that a case asks about. So a
    case that lasts a day is evaluated as often as it has samples, and not every 15 seconds.

    Args:
        about: the name of an alert, if only the cases that name it are wanted.
    """
    head, *each = re.split(r"^  (?=- name: )", CASES.read_text(), flags=re.MULTILINE)
    found: dict[str, str] = {}
    for case in each:
        pause = re.search(r"^    interval: (\w+)$", case, re.MULTILINE)
        assert pause is not None, case
        if about in case:
            usual = re.sub(r"(?<=evaluation_interval: )\w+", pause[1], head)
            name = f"every_{pause[1]}.yml"
            found[name] = found.get(name, usual) + f"  {case}"
    return found


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A folder with the rules as the role's defaults have them."""
    for name, template in zip(NAMES, TEMPLATES, strict=True):
        (tmp_path / name).write_text(render(template))
    return tmp_path


def promtool(folder: Path, *words: str) -> None:
    """Run promtool in a folder; an error of it fails the test."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not here: apt-get install prometheus")
    done = subprocess.run(
        ["promtool", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_do_what_they_say(rules: Path) -> None:
    files = cases()
    assert set(files) == {"every_15s.yml", "every_1m.yml", "every_10m.yml"}
    assert sum(text.count("- name: ") for text in files.values()) == CASES.read_text().count(
        "- name: "
    )
    for name, text in files.items():
        (rules / name).write_text(text)
    promtool(rules, "test", "rules", *files)


def test_a_wrong_threshold_is_noticed(rules: Path) -> None:
    files = cases("LatfarmBoardDrift")
    assert len(files) == 1
    for name, text in files.items():
        (rules / name).write_text(text)
    promtool(rules, "test", "rules", *files)
    wrong = render("alerts.yml.j2", {"prometheus_drift_ratio": 0.5})
    (rules / "latfarm.alerts.yml").write_text(wrong)
    with pytest.raises(AssertionError, match="LatfarmBoardDrift"):
        promtool(rules, "test", "rules", *files)


def test_prometheus_takes_the_configuration(rules: Path) -> None:
    told = {"prometheus_rules_folder": ".", "prometheus_tls_folder": ""}
    (rules / "prometheus.yml").write_text(render("prometheus.yml.j2", told))
    promtool(rules, "check", "config", "prometheus.yml")


def test_every_rule_is_tested(rules: Path) -> None:
    cases = CASES.read_text()
    for name in NAMES:
        for line in (rules / name).read_text().splitlines():
            kind, _, what = line.strip().removeprefix("- ").partition(": ")
            if kind == "alert":
                assert what in cases, what


def test_what_the_rules_name_exists(rules: Path) -> None:
    expressions = exposed.expressions_of_rules([rules / name for name in NAMES])
    known = exposed.metrics() | exposed.records([rules / NAMES[0]])
    assert len(expressions) > 15
    for expression in expressions:
        assert exposed.names_in(expression) <= known, expression
