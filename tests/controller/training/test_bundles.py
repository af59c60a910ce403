"""Bundles in their folder: the highest number counts, damaged files and odd names are refused."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from latfarm_controller.agents.fleet import BoardView, unknown_platform
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.bulk.open_bundles import OpenBundles
from latfarm_controller.cli.shell import output
from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.training import bundle_notes, bundles, new_bundle
from latfarm_controller.training.model_register import ModelRegister, read_register
from latfarm_controller.training.training import has_graph_network
from latfarm_predictors import bundle, whole_file
from latfarm_predictors.errors import BundleError
from latfarm_predictors.gnn.shipping import ShippingDecision
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.slow_core import SlowCore


def put(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def test_the_highest_number_is_the_newest(tmp_path: Path) -> None:
    put(tmp_path, "p/0009.zip", "p/0010.zip", "p/10000.zip", "p/9999.zip", "q/0001.zip")
    put(tmp_path, "p/notes.zip", "p/.0011.zip.abcd", "r/readme.txt")
    found = bundles.newest(tmp_path)
    assert {name: path.name for name, path in found.items()} == {"p": "10000.zip", "q": "0001.zip"}
    assert bundles.next_path(tmp_path, "p").name == "10001.zip"
    assert bundles.next_path(tmp_path, "new").name == "0001.zip"
    assert bundles.choose(tmp_path, "q") == tmp_path / "q" / "0001.zip"
    with pytest.raises(UsageError, match="choose one with --platform: p, q"):
        bundles.choose(tmp_path, "")


def test_no_folder_is_no_bundle(tmp_path: Path) -> None:
    assert bundles.newest(tmp_path / "none") == {}
    with pytest.raises(UsageError, match="no platform has a bundle yet"):
        bundles.choose(tmp_path / "none", "")
    with pytest.raises(UsageError, match=r"did you mean sample\?"):
        bundles.choose(tmp_path / "none", "sampl")


@pytest.mark.parametrize("data", [b"", b"hello", b"PK" + bytes(50)])
def test_what_is_no_bundle_is_not_kept(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "in.zip"
    path.write_bytes(data)
    with pytest.raises(BundleError, match=str(path)):
        new_bundle.take_in(tmp_path / "bundles", path)
    assert not (tmp_path / "bundles").exists()


@pytest.mark.parametrize("name", ["../out", "/tmp/out", "", ".hidden", "a/b", "a\nb", "x" * 300])
def test_a_platform_names_no_other_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "in.zip"
    path.write_text("a bundle")
    monkeypatch.setattr(bundle, "load_bundle", lambda _path: SimpleNamespace(platform=name))
    with pytest.raises(UsageError, match="not a valid name of a platform"):
        new_bundle.take_in(tmp_path / "bundles", path)
    assert not (tmp_path / "bundles").exists()
    monkeypatch.setattr(bundle, "load_bundle", lambda _path: SimpleNamespace(platform="fine-1.0"))
    assert new_bundle.take_in(tmp_path / "bundles", path)[1].read_text() == "a bundle"


def test_a_bundle_is_read_once_and_its_fits_are_kept_in_its_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "p/0001.zip")
    asked: list[tuple[Path, Path | None]] = []

    def load(path: Path, fits: Path | None) -> str:
        asked.append((path, fits))
        return path.read_text()

    read: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path)
        return read_bytes(path)

    monkeypatch.setattr(bundle, "load_bundle", load)
    monkeypatch.setattr(Path, "read_bytes", counted)
    assert str(bundles.load(tmp_path / "p" / "0001.zip")) == "p/0001.zip"
    assert asked == [(tmp_path / "p" / "0001.zip", tmp_path / bundles.FITTED)]
    assert not read
    assert not (tmp_path / bundles.FITTED).exists()


def test_export_is_whole_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path / "bundles", "p/0001.zip")
    bundles.export(tmp_path / "bundles", "p", tmp_path / "out.zip")
    assert (tmp_path / "out.zip").read_text() == "p/0001.zip"
    for place, error in {
        tmp_path: UsageError,
        tmp_path / "none" / "out.zip": UsageError,
        tmp_path / ("x" * 300): StoreError,
    }.items():
        with pytest.raises(error):
            bundles.export(tmp_path / "bundles", "p", place)
    assert {path.name for path in tmp_path.iterdir()} == {"bundles", "out.zip"}


def test_a_thousand_boards_fit_into_a_line() -> None:
    views = [
        BoardView(BoardEntry(f"b{number}", f"10.0.0.1:{number}"), error="away")
        for number in range(1, 1001)
    ]
    text = unknown_platform("p", views)
    assert text.startswith("unknown platform 'p'; known: none; not reachable: b1 (away); ")
    assert text.endswith("; and 980 more")
    assert "latfarm boards add" in unknown_platform("p", [])


def test_the_sample_is_not_offered_to_whoever_asked_for_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="latfarm predict alone reads") as refused:
        bundles.choose(tmp_path, "sample")
    assert "did you mean" not in str(refused.value)


def test_a_bundle_in_use_is_found_by_its_own_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p", "q"):
        put(tmp_path, f"{name}/0001.zip")
    looked: list[str] = []
    read = read_register

    def counted(folder: Path) -> ModelRegister:
        looked.append(folder.name)
        return read(folder)

    monkeypatch.setattr(bundles, "read_register", counted)
    assert bundles.choose(tmp_path, "p") == tmp_path / "p" / "0001.zip"
    assert looked == ["p"]
    for name in ("none", "", ".", "..", "../p", "p/", str(tmp_path / "p")):
        assert bundles.promoted_of(tmp_path, name) is None


def test_notes_follow_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that takes the place of another one under its name is read; the old notes are not."""
    put(tmp_path, "p/0001.zip")
    told: dict[str, object] = {
        "slow_core": SlowCore(shift=0.25, pairs=9).to_json(),
        "fingerprint": "f1",
    }
    read: list[Path] = []

    def provenance(path: Path) -> dict[str, object]:
        read.append(path)
        return told

    monkeypatch.setattr(bundle, "read_provenance", provenance)
    notes = bundle_notes.NewestNotes(tmp_path)
    rows = [
        Measurement("r", "g", name, "query", Outcome.OK, fingerprint=fingerprint, latency_ms=1.0)
        for name, fingerprint in (("p", "f1"), ("p", "f2"), ("q", "f2"))
    ]
    first = notes.noted(rows)
    assert notes.noted(rows) == first
    assert read == [tmp_path / "p" / "0001.zip"]
    assert [SlowCore.told_by(each).shift for each in first] == [0.25, 0.25, 0.0]
    assert [output.fingerprint_note(each) for each in first] == [
        *("", "under another fingerprint than the bundle in use", "")
    ]
    told = {"slow_core": SlowCore(shift=0.5, pairs=20).to_json()}
    (tmp_path / "new.zip").write_text("another bundle")
    (tmp_path / "new.zip").replace(tmp_path / "p" / "0001.zip")
    assert [SlowCore.told_by(each).shift for each in notes.noted(rows)] == [0.5, 0.5, 0.0]


