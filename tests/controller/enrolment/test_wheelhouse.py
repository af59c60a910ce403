"""Tests which wheels a board gets; the test makes the wheels and uses no package index."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from latfarm_controller.enrolment import wheelhouse, wheels
from latfarm_controller.enrolment.target import WheelTarget
from latfarm_controller.errors import UsageError, WheelError
from packaging.markers import Marker

from tests.controller.enrolment.conftest import make_wheel
from tests.unpacking import unpack

OLD = WheelTarget("3.8", "aarch64", "2.31")
NEW = WheelTarget("3.13", "x86_64", "2.36")


def names(made: wheelhouse.Wheelhouse) -> set[str]:
    return {name.split("-")[0] for name in made.wheels}


def test_a_board_gets_what_it_needs_and_nothing_else(
    own: Path, index: Path, tmp_path: Path
) -> None:
    needed = {"latfarm_agent", "latfarm_protos", "base", "proto", "pip"}
    plain = wheelhouse.assemble(NEW, [], tmp_path / "w", own)
    assert names(plain) == needed
    # The board's Python decides which requirements are needed, not the controller's Python.
    assert names(wheelhouse.assemble(OLD, [], tmp_path / "w", own)) == needed | {"backport"}
    made = wheelhouse.assemble(NEW, ["toy", "young"], tmp_path / "w", own)
    assert names(made) == needed | {"toy", "young"}
    assert made.left_out == {}


def test_what_is_not_for_its_python_is_named(own: Path, index: Path, tmp_path: Path) -> None:
    made = wheelhouse.assemble(OLD, ["toy", "young"], tmp_path / "w", own)
    assert "young" not in names(made)
    assert "toy" in names(made)
    assert "python_version" in made.left_out["young"]


def test_a_controller_gets_its_own_packages_with_what_fitting_needs(
    own: Path, index: Path, tmp_path: Path
) -> None:
    """Its releases do not push those of boards out of the folder."""
    board = wheelhouse.assemble(NEW, [], tmp_path / "w", own)
    make_wheel(own, "latfarm-predictors", requires=["base", "fitter; extra == 'fit'"])
    make_wheel(own, "latfarm-controller", "2.0", ["latfarm-predictors[fit]", "latfarm-protos"])
    make_wheel(index, "fitter")
    kit = wheelhouse.CONTROLLER
    made = wheelhouse.assemble(NEW, [], tmp_path / "w", own, kit)
    ours = {"latfarm_controller", "latfarm_predictors", "latfarm_protos"}
    assert names(made) == ours | {"base", "proto", "fitter", "pip"}
    assert made.release.startswith("2.0-")
    assert made.archive.name.startswith("latfarm-controller-2.0-")
    assert made.left_out == {}
    for version in ("3.0", "4.0", "5.0"):
        make_wheel(own, "latfarm-controller", version, ["latfarm-predictors[fit]"])
        wheelhouse.assemble(NEW, [], tmp_path / "w", own, kit)
    assert board.archive.exists()
    assert not made.archive.exists()
    with pytest.raises(UsageError, match=r"latfarm-controller needs 3\.11 or newer"):
        wheelhouse.assemble(OLD, [], tmp_path / "w", own, kit)
    with pytest.raises(UsageError, match="no runtime tyo; the controller knows toy, young"):
        wheelhouse.assemble(NEW, ["tyo"], tmp_path / "w", own, kit)


def test_equal_contents_are_one_release(own: Path, index: Path, tmp_path: Path) -> None:
    first = wheelhouse.assemble(NEW, ["toy"], tmp_path / "a", own)
    second = wheelhouse.assemble(NEW, ["toy"], tmp_path / "b", own)
    assert first.release == second.release
    assert first.archive.read_bytes() == second.archive.read_bytes()
    make_wheel(own, "latfarm-protos", requires=["proto>=2", "base"])
    assert wheelhouse.assemble(NEW, ["toy"], tmp_path / "a", own).release != first.release


def test_the_archive_lists_each_wheel_with_its_hash(own: Path, index: Path, tmp_path: Path) -> None:
    made = wheelhouse.assemble(NEW, ["toy"], tmp_path / "w", own)
    unpack(made.archive, tmp_path / "out")
    with tarfile.open(made.archive) as archive:
        assert {(entry.uid, entry.mtime, entry.mode) for entry in archive} == {(0, 0, 0o644)}
    lines = (tmp_path / "out/requirements.txt").read_text().splitlines()
    for line in lines:
        name, sha256 = line.split("==")[0], line.split("sha256:")[1]
        (path,) = (tmp_path / "out").glob(f"{name.replace('-', '_')}-*.whl")
        assert wheels.read_wheel(path).sha256 == sha256
    assert not any(line.startswith("pip==") for line in lines)
    about = json.loads((tmp_path / "out/release.json").read_text())
    assert about["release"] == made.release
    assert (tmp_path / "out" / about["pip"]).exists()


def test_what_was_fetched_is_not_fetched_again(
    own: Path, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheelhouse.assemble(NEW, ["toy"], tmp_path / "w", own)

    def fetch(*_: object) -> None:
        raise AssertionError("fetched again")

    monkeypatch.setattr(wheels, "fetch", fetch)
    wheelhouse.assemble(NEW, ["toy"], tmp_path / "w", own)


def test_what_cannot_be_met_is_an_error(own: Path, index: Path, tmp_path: Path) -> None:
    make_wheel(own, "latfarm-protos", requires=["proto>=9"])
    with pytest.raises(WheelError, match="proto>=9"):
        wheelhouse.assemble(NEW, [], tmp_path / "w", own)


def test_wrong_words_are_refused(own: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no runtime tyo; the agent knows toy, young"):
        wheelhouse.assemble(NEW, ["tyo"], tmp_path / "w", own)
    with pytest.raises(UsageError, match="must hold wheels"):
        wheelhouse.assemble(NEW, [], tmp_path / "w", tmp_path)
    for words in (("3.7", "x86_64"), ("2.7", "x86_64"), ("3.11", "sparc"), ("3", "x86_64")):
        with pytest.raises(UsageError):
            WheelTarget(*words)
    with pytest.raises(UsageError, match="glibc"):
        WheelTarget("3.11", "x86_64", "musl")
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_text("no zip")
    with pytest.raises(UsageError, match="is no wheel"):
        wheels.read_wheel(broken)


def test_a_target_takes_no_wheel_for_a_newer_library() -> None:
    options = OLD.pip_options()
    assert "--platform=manylinux_2_31_aarch64" in options
    assert "--platform=manylinux_2_32_aarch64" not in options
    assert "--platform=manylinux2014_aarch64" in options
    assert "--python-version=3.8" in options
    assert OLD.holds(Marker("platform_machine == 'aarch64' and python_version < '3.9'"))
    assert not OLD.holds(Marker("sys_platform == 'win32'"))


def archives(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.tar")}


def release(own: Path, number: int) -> None:
    """Make an agent with other metadata for each number, so that each gives another release."""
    make_wheel(own, "latfarm-agent", requires=["latfarm-protos", "base", *["proto"] * number])


def test_a_folder_keeps_the_present_release_and_the_one_before(
    own: Path, index: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "w"
    made = []
    for number in range(1, 4):
        release(own, number)
        made.append(wheelhouse.assemble(NEW, [], folder, own).archive.name)
    assert len(set(made)) == 3
    assert archives(folder) == set(made[1:])
    # The previous release becomes the present one again, and both are still kept.
    release(own, 2)
    assert wheelhouse.assemble(NEW, [], folder, own).archive.name == made[1]
    assert archives(folder) == set(made[1:])
    release(own, 1)
    again = wheelhouse.assemble(NEW, [], folder, own).archive
    assert again.exists()
    assert archives(folder) == {made[0], made[1]}


def test_each_kind_of_board_keeps_its_own(own: Path, index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    rare = wheelhouse.assemble(OLD, ["young"], folder, own).archive
    for number in range(1, 5):
        release(own, number)
        wheelhouse.assemble(NEW, ["toy"], folder, own)
    assert rare.exists()
    assert len(archives(folder)) == 3
    # Two kinds of board share one archive: on Python 3.8, the runtime "young" needs no wheel.
    release(own, 1)
    assert wheelhouse.assemble(OLD, [], folder, own).archive.exists()


def test_fetched_wheels_go_with_the_last_release_of_them(
    own: Path, index: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "w"

    def fetched() -> set[str]:
        return {path.name for path in (folder / "others").iterdir()}

    wheelhouse.assemble(NEW, [], folder, own)
    first = fetched()
    wheelhouse.assemble(OLD, [], folder, own)  # another kind needs other wheels
    of_old = fetched() - first
    for version in ("2.1", "2.2", "2.3"):
        make_wheel(own, "latfarm-protos", requires=[f"proto>={version}"])
        wheelhouse.assemble(NEW, [], folder, own)
    assert not first & fetched()
    assert of_old <= fetched()
    assert len(fetched()) == 3


def test_nothing_outside_the_folder_is_removed(own: Path, index: Path, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    wheelhouse.assemble(NEW, [], folder, own)
    kept = json.loads((folder / "kept.json").read_text())
    (releases,) = kept["kinds"].values()
    (tmp_path / "precious").mkdir()
    releases[0]["parts"].append("../precious")
    (folder / "kept.json").write_text(json.dumps(kept))
    for number in range(2, 5):
        release(own, number)
        wheelhouse.assemble(NEW, [], folder, own)
    assert (tmp_path / "precious").exists()
    # If the list cannot be read, a new list is started, and no file is removed.
    before = archives(folder)
    (folder / "kept.json").write_text("{")
    release(own, 5)
    wheelhouse.assemble(NEW, [], folder, own)
    assert before < archives(folder)
