"""A home that was lost, or damaged by an upgrade, gets the state of a backup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from latfarm_controller.agents.registry import Registry
from latfarm_controller.audit import AuditLog
from latfarm_controller.backups.manifest import FILE
from latfarm_controller.backups.restore import restore_backup
from latfarm_controller.backups.shelf import CopyStore, make_backup
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import BackupError, StoreBusyError, UsageError
from latfarm_controller.holder import holder_key
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import StoreLock

from tests.controller.api.kill_server import measured
from tests.controller.backups.conftest import REVOKED

LATER = "b" * 64
"""The fingerprint of a certificate that was revoked after the backup."""


@pytest.fixture
def backup(config: ControllerConfig, copy_store: CopyStore, tmp_path: Path) -> Path:
    """Last night's backup."""
    return make_backup(config, tmp_path / "backups", copy_store)


def contents(home: Path, *names: str) -> dict[str, bytes]:
    return {name: (home / name).read_bytes() for name in names}


def revoked_in(home: Path) -> list[str]:
    listed: list[str] = json.loads((home / "tls" / "revoked.json").read_text())["sha256"]
    return listed


def test_another_machine_goes_on_from_the_backup(
    config: ControllerConfig, backup: Path, tmp_path: Path
) -> None:
    new = ControllerConfig(home=tmp_path / "elsewhere", local_agent=False)
    done = restore_backup(new, backup)
    assert done.replaced is None
    assert done.revoked == 0
    kept = ("latfarm.toml", "tls/ca.key", "tls/issued/ada.crt", "bundles/p/models.json")
    assert contents(new.home, *kept) == contents(config.home, *kept)
    assert holder_key(new.holder_file) == holder_key(config.holder_file)
    assert [entry.name for entry in Registry(new.boards_file).list()] == ["toy"]
    with DuckDBStore(new.store_file) as store:
        assert store.counts()["measurements"] == 3
        assert store.file.number("SELECT count(*) FROM losses") == 0
    log = AuditLog(new.audit_file).entries()
    assert [entry.action for entry in log] == ["board.enrolled", "controller.restored"]
    assert log[-1].subject == str(backup)
    assert [path for path in new.home.rglob("*") if path.stat().st_mode & 0o077] == []


def test_the_former_state_is_kept_beside(config: ControllerConfig, backup: Path) -> None:
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [measured(4)])
    (config.home / "tls" / "issued" / "new.crt").write_text("issued after the backup")
    with pytest.raises(UsageError, match=r"has state already \(store\.duckdb, .*say --replace"):
        restore_backup(config, backup)
    done = restore_backup(config, backup, replace=True)
    with DuckDBStore(config.store_file) as store:
        assert store.counts()["measurements"] == 3
        assert store.file.number("SELECT count(*) FROM losses") == 0, "it is no loss"
    assert not (config.home / "tls" / "issued" / "new.crt").exists()
    assert done.replaced is not None
    assert (done.replaced / "tls" / "issued" / "new.crt").exists()
    with DuckDBStore(done.replaced / "store.duckdb") as former:
        assert former.counts()["measurements"] == 4
    assert (config.home / "reports" / "p.html").exists(), "what no backup holds stays"
    again = restore_backup(config, backup, replace=True)
    assert again.replaced not in (None, done.replaced)


def test_what_was_revoked_after_the_backup_stays_revoked(
    config: ControllerConfig, backup: Path
) -> None:
    path = config.home / "tls" / "revoked.json"
    path.write_text(json.dumps({"version": 1, "sha256": [REVOKED, LATER]}))
    assert restore_backup(config, backup, replace=True).revoked == 1
    assert revoked_in(config.home) == [REVOKED, LATER]
    path.write_text("damaged")
    with pytest.raises(BackupError, match="the certificates that are revoked cannot be told"):
        restore_backup(config, backup, replace=True)
    assert path.read_text() == "damaged", "nothing was restored"


def test_nothing_is_touched_while_a_controller_runs(config: ControllerConfig, backup: Path) -> None:
    with StoreLock(config.lock_file), pytest.raises(StoreBusyError, match="is held by process"):
        restore_backup(config, backup, replace=True)
    assert not list(config.home.glob("replaced-*"))


def test_a_damaged_backup_replaces_nothing(config: ControllerConfig, backup: Path) -> None:
    (backup / "tls" / "ca.key").write_text("another key")
    with pytest.raises(BackupError, match=r"tls/ca\.key is not what the backup held"):
        restore_backup(config, backup, replace=True)
    assert (config.home / "tls" / "ca.key").read_text() == "key"
    assert not list(config.home.glob("replaced-*"))


def test_a_backup_of_a_newer_version_is_refused(config: ControllerConfig, backup: Path) -> None:
    data = json.loads((backup / FILE).read_text())
    data |= {"schema_version": 9999, "latfarm": "9.0.0"}
    (backup / FILE).write_text(json.dumps(data))
    with pytest.raises(BackupError, match=r"latfarm 9\.0\.0, whose store has version 9999"):
        restore_backup(config, backup, replace=True)
