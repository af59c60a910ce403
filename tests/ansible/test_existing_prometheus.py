"""monitoring.yml recognises the Prometheus of others, and adds to it or refuses; with stand-ins."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.ansible.collection import COLLECTIONS, NEEDS_ANSIBLE, ROLES, run

ROLE = ROLES / "monitoring"
THEIRS = "# Ours.\nrule_files:\n  - rules/*.yml\nscrape_configs: []\n"

PROMTOOL = """\
#!/bin/sh
# Has a version, and checks a configuration: a word in the file makes it invalid.
case $1 in
  --version) echo "promtool, version {version} (branch: HEAD)" ;;
  check) ! grep -q invalid "$3" ;;
  *) exit 2 ;;
esac
"""

pytestmark = [
    NEEDS_ANSIBLE,
    pytest.mark.skipif(os.geteuid() != 0, reason="the role writes files that belong to root"),
    pytest.mark.timeout(300),
]


class MonitoringMachine:
    """A folder with a Prometheus configuration, to which the tasks of the role are applied."""

    def __init__(self, folder: Path, text: str, version: str) -> None:
        self.config = folder / "prometheus.yml"
        self.config.write_text(text)
        self.scrape = folder / "latfarm.scrape.yml"
        self.reloaded = folder / "reloaded"
        self._folder = folder
        tool = folder / "promtool"
        tool.write_text(PROMTOOL.format(version=version))
        tool.chmod(0o755)
        defaults = ROLE / "defaults/main.yml"
        play = {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "vars_files": [str(defaults)],
            "tasks": [
                {"ansible.builtin.import_tasks": str(ROLE / "tasks/prometheus_existing.yml")},
                {
                    "ansible.builtin.include_tasks": str(ROLE / "tasks/prometheus_add.yml"),
                    "when": "prometheus_added",
                },
            ],
            "handlers": [
                {
                    "name": "Reload Prometheus",
                    "ansible.builtin.command": f"touch {self.reloaded}",
                }
            ],
        }
        self._book = folder / "book.yml"
        self._book.write_text(json.dumps([play]))
        (folder / "templates").symlink_to(ROLE / "templates")
        self._variables = {
            "prometheus_found": {"stdout": "not-installed"},
            "prometheus_folder": str(folder),
            "prometheus_config_file": str(self.config),
            "prometheus_promtool": str(tool),
            "prometheus_group": "root",
            "ansible_python_interpreter": sys.executable,
        }

    def play(self, **variables: object) -> tuple[bool, str]:
        """Run the tasks: whether they succeeded, and what Ansible printed, in one line."""
        given = {**self._variables, **variables}
        done = run(
            *("ansible-playbook", self._book, "-e", json.dumps(given)),
            cwd=self._folder,
            ANSIBLE_COLLECTIONS_PATH=str(COLLECTIONS),
        )
        return done.returncode == 0, " ".join((done.stdout + done.stderr).split())

    @property
    def backups(self) -> list[str]:
        """What the backups of the configuration hold."""
        return [path.read_text() for path in self._folder.glob("prometheus.yml.*~")]


def test_own_files_are_added_and_the_old_configuration_is_kept(tmp_path: Path) -> None:
    machine = MonitoringMachine(tmp_path, THEIRS, "2.53.1")
    well, told = machine.play()
    assert well, told
    assert machine.config.read_text() == (
        f"# Ours.\nrule_files:\n  - rules/*.yml\n  - {tmp_path}/latfarm.rules.yml\n"
        f"  - {tmp_path}/latfarm.alerts.yml\nscrape_configs: []\n"
        f"\nscrape_config_files:\n  - {tmp_path}/latfarm.scrape.yml\n"
    )
    assert "job_name: latfarm-agents" in machine.scrape.read_text()
    assert machine.backups == [THEIRS]
    assert machine.reloaded.exists()
    assert "alerts are shown and sent nowhere" in told
    machine.reloaded.unlink()
    well, told = machine.play()
    assert well, told
    assert len(machine.backups) == 1
    assert not machine.reloaded.exists()


@pytest.mark.parametrize(
    ("text", "version", "variables", "reason"),
    [
        (THEIRS, "2.42.0", {}, "the version of this one is 2.42.0"),
        (f"{THEIRS}# invalid\n", "2.53.1", {}, "non-zero return code"),
        (THEIRS, "2.53.1", {"alertmanager_webhook_url": "http://x"}, "Add the webhook there"),
    ],
    ids=["old", "invalid", "webhook"],
)
def test_what_cannot_be_added_to_is_refused_and_stays(
    tmp_path: Path, text: str, version: str, variables: dict[str, object], reason: str
) -> None:
    machine = MonitoringMachine(tmp_path, text, version)
    well, told = machine.play(**variables)
    assert not well
    assert reason in told
    assert machine.config.read_text() == text
    assert not machine.reloaded.exists()
    assert not list(tmp_path.glob(".latfarm-candidate*"))


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("# Written by ansible/monitoring.yml.\nglobal: {}\n", {}),
        (THEIRS, {"prometheus_replace": True}),
    ],
    ids=["ours", "given up"],
)
def test_a_configuration_of_ours_is_not_added_to(
    tmp_path: Path, text: str, variables: dict[str, object]
) -> None:
    machine = MonitoringMachine(tmp_path, text, "2.42.0")
    well, told = machine.play(**variables)
    assert well, told
    assert machine.config.read_text() == text
    assert not machine.scrape.exists()
