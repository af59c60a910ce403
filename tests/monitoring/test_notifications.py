"""Alertmanager takes the configuration with each documented example of notifications."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tests.monitoring.rendering import render

pytest.importorskip("jinja2", reason="jinja2 renders the templates: make setup-farm")
EXAMPLES = Path(__file__).parents[2] / "docs" / "monitoring" / "notifications"


class _AnsibleLoader(yaml.SafeLoader):  # type: ignore[misc]
    """Reads variables as Ansible does: a value with the tag `!unsafe` is no template of Ansible."""


_AnsibleLoader.add_constructor("!unsafe", lambda loader, node: loader.construct_scalar(node))


def configured(values: dict[str, Any]) -> dict[str, Any]:
    """The configuration of Alertmanager with these values of the role's variables."""
    found: dict[str, Any] = yaml.safe_load(render("alertmanager.yml.j2", values))
    return found


def check(folder: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """What amtool says to the configuration."""
    if shutil.which("amtool") is None:
        pytest.skip("amtool is not here: apt-get install prometheus-alertmanager")
    path = folder / "alertmanager.yml"
    path.write_text(render("alertmanager.yml.j2", values))
    return subprocess.run(
        ["amtool", "check-config", path], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yml")), ids=lambda path: path.stem)
def test_alertmanager_takes_each_example(path: Path, tmp_path: Path) -> None:
    values = yaml.load(path.read_text(), _AnsibleLoader)
    (told,) = configured(values)["receivers"]
    assert told == {"name": "farm"} | values["alertmanager_receiver"]
    done = check(tmp_path, values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_documented_ways_are_there() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yml")} == {"mail", "chat", "ntfy"}


def test_without_an_example_alerts_are_sent_nowhere_or_to_the_webhook(tmp_path: Path) -> None:
    assert configured({})["receivers"] == [{"name": "farm"}]
    url = "http://127.0.0.1:9/hook"
    (told,) = configured({"alertmanager_webhook_url": url})["receivers"]
    assert told == {"name": "farm", "webhook_configs": [{"url": url}]}
    assert check(tmp_path, {"alertmanager_webhook_url": url}).returncode == 0


def test_a_mistyped_setting_is_refused(tmp_path: Path) -> None:
    wrong = {"alertmanager_receiver": {"email_configs": [{"to": "a@example.org", "form": "b"}]}}
    done = check(tmp_path, wrong)
    assert done.returncode != 0
    assert "form" in done.stdout + done.stderr
