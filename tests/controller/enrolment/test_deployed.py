"""Tests what a controller hands to boards on a machine to which it was deployed from wheels."""

from __future__ import annotations

import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from latfarm_controller.enrolment import wheelhouse, wheels
from latfarm_controller.enrolment.deployed import boards_folder
from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.enrolment.wheelhouse import CONTROLLER, assemble
from latfarm_controller.errors import UsageError, WheelError

from tests.controller.enrolment.conftest import make_wheel
from tests.unpacking import unpack

BOARD = WheelTarget("3.11", "aarch64", "2.36")
OLDER = WheelTarget("3.11", "aarch64", "2.31")
HUB = WheelTarget("3.11", "x86_64", "2.36")


@pytest.fixture
def archive(own: Path, index: Path, tmp_path: Path) -> Path:
    """The file from which a controller is installed."""
    make_wheel(own, "latfarm-predictors")
    make_wheel(own, "latfarm-controller", requires=["latfarm-predictors", "latfarm-protos"])
    return assemble(HUB, [], tmp_path / "made", own, CONTROLLER).archive


@pytest.fixture
def hub(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of what was brought, as the role installs it; nothing can be fetched there."""
    prefix = tmp_path / "venv"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    unpack(archive, tmp_path / "out")
    boards_folder().parent.mkdir(parents=True)
    (tmp_path / "out" / wheelhouse.HANDED).rename(boards_folder())
    return boards_folder()


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no package index."""

    def fetch(*_: object) -> None:
        raise WheelError("pip download: no index")

    monkeypatch.setattr(wheels, "fetch", fetch)


@pytest.fixture
def bring(own: Path, index: Path, tmp_path: Path, hub: Path) -> Callable[..., Path]:
    """A function that makes an archive elsewhere and brings it."""

    def made(target: WheelTarget, *runtimes: str) -> Path:
        return Path(shutil.copy(assemble(target, runtimes, tmp_path / "made", own).archive, hub))

    return made


def test_a_controller_gets_pip_and_the_wheels_of_the_agent(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as tar:
        names = {name for name in tar.getnames() if "/" in name}
    unpack(archive, tmp_path / "out")
    assert {name.split("-")[0] for name in names} == {
        "boards/latfarm_agent",
        "boards/latfarm_protos",
    }
    lines = (tmp_path / "out/requirements.txt").read_text().splitlines()
    assert any(line.startswith("pip==25.0 --hash=sha256:") for line in lines)
    assert not any(line.startswith("latfarm-agent") for line in lines)


def test_a_changed_agent_is_another_release_of_the_controller(
    archive: Path, own: Path, tmp_path: Path
) -> None:
    make_wheel(own, "latfarm-agent", requires=["latfarm-protos", "base", "proto"])
    assert assemble(HUB, [], tmp_path / "made", own, CONTROLLER).archive != archive


def test_it_needs_the_wheels_of_the_agent(own: Path, index: Path, tmp_path: Path) -> None:
    make_wheel(own, "latfarm-predictors")
    make_wheel(own, "latfarm-controller")
    for wheel in own.glob("latfarm_agent-*"):
        wheel.unlink()
    with pytest.raises(UsageError, match="must hold wheels of latfarm-protos and latfarm-agent"):
        assemble(HUB, [], tmp_path / "made", own, CONTROLLER)


def test_with_an_index_any_kind_of_board_is_equipped(hub: Path, tmp_path: Path) -> None:
    made = assemble(BOARD, ["toy"], tmp_path / "home")
    assert {"latfarm_agent", "toy"} <= {name.split("-")[0] for name in made.wheels}
    assert made.archive.parent == tmp_path / "home"


@pytest.mark.usefixtures("hub")
def test_an_archive_that_was_brought_needs_no_index(
    bring: Callable[..., Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It serves a board whose C library is newer, and no other Python, processor or runtimes."""
    archive = bring(OLDER, "toy")
    newer = bring(BOARD, "toy", "young")
    request.getfixturevalue("offline")
    made = assemble(BOARD, ["toy"], tmp_path / "home")
    assert made.archive == archive
    assert archive.name.startswith(f"latfarm-{made.release}-")
    assert "toy" in {name.split("-")[0] for name in made.wheels}
    assert made.to_json()["runtimes"] == ["toy"]
    assert assemble(BOARD, ["young", "toy"], tmp_path / "home").archive == newer
    for target, runtimes in (
        (OLDER, ["toy", "young"]),
        (BOARD, []),
        (HUB, ["toy"]),
        (WheelTarget("3.10", "aarch64", "2.36"), ["toy"]),
    ):
        with pytest.raises(WheelError, match="pip download: no index"):
            assemble(target, runtimes, tmp_path / "home")


@pytest.mark.usefixtures("hub", "offline")
def test_without_either_the_error_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(WheelError) as caught:
        assemble(BOARD, ["young", "toy"], tmp_path / "home")
    kind = '{python: "3.11", arch: aarch64, glibc: "2.36", runtimes: [toy, young]}'
    assert f"add {kind} to controller_board_kinds" in str(caught.value)
    assert "latfarm.farm.controller" in str(caught.value)


@pytest.mark.usefixtures("index", "offline")
def test_elsewhere_the_error_does_not_speak_of_a_deployment(own: Path, tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=r"^pip download: no index$"):
        assemble(BOARD, [], tmp_path / "home", own)


def test_a_damaged_archive_is_named(bring: Callable[..., Path], tmp_path: Path) -> None:
    archive = bring(BOARD)
    archive.write_bytes(archive.read_bytes()[:700])
    with pytest.raises(WheelError, match=f"{archive.name} is damaged .*remove it"):
        assemble(BOARD, [], tmp_path / "home")


def test_wheels_that_are_given_come_first(
    bring: Callable[..., Path], own: Path, tmp_path: Path
) -> None:
    brought = bring(BOARD)
    make_wheel(own, "latfarm-agent", requires=["latfarm-protos", "base", "proto"])
    made = assemble(BOARD, [], tmp_path / "home", own)
    assert made.archive != brought
    assert made.archive.parent == tmp_path / "home"


def test_without_pip_the_error_names_the_remedy(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(WheelError, match=r"has no pip, .* -m ensurepip`; .*upgrade_controller"):
        assemble(BOARD, [], tmp_path / "home", own)
