"""A home with state of every kind, and a way to look at all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.database_client import perform_at_home
from latfarm_controller.audit import AuditLog
from latfarm_controller.backups.shelf import CopyStore
from latfarm_controller.config import ControllerConfig
from latfarm_controller.holder import holder_key
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.api.kill_server import measured

REVOKED = "a" * 64
"""The fingerprint of a certificate that is revoked in the home."""


def fill(config: ControllerConfig) -> None:
    """Give a home state of every kind, also of those kinds that no backup holds."""
    config.make_dirs()
    home = config.home
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [measured(size) for size in (1, 2, 3)])
    Registry(config.boards_file).add("toy", "127.0.0.1:1")
    AuditLog(config.audit_file).add("unix:me", "board.enrolled", "toy")
    holder_key(config.holder_file)
    texts = {
        "latfarm.toml": "lease_ms = 5000\n",
        "tls/ca.crt": "certificate",
        "tls/ca.key": "key",
        "tls/passphrase": "secret",
        "tls/issued/ada.crt": "hers",
        "tls/revoked.json": json.dumps({"version": 1, "sha256": [REVOKED]}),
        "bundles/p/0001.zip": "bundle",
        "bundles/p/models.json": "register",
        "bundles/p/.models.lock": "",
        "bundles/.fitted/x": "can be fitted again",
        "reports/p.html": "report",
        "logs/agent.log": "log",
        "agents/local/id": "this machine",
        "ray/session": "ray",
        "wheels/a.whl": "wheel",
    }
    for name, text in texts.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def config(tmp_path: Path) -> ControllerConfig:
    """A home with state of every kind."""
    made = ControllerConfig(
        home=tmp_path / "home",
        local_agent=False,
        passphrase_file=tmp_path / "home" / "tls" / "passphrase",
    )
    fill(made)
    return made


@pytest.fixture
def copy_store(config: ControllerConfig) -> CopyStore:
    """Copies the store in the same way as the command line does."""

    def copy(target: Path) -> None:
        perform_at_home(config, "copy", {"file": str(target)})

    return copy
