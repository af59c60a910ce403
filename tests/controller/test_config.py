from __future__ import annotations

import os
import re
import socket
import stat
from pathlib import Path

import pytest
from latfarm_controller.config import LONGEST_RAY_DIR, ControllerConfig, load_config
from latfarm_controller.errors import UsageError


def write(home: Path, text: str) -> None:
    (home / "latfarm.toml").write_text(text)


def test_defaults_lie_in_the_users_data_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg/data")
    config = load_config(environ={})
    assert config.home == Path("/xdg/data/latfarm")
    assert config.lock_wait_ms == 0


def test_flags_beat_environment_beats_file_beats_defaults(tmp_path: Path) -> None:
    write(tmp_path, "lock_wait_ms = 500\nlease_ms = 2000\nray_cpus = 2\n")
    environ = {
        "LATFARM_HOME": str(tmp_path),
        "LATFARM_LEASE_MS": "3000",
        "LATFARM_RAY_CPUS": "3",
        "LATFARM_LOCAL_AGENT": "false",
        "LATFARM_LISTEN": "",
        "LATFARM_OF_SOMEBODY_ELSE": "x",
    }
    config = load_config({"ray_cpus": 4, "lease_ms": None}, environ)
    assert config.lock_wait_ms == 500
    assert config.lease_ms == 3000
    assert config.ray_cpus == 4
    assert config.local_agent is False


def test_the_home_of_a_flag_beats_that_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write(tmp_path / "a", "lease_ms = 5000")
    config = load_config({"home": tmp_path / "a"}, {"LATFARM_HOME": str(tmp_path / "b")})
    assert config.home == tmp_path / "a"
    assert config.lease_ms == 5000


def test_this_process_environment_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path))
    assert load_config().home == tmp_path


def test_a_relative_or_tilde_home_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    write(tmp_path, "lease_ms = 5000")
    assert load_config({"home": "."}, {}).home == tmp_path
    assert load_config({"home": "."}, {}).lease_ms == 5000
    assert load_config({"home": "~/x"}, {}).home == Path("/home/somebody/x")


@pytest.mark.parametrize(
    ("text", "story"),
    [
        ("lease_ms = [", "is not valid TOML"),
        ('lease_ms = "soon"', "lease_ms = 'soon'"),
        ("lease_ms = 1", "greater than or equal to 1000"),
        ("leese_ms = 5000", "did you mean lease_ms"),
        ("zzz = 1", "known settings: home, lock_wait_ms"),
        ('home = "/elsewhere"', "cannot set it"),
        ("lock_wait_ms = inf", "lock_wait_ms"),
    ],
)
def test_a_bad_file_is_named_with_the_value(tmp_path: Path, text: str, story: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError, match=re.escape(story)) as caught:
        load_config({"home": tmp_path}, {})
    assert str(tmp_path / "latfarm.toml") in str(caught.value)
    assert "\n" not in str(caught.value).split(" is not valid TOML")[0]


def test_a_bad_variable_or_flag_says_where_it_was_set(tmp_path: Path) -> None:
    environ = {"LATFARM_HOME": str(tmp_path), "LATFARM_LEASE_MS": "x"}
    with pytest.raises(UsageError, match="environment: LATFARM_LEASE_MS = 'x'"):
        load_config(environ=environ)
    with pytest.raises(UsageError, match="command line: lease_ms = -1"):
        load_config({"home": tmp_path, "lease_ms": -1}, {})
    with pytest.raises(UsageError, match="command line: there is no setting 'leash_ms'"):
        load_config({"home": tmp_path, "leash_ms": 1}, {})


def test_a_home_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        load_config({"home": tmp_path / "file"}, {})


def test_paths_lie_below_the_home() -> None:
    home = Path("/srv/latfarm")
    config = ControllerConfig(home=home)
    for path in (
        config.store_file,
        config.boards_file,
        config.lock_file,
        config.socket_file,
        config.ray_dir,
        config.bundles_dir,
        config.reports_dir,
        config.agents_dir,
        config.logs_dir,
    ):
        assert path.parent == home


def test_rays_folder_is_never_too_long_for_its_sockets() -> None:
    assert ControllerConfig(home=Path("/srv/latfarm")).ray_dir == Path("/srv/latfarm/ray")
    deep = ControllerConfig(home=Path("/srv") / ("long" * 20))
    assert len(os.fsencode(deep.ray_dir)) <= LONGEST_RAY_DIR
    assert deep.ray_dir == ControllerConfig(home=deep.home).ray_dir
    assert deep.ray_dir != ControllerConfig(home=deep.home / "other").ray_dir


def test_the_controllers_socket_has_a_path_that_sockets_can_have(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path / ("deep" * 30))
    config.make_dirs()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(config.socket_file))
    config.socket_file.unlink()
    config.ray_dir.rmdir()
    config.socket_file.parent.rmdir()


def test_folders_are_made_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = ControllerConfig(home=tmp_path / "home")
    config.make_dirs()
    config.make_dirs()
    for folder in (config.home, config.bundles_dir, config.logs_dir, config.ray_dir):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not config.store_file.exists()


def test_folders_that_cannot_be_made(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path / "home")
    (tmp_path / "home").touch()
    with pytest.raises(UsageError, match="LATFARM_HOME"):
        config.make_dirs()


def test_settings_cannot_be_changed_afterwards(tmp_path: Path) -> None:
    config = ControllerConfig(home=tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        setattr(config, "lease_ms", 1)  # noqa: B010
