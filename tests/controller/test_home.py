from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from latfarm_controller.config import load_config
from latfarm_controller.errors import UsageError
from latfarm_controller.home import home_without_settings
from latfarm_controller.training.bundles import own_folder


def test_the_home_is_that_of_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for environ in (
        {},
        {"LATFARM_HOME": ""},
        {"LATFARM_HOME": "here"},
        {"LATFARM_HOME": "~/there", "LATFARM_LEASE_MS": ""},
        {"LATFARM_HOME": str(tmp_path / "missing"), "OTHER": "x"},
    ):
        assert home_without_settings(environ) == load_config(environ=environ).home


def test_a_setting_leaves_the_home_to_the_settings(tmp_path: Path) -> None:
    home = {"LATFARM_HOME": str(tmp_path)}
    assert home_without_settings(home) == tmp_path
    assert home_without_settings({**home, "LATFARM_LEASE_MS": "2000"}) is None
    (tmp_path / "latfarm.toml").write_text("lease_ms = 2000\n")
    assert home_without_settings(home) is None
    assert home_without_settings({"LATFARM_HOME": str(tmp_path / "latfarm.toml")}) is None


def test_a_wrong_setting_is_told_where_only_the_folder_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path))
    assert own_folder() == load_config().bundles_dir
    (tmp_path / "latfarm.toml").write_text("lease_msec = 2000\n")
    with pytest.raises(UsageError, match="lease_msec"):
        own_folder()


def test_finding_the_folder_does_not_load_what_checks_settings() -> None:
    code = (
        "import sys, latfarm_controller.cli.main, latfarm_controller.cli.shell.inputs\n"
        "from latfarm_controller.training import bundles\n"
        "from latfarm_controller.platform_name import as_asked\n"
        "bundles.own_folder()\n"
        "print(sorted({'pydantic', 'ray', 'grpc', 'duckdb', 'scipy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}
    )
    assert done.stdout.strip() == "[]"
