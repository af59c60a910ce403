"""latfarm's files are added to the Prometheus configuration of others, and nothing else changes."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tests.ansible.collection import needs_ansible_here, plugin

needs_ansible_here()

WANTED = {
    "rule_files": ["/etc/prometheus/latfarm.rules.yml"],
    "scrape_config_files": ["/etc/prometheus/latfarm.scrape.yml"],
}
THEIRS = """\
# Ours since 2019. Ask ops before you change it.
global:
  scrape_interval: 30s  # disks are slow

rule_files:
  - rules/*.yml
  - "/srv/rules/other.yml"  # of the web team

scrape_configs:
  - job_name: node
    static_configs:
      - targets: [localhost:9100]
"""


def added(text: str, wanted: dict[str, list[str]]) -> str:
    function: Any = plugin("filter/prometheus.py").FilterModule().filters()["added"]
    return str(function(text, wanted))


def refusal(text: str) -> str:
    error = importlib.import_module("ansible.errors").AnsibleFilterError
    with pytest.raises(error) as caught:
        added(text, WANTED)
    return str(caught.value)


def test_only_lines_are_added() -> None:
    text = added(THEIRS, WANTED)
    new = [line for line in text.splitlines() if line not in THEIRS.splitlines()]
    assert new == [
        "  - /etc/prometheus/latfarm.rules.yml",
        "scrape_config_files:",
        "  - /etc/prometheus/latfarm.scrape.yml",
    ]
    kept = [line for line in text.splitlines() if line in THEIRS.splitlines() and line]
    assert kept == [line for line in THEIRS.splitlines() if line]


def test_a_second_time_changes_nothing() -> None:
    text = added(THEIRS, WANTED)
    assert added(text, WANTED) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "global: {}",
        "rule_files:\n- a.yml",  # no indentation, and no end of line
        "rule_files:\n  - a.yml\n\n# the end\n",
        "scrape_config_files:\n  - a.yml\nrule_files:\n  - b.yml\n",
    ],
)
def test_other_ways_of_writing(text: str) -> None:
    yaml = pytest.importorskip("yaml")
    before, after = yaml.safe_load(text) or {}, yaml.safe_load(added(text, WANTED))
    for key, entries in WANTED.items():
        assert after.pop(key) == (before.pop(key, None) or []) + entries
    assert after == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rule_files: [a.yml]\n", "one entry a line"),
        ("rule_files:\n", "empty"),
        ("rule_files: a.yml\n", "not a list"),
        ("- a\n", "not an object"),
        ("a: [\n", "not YAML"),
    ],
)
def test_what_cannot_be_edited_is_refused(text: str, reason: str) -> None:
    assert reason in refusal(text)
