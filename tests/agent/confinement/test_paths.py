"""What a worker may read: all of a folder but what is hidden in it."""

from __future__ import annotations

import sys
from pathlib import Path

from latfarm_agent.confinement import paths


def made(root: Path, *names: str) -> list[Path]:
    found = []
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        found.append(path)
    return found


def test_a_folder_is_granted_around_what_is_hidden(tmp_path: Path) -> None:
    library, tool, key, note = made(
        tmp_path, "lib/a.so", "bin/tool", "home/tls/ca.key", "home/note"
    )
    granted = set(paths.spread(tmp_path, [key.parent]))
    assert granted == {library.parent, tool.parent, note}
    assert list(paths.spread(tmp_path, [])) == [tmp_path]
    assert list(paths.spread(key.parent, [key.parent])) == []
    assert list(paths.spread(key.parent, [tmp_path])) == [key.parent], "somebody has named it"


def test_options_name_files_that_are_granted(tmp_path: Path) -> None:
    library, config = made(tmp_path, "libdelegate.so", "vela.ini")
    options = {"delegates": [{"library": str(library)}], "config": str(config), "text": "words"}
    granted = paths.programs(options, (), ())
    assert {library, config} <= set(granted)
    assert tmp_path not in granted


def test_no_folder_with_homes_is_granted_whoever_names_it() -> None:
    granted = paths.programs({}, ("/", "/home", "/root", "/etc", "/var", "/tmp", "relative"), ())
    assert not {Path("/"), Path("/home"), Path("/root"), Path("/etc"), Path("/tmp")} & set(granted)
    assert Path(sys.base_prefix).resolve() in granted


def test_usb_is_granted_for_an_accelerator_alone(tmp_path: Path) -> None:
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    (keyboard,) = made(tmp_path, "sys/bus/usb/devices/1-1/idVendor")
    keyboard.write_text("046d\n")
    assert paths.devices(tmp_path) == [tmp_path / "dev" / "dri"]
    keyboard.write_text("03e7\n")
    assert paths.devices(tmp_path)[-1] == tmp_path / "dev" / "bus" / "usb"
