"""`prepare` makes what tests on virtual boards need, or says in one line why it cannot."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.farm import conftest, prepare
from tests.farm.boards import debs, emulation, host, rootfs, wheels
from tests.farm.boards.host import HostError
from tests.farm.lab import grafana

pytestmark = pytest.mark.farm


def refuse(*words: object, **options: object) -> Any:
    raise HostError("apt-get: exit status 100: no network")


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a mirror that does not exist."""
    monkeypatch.setenv(host.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setenv(rootfs.MIRROR_VARIABLE, f"file://{tmp_path}/mirror")
    return tmp_path


def test_a_host_on_which_nothing_can_be_installed(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "install", refuse)
    monkeypatch.setattr(host, "lacks", lambda: "virtual boards need Debian's packages zstd")
    assert prepare.main(["--install"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "virtual boards: cannot install: apt-get: exit status 100: no network",
        "virtual boards: this host cannot run them: virtual boards need Debian's packages zstd",
    ]


def test_a_host_that_cannot_reach_a_mirror(
    nothing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = rootfs.lacks()
    assert reason.startswith("Debian's packages cannot be reached")
    assert f"{nothing}/mirror/dists/{rootfs.SUITE}/InRelease" in reason
    assert "\n" not in reason
    monkeypatch.setattr(host, "lacks", str)
    assert prepare.main([]) == 0
    assert reason in capsys.readouterr().err


def test_a_cached_root_file_system_needs_no_mirror(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rootfs, "_make", lambda packed, *_: packed.touch())
    rootfs.ensure()
    assert rootfs.lacks() == ""


def test_a_failure_on_a_host_that_can_run_boards_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (host, rootfs):
        monkeypatch.setattr(module, "lacks", str)
    monkeypatch.setattr(rootfs, "tree", refuse)
    monkeypatch.setattr(wheels, "site", lambda *_, **__: None)
    monkeypatch.setattr(prepare, "fetch_for_boards", refuse)
    assert prepare.main([]) == 1
    *each, last = capsys.readouterr().err.splitlines()
    assert len(each) == 7, "each failure is printed"
    assert all("no network" in line for line in each)
    assert "1 of 8 are there; run this again" in last


def test_a_fetch_that_fails_says_what_to_do() -> None:
    with pytest.raises(HostError) as caught:
        host.fetch("false", source=rootfs.source(), timeout_s=10.0)
    said = str(caught.value)
    assert said.startswith("false: exit status 1")
    assert "LATFARM_DEBIAN_MIRROR names another mirror" in said
    assert "run this again: fetched files are kept" in said


def package(folder: Path, name: str) -> Path:
    """Make an empty Debian package."""
    control = folder / name / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: latfarm\nDescription: none\n"
    )
    made = folder / f"{name}_1_all.deb"
    host.command("dpkg-deb", "--build", folder / name, made)
    return made


def test_an_interrupted_fetch_continues_where_it_stopped(
    nothing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [package(nothing, name) for name in ("one", "two")]
    had: list[list[str]] = []

    def apt(*words: str | Path, **_: object) -> str:
        """Stands for apt, which does not fetch packages again that are in its archives."""
        if "install" in words:
            (place,) = (Path(str(w).partition("=")[2]) for w in words if "archives=" in str(w))
            had.append(sorted(path.name for path in place.glob("*.deb")))
            (place / "partial" / "three.deb").write_bytes(b"half")
            for path in made[: len(had)]:
                shutil.copy(path, place)
            if len(had) == 1:
                raise HostError("apt-get: exit status 100: the connection was reset")
        return ""

    monkeypatch.setattr(rootfs, "tree", lambda: nothing)
    monkeypatch.setattr(debs, "fetch", apt)
    with pytest.raises(HostError, match="reset"):
        debs.repository(["one", "two"])
    place = debs.repository(["one", "two"])
    assert had == [[], ["one_1_all.deb"]]
    assert {path.name for path in place.iterdir()} == {*(path.name for path in made), "Packages"}
    assert [path.name for path in place.parent.iterdir() if path.is_dir()] == [place.name]
    assert debs.repository(["two", "one"]) == place
    assert len(had) == 2, "a finished repository is not fetched again"


def test_only_all_asks_for_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for module in (host, rootfs):
        monkeypatch.setattr(module, "lacks", str)
    monkeypatch.setattr(rootfs, "tree", lambda arch=host.NATIVE, packages=(): asked.append(arch))
    monkeypatch.setattr(wheels, "site", lambda wanted, arch="arm64": asked.append(arch))
    monkeypatch.setattr(debs, "repository", lambda packages: asked.append(host.NATIVE))
    monkeypatch.setattr(emulation, "enable", asked.append)
    monkeypatch.setattr(
        prepare, "fetch_for_boards", lambda choices, arch=host.NATIVE: asked.append(arch)
    )
    monkeypatch.setattr(prepare, "fetch_for_controller", lambda: asked.append("controller"))
    monkeypatch.setattr(grafana, "lacks", lambda: "")
    monkeypatch.setattr(grafana, "bundle", lambda: asked.append("panels"))
    assert prepare.main([]) == 0
    assert set(asked) == {host.NATIVE}
    assert prepare.main(["--all"]) == 0
    assert set(asked) == {host.NATIVE, "arm64", "controller", "panels"}


def test_packages_start_no_services(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    with prepare.services_kept_off(policy):
        assert subprocess.run([policy, "prometheus", "start"]).returncode == 101
    assert not policy.exists()
    policy.write_text("the host's own\n")
    with prepare.services_kept_off(policy):
        assert policy.read_text() == "the host's own\n"
    assert policy.exists()


def test_long_files_come_first() -> None:
    folder = Path(conftest.__file__).parent
    names = ["test_phones.py", "test_monitoring.py", "test_termux.py", "test_enrolment.py"]
    items: list[Any] = [SimpleNamespace(path=folder / name) for name in names]
    conftest.pytest_collection_modifyitems(items)
    assert [item.path.name for item in items] == [
        *("test_enrolment.py", "test_monitoring.py", "test_phones.py", "test_termux.py"),
    ]
    assert all((folder / name).exists() for name in conftest.LONGEST_FIRST)