def test_open_bundles_are_read_once_each_and_few_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("p", "q", "damaged"):
        put(tmp_path, f"{name}/0001.zip")
    read: list[str] = []

    def load(path: Path) -> str:
        read.append(path.parent.name)
        if path.parent.name == "damaged":
            raise BundleError("its digest is wrong")
        return path.read_text()

    monkeypatch.setattr(bundles, "load", load)
    kept = OpenBundles(2)
    p, q, damaged = (tmp_path / name / "0001.zip" for name in ("p", "q", "damaged"))
    assert [str(kept.get(path)) for path in (p, q, p)] == ["p/0001.zip", "q/0001.zip", "p/0001.zip"]
    for _ in range(2):
        with pytest.raises(BundleError, match="digest is wrong"):
            kept.get(damaged)
    assert read == ["p", "q", "damaged"]
    assert str(kept.get(q)) == "q/0001.zip"  # it was used the longest ago
    (tmp_path / "new.zip").write_text("another bundle")
    (tmp_path / "new.zip").replace(q)
    assert str(kept.get(q)) == "another bundle"
    assert read == ["p", "q", "damaged", "q", "q"]
    q.unlink()
    with pytest.raises(UsageError, match="cannot be read; it may have been removed"):
        kept.get(q)


def test_a_graph_network_is_tried_again_where_one_answers() -> None:
    def told(method: str, *, ship: bool) -> dict[str, Any]:
        decision = ShippingDecision(ship, "a reason", 0.1, 0.0, 0.2, (), method)
        return {"corrector": decision.to_json()}

    for provenance, expected in (
        ({}, False),
        (told("nnlp", ship=True), True),
        (told("nnlp-corrected", ship=True), True),
        (told("sum-gp", ship=True), False),
        (told("nnlp", ship=False), False),
    ):
        assert has_graph_network(provenance) is expected
    with pytest.raises(BundleError, match="decision about a corrector is damaged"):
        has_graph_network({"corrector": {"ship": True, "method": "nnlp"}})


def test_an_imported_bundle_is_on_the_disk_before_it_is_in_the_register(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The register is flushed; after a power cut it must not name an empty bundle."""
    flushed: list[bytes] = []
    monkeypatch.setattr(whole_file, "_flush", lambda path: flushed.append(path.read_bytes()))
    monkeypatch.setattr(bundle, "load_bundle", lambda _path: SimpleNamespace(platform="p"))
    (tmp_path / "in.zip").write_text("a bundle")
    new_bundle.take_in(tmp_path / "bundles", tmp_path / "in.zip")
    assert b"a bundle" in flushed


def test_what_a_killed_training_left_is_removed(tmp_path: Path) -> None:
    names = (".new-ab.zip", "..new-ab.zip.cd.part", "0001.zip")
    put(tmp_path, *(f"p/{name}" for name in names), "p/.new-fresh.zip")
    old_s = time.time() - 2 * new_bundle.LEFT_S
    for name in names:
        os.utime(tmp_path / "p" / name, (old_s, old_s))
    with new_bundle.unnumbered_bundle(tmp_path, "p") as path:
        path.write_text("a bundle")
        assert new_bundle.numbered(path).name == "0002.zip"
    left = {path.name for path in (tmp_path / "p").glob("*.zip*")}
    assert left == {"0001.zip", "0002.zip", ".new-fresh.zip"}
