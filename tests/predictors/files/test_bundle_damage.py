"""A bundle of which any byte changes, or a file is missing, is refused before it is parsed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.errors import BundleError
from latfarm_predictors.files import bundle_state
from latfarm_predictors.files.bundle_files import read_files, sums_of, write_files
from latfarm_predictors.predict.predictor import PlatformPredictor


@pytest.fixture(scope="module")
def stored(predictor: PlatformPredictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    save_bundle(predictor, folder / "tree")
    save_bundle(predictor, folder / "one.zip")
    return folder


def fail_if_parsed(*_: object, **__: object) -> object:
    raise AssertionError("a file was parsed before its digest was known to be right")


def refused(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the bundle is refused before anything in it is parsed."""
    with monkeypatch.context() as patch:
        patch.setattr(json, "loads", fail_if_parsed)
        patch.setattr(bundle_state, "read_arrays", fail_if_parsed)
        with pytest.raises(BundleError, match=bundle.name.replace(".", r"\.")):
            load_bundle(bundle)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_byte_of_an_archive_is_found(
    data: st.DataObject, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray((stored / "one.zip").read_bytes())
    # half of all draws are at the end, where names, dates and the seal are
    last = data.draw(st.sampled_from([len(content), min(2000, len(content))]))
    place = len(content) - data.draw(st.integers(1, last))
    content[place] ^= data.draw(st.integers(1, 255))
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes(content)
    refused(damaged, monkeypatch)


def test_no_byte_of_an_archives_seal_may_change(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (stored / "one.zip").read_bytes()
    damaged = tmp_path / "damaged.zip"
    for place in range(len(content) - 135, len(content)):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        refused(damaged, monkeypatch)
    for cut in (1, 113, 135):
        damaged.write_bytes(content[:-cut])
        refused(damaged, monkeypatch)
    damaged.write_bytes(content + b"x")
    refused(damaged, monkeypatch)


FILES = (
    *("predictor.json", "arrays.npz", "baselines.json", "baselines.npz", "rules.json"),
    *("bundle.json", "provenance.json", "SHA256SUMS"),
)


@pytest.fixture
def copy(stored: Path, tmp_path: Path) -> Path:
    shutil.copytree(stored / "tree", tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.parametrize("name", FILES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_byte_of_a_directory_is_found(
    name: str, data: st.DataObject, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (copy / name).read_bytes()
    place = data.draw(st.integers(0, len(content) - 1))
    flipped = bytes([content[place] ^ data.draw(st.integers(1, 255))])
    (copy / name).write_bytes(content[:place] + flipped + content[place + 1 :])
    try:
        refused(copy, monkeypatch)
    finally:
        (copy / name).write_bytes(content)


def test_no_byte_of_the_list_of_digests_may_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "small"
    write_files({"a.json": b"{}", "texts/b.txt": b"x", "SHA256SUMS": b""}, copy)
    content = sums_of({"a.json": b"{}", "texts/b.txt": b"x"})
    (copy / "SHA256SUMS").write_bytes(content)
    assert set(read_files(copy)) == {"a.json", "texts/b.txt", "SHA256SUMS"}
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        (copy / "SHA256SUMS").write_bytes(changed)
        refused(copy, monkeypatch)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_or_truncated_file_is_found(
    name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes(content[:-1])
    refused(copy, monkeypatch)
    (copy / name).unlink()
    refused(copy, monkeypatch)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_archive_is_found(share: float, stored: Path, tmp_path: Path) -> None:
    content = (stored / "one.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(content[: int(share * len(content))])
    with pytest.raises(BundleError, match=r"cut\.zip"):
        load_bundle(tmp_path / "cut.zip")


def test_a_stray_file_is_not_taken_along(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored / "tree", tmp_path / "copy")
    (tmp_path / "copy" / "extra.bin").write_bytes(b"x")
    with pytest.raises(BundleError, match="digests list"):
        load_bundle(tmp_path / "copy")
