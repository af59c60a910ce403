"""`latfarm backup`, while a controller serves the home and after it has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.cli.main import run
from latfarm_controller.config import ControllerConfig
from latfarm_controller.store.duckdb import DuckDBStore

from tests.controller.api.kill_server import measured
from tests.controller.api.test_database_service import Serving


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command tells as JSON."""
    code = run(["backup", *words, "--json"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return json.loads(printed.out)


def test_a_lost_home_is_restored_from_a_backup_of_the_running_controller(
    config: ControllerConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(config.home))
    folder = str(tmp_path / "backups")

    serving = Serving(config)
    try:
        serving.store.add_measurements("c", [measured(4)])
        first, second = (told(capsys, "create", folder, "--keep", "1") for _ in range(2))
        assert run(["backup", "restore", folder, "--replace"]) == 1
        assert "the store is held by process" in capsys.readouterr().err
    finally:
        serving.close()
    assert first["measurements"] == second["measurements"] == 4
    assert (first["removed"], second["removed"]) == ([], [Path(first["backup"]).name])
    assert [each["backup"] for each in told(capsys, "list", folder)] == [second["backup"]]
    assert told(capsys, "verify", folder)["backup"] == second["backup"]
    lost = config.home.rename(tmp_path / "lost")
    done = told(capsys, "restore", folder)
    assert done["replaced"] is None
    assert done["backup"] == second["backup"]
    with DuckDBStore(config.store_file) as store:
        assert store.counts()["measurements"] == 4
    for name in ("tls/ca.key", "bundles/p/0001.zip", "holder"):
        assert (config.home / name).read_bytes() == (lost / name).read_bytes()


def test_people_read_what_was_done(
    config: ControllerConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(config.home))
    (config.home / "tls" / "link").symlink_to("/etc/passwd")
    folder = tmp_path / "backups"
    assert run(["backup", "create", str(folder)]) == 0
    printed = capsys.readouterr().err
    assert "not in the backup: tls/link is no regular file" in printed
    assert "3 measurements" in printed
    assert run(["backup", "list", str(folder)]) == 0
    assert "latfarm-" in capsys.readouterr().out
    assert run(["backup", "verify", str(folder)]) == 0
    assert "files were read: sound" in capsys.readouterr().out
    assert run(["backup", "restore", str(folder)]) == 2
    assert "say --replace" in capsys.readouterr().err
    assert run(["backup", "restore", str(folder), "--replace"]) == 0
    assert "its former state is in" in capsys.readouterr().err
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "moved"))
    assert run(["backup", "restore", str(folder)]) == 0
    assert f"the backup is of {config.home}" in capsys.readouterr().err
    assert run(["backup", "verify", str(tmp_path)]) == 1
    assert "is no complete backup, and has none in it" in capsys.readouterr().err
