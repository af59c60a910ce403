"""Templates of `latfarm.farm.monitoring`, rendered as Ansible does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ANSIBLE = Path(__file__).parents[2] / "ansible"
ROLE = ANSIBLE / "collections/ansible_collections/latfarm/farm/roles/monitoring"
DASHBOARD = ROLE / "files" / "dashboard.json"


def render(name: str, values: Mapping[str, object] | None = None) -> str:
    """A template of the monitoring role with the role's defaults, some replaced by these values."""
    import jinja2

    path = ROLE / "templates" / name
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    options: dict[str, Any] = {}
    text = path.read_text()
    if text.startswith("#jinja2:"):  # Ansible's header for other delimiters
        head, text = text.split("\n", 1)
        options = dict(re.findall(r"(\w+):'([^']*)'", head))
    environment = jinja2.Environment(
        trim_blocks=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, **options
    )
    return str(environment.from_string(text).render({**defaults, **(values or {})}))
