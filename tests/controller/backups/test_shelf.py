"""Backups hold what a controller needs to go on, and nothing that must not leave the home."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from pathlib import Path

import pytest
from latfarm_controller import private_files
from latfarm_controller.backups.contents import KEPT_FILES, KEPT_FOLDERS, LEFT_OUT, STORE, belongs
from latfarm_controller.backups.manifest import FILE, read_manifest, verify_backup
from latfarm_controller.backups.shelf import (
    CopyStore,
    backups_in,
    make_backup,
    newest_backup,
    prune,
)
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import BackupError, StoreError, UsageError
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.upkeep.copy import copy_store as copy_file
from latfarm_controller.store.upkeep.copy import settled_copy
from latfarm_controller.store.upkeep.verify import verify

from tests.controller.api.kill_server import measured

HELD = {
    *("store.duckdb", "boards.json", "holder", "audit.jsonl", "latfarm.toml"),
    *("tls/ca.crt", "tls/ca.key", "tls/issued/ada.crt", "tls/revoked.json"),
    *("bundles/p/0001.zip", "bundles/p/models.json"),
}
"""Everything that a backup of the home holds."""


def test_a_backup_holds_what_it_must_and_nothing_else(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    made = make_backup(config, tmp_path / "backups", copy_store)
    manifest = verify_backup(made)
    assert set(manifest.files) == HELD
    found = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert found == {*HELD, FILE}
    assert (manifest.measurements, manifest.home) == (3, str(config.home))
    assert manifest.schema_version > 0
    assert all(belongs(name) for name in HELD)
    for path in (tmp_path / "backups").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    with DuckDBStore(made / STORE) as store:
        assert store.counts()["measurements"] == 3
        assert verify(store.file).sound


def test_every_part_of_a_home_is_either_kept_or_left_out_with_a_reason() -> None:
    parts = {*private_files.FILES, *private_files.FOLDERS}
    assert parts == {STORE, *KEPT_FILES, *KEPT_FOLDERS, *LEFT_OUT}
    assert not {*KEPT_FILES, *KEPT_FOLDERS} & set(LEFT_OUT)


def test_links_and_other_special_files_are_not_followed(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    (config.home / "tls" / "link").symlink_to("/etc/passwd")
    (config.home / "bundles" / "elsewhere").symlink_to("/etc")
    os.mkfifo(config.home / "tls" / "pipe")
    manifest = read_manifest(make_backup(config, tmp_path / "backups", copy_store))
    assert set(manifest.files) == HELD
    assert sorted(manifest.refused) == [
        f"{name} is no regular file" for name in ("bundles/elsewhere", "tls/link", "tls/pipe")
    ]


def test_a_home_without_a_store_is_backed_up(tmp_path: Path, copy_store: CopyStore) -> None:
    config = ControllerConfig(home=tmp_path / "new", local_agent=False)
    config.make_dirs()
    (config.home / "latfarm.toml").write_text("")
    manifest = verify_backup(make_backup(config, tmp_path / "backups", copy_store))
    assert (set(manifest.files), manifest.schema_version) == ({"latfarm.toml"}, 0)


def test_old_backups_are_removed(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    made = [make_backup(config, folder, copy_store) for _ in range(3)]
    assert backups_in(folder) == made, "three within a second keep their order"
    (folder / "latfarm-20200101T000000Z").mkdir()
    (folder / "notes").mkdir()
    assert backups_in(folder) == made, "what has no manifest is no backup"
    assert newest_backup(folder) == made[-1]
    assert newest_backup(made[0]) == made[0]
    assert prune(folder, 2) == made[:1]
    assert prune(folder, 0) == made[1:2], "one always stays"
    assert backups_in(folder) == made[2:]
    assert (folder / "notes").exists()
    assert backups_in(tmp_path / "none") == []
    with pytest.raises(BackupError, match="is no complete backup, and has none in it"):
        newest_backup(tmp_path / "none")


def test_a_backup_that_fails_leaves_nothing(config: ControllerConfig, tmp_path: Path) -> None:
    folder = tmp_path / "backups"

    def damaged(target: Path) -> None:
        target.write_bytes(b"no database" * 1000)

    with pytest.raises(StoreError, match="the copy of the store is not sound"):
        make_backup(config, folder, damaged)

    def full(_target: Path) -> None:
        raise OSError(28, "No space left on device", "/backups/x")

    with pytest.raises(BackupError, match="/backups/x: No space left on device"):
        make_backup(config, folder, full)
    assert backups_in(folder) == []
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_the_store_is_copied_within_the_home(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    """The serving process may see other folders than the command, and writes in the home alone."""
    seen: list[Path] = []
    killed, other = config.home / ".store-copy-killed", config.home / ".store-copy-other"
    for path in (killed, other):
        path.write_text("of another backup")
    os.utime(killed, (1e9, 1e9))

    def watch(target: Path) -> None:
        seen.append(target)
        copy_store(target)

    make_backup(config, tmp_path / "backups", watch)
    assert [path.parent for path in seen] == [config.home]
    assert list(config.home.glob(".store-copy-*")) == [other], "that one may still be in use"


def test_one_backup_at_a_time_which_clears_what_a_killed_one_left(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    make_backup(config, folder, copy_store)
    left = folder / ".unfinished-latfarm-20200101T000000Z"
    left.mkdir()
    with (folder / ".lock").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BackupError, match="another backup is being made"):
            make_backup(config, folder, copy_store)
        assert left.exists()
    make_backup(config, folder, copy_store)
    assert not left.exists()


def test_the_folder_must_be_outside_of_the_home_and_the_callers(
    config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    with pytest.raises(BackupError, match="lies in the home"):
        make_backup(config, config.home / "backups", copy_store)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(UsageError, match="all users share"):
        make_backup(config, shared, copy_store)


@pytest.mark.parametrize("name", sorted({*HELD}))
def test_damage_is_noticed(
    name: str, config: ControllerConfig, copy_store: CopyStore, tmp_path: Path
) -> None:
    made = make_backup(config, tmp_path / "backups", copy_store)
    data = bytearray((made / name).read_bytes())
    data[len(data) // 2] ^= 1
    (made / name).write_bytes(data)
    with pytest.raises(BackupError, match=f"{name} is not what the backup held"):
        verify_backup(made)
    (made / name).unlink()
    with pytest.raises(BackupError, match=f"{name} cannot be read"):
        verify_backup(made)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "is not of a backup"),
        ({"version": 2}, "version 2 of backups is not known"),
        ({"files": {"../x": {"size_bytes": 1, "sha256": "a"}}}, "names '../x', which no backup"),
        ({"files": {"/etc/x": {"size_bytes": 1, "sha256": "a"}}}, "which no backup holds"),
        ({"files": {"tls/../../x": {"size_bytes": 1, "sha256": "a"}}}, "which no backup holds"),
        ({"files": {"logs/x": {"size_bytes": 1, "sha256": "a"}}}, "which no backup holds"),
        ({"files": {}}, "contradicts itself about the store"),
        ({"more": 1}, "is damaged"),
        ({"files": []}, "is damaged"),
    ],
)
def test_a_manifest_that_cannot_be_right_is_refused(
    change: dict[str, object],
    says: str,
    config: ControllerConfig,
    copy_store: CopyStore,
    tmp_path: Path,
) -> None:
    made = make_backup(config, tmp_path / "backups", copy_store)
    data = json.loads((made / FILE).read_text())
    (made / FILE).write_text(json.dumps({**data, **change}))
    with pytest.raises(BackupError, match=says):
        read_manifest(made)


def test_the_copy_has_what_only_the_log_has_yet(config: ControllerConfig, tmp_path: Path) -> None:
    with DuckDBStore(config.store_file) as store:
        store.add_measurements("c", [measured(4)])
        assert config.store_file.with_name("store.duckdb.wal").stat().st_size > 0
        copy_file(store.file, tmp_path / "copy")
        store.add_measurements("c", [measured(5)])
        with pytest.raises(UsageError, match="exists already"):
            copy_file(store.file, tmp_path / "copy")
        with pytest.raises(StoreError, match="cannot be copied: cp: "):
            copy_file(store.file, tmp_path / "none" / "copy")
    found = settled_copy(tmp_path / "copy")
    assert found.measurements == 4
    assert not (tmp_path / "copy.wal").exists()
