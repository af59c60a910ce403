"""The files of a model that consists of several: names, hashes, and how they are laid out."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

import pytest
from latfarm_agent.errors import BlobNotFoundError, DigestError, RequestError
from latfarm_agent.files.blobs import BlobStore
from latfarm_agent.files.companions import (
    MOST_COMPANIONS,
    acquire_all,
    check_companions,
    distrust_all,
    release_all,
)
from latfarm_agent.files.handover import hand_over

MODEL, DATA = b"the model", b"its weights"
SHA = "0" * 64
TRICKS = [
    *("", ".", "..", "../weights", "/etc/passwd", "a/b", "a\\b", "./weights", "~weights"),
    *(".hidden", "-rf", "_model.onnx", "a\0b", "a\nb", "a:b", "weights ", "gewichté", "a" * 129),
    *("*/_ORT_MEM_ADDR_/*", "$HOME", "%2e%2e", "a compiled engine", SHA),
]


def name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put(folder: Path, *blobs: bytes) -> list[Path]:
    paths = [folder / name(data) for data in blobs]
    for path, data in zip(paths, blobs):
        path.write_bytes(data)
        path.chmod(0o400)
    return paths


@pytest.mark.parametrize("trick", TRICKS)
def test_only_plain_names_are_taken(trick: str) -> None:
    with pytest.raises(RequestError, match="cannot be the name of a companion"):
        check_companions({"weights-0.bin": SHA, trick: SHA}, SHA)


@pytest.mark.parametrize("sha256", ["", "0" * 63, "0" * 65, "A" * 64, "../" + "0" * 61])
def test_only_hashes_are_taken(sha256: str) -> None:
    with pytest.raises(DigestError):
        check_companions({"weights": sha256}, SHA)


def test_their_number_has_a_bound() -> None:
    most = {f"weights-{index}.bin": SHA for index in range(MOST_COMPANIONS)}
    check_companions(most, SHA)
    with pytest.raises(RequestError, match=f"a board takes {MOST_COMPANIONS}"):
        check_companions({**most, "one-more": SHA}, SHA)


def test_all_are_laid_out_read_only_in_a_new_folder(tmp_path: Path) -> None:
    blobs, models = tmp_path / "blobs", tmp_path / "models"
    blobs.mkdir()
    models.mkdir()
    (model, data) = put(blobs, MODEL, DATA)
    found = hand_over(model, models, {"weights": data.name, "again": data.name})
    assert found.parent.parent == models
    assert {path.name: path.read_bytes() for path in found.parent.iterdir()} == {
        model.name: MODEL,
        "weights": DATA,
        "again": DATA,
    }
    for path in found.parent.iterdir():
        assert stat.S_IMODE(path.lstat().st_mode) == 0o400
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("how", ["other bytes", "a link", "a folder", "a FIFO", "missing"])
def test_a_companion_that_is_not_the_uploaded_file_is_refused(tmp_path: Path, how: str) -> None:
    blobs, models = tmp_path / "blobs", tmp_path / "models"
    blobs.mkdir()
    models.mkdir()
    (model, data) = put(blobs, MODEL, DATA)
    data.unlink()
    if how == "other bytes":
        data.write_bytes(b"other bytes")
    elif how == "a link":
        (tmp_path / "elsewhere").write_bytes(DATA)
        data.symlink_to(tmp_path / "elsewhere")
    elif how == "a folder":
        data.mkdir()
    elif how == "a FIFO":
        os.mkfifo(data)
    with pytest.raises(BlobNotFoundError):
        hand_over(model, models, {"weights": data.name})
    assert not list(models.iterdir()), "what was laid out before is removed"


def test_all_are_kept_from_eviction_or_none(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs", max_blob_bytes=100, max_total_bytes=30, reserve_bytes=0)
    for data in (MODEL, DATA):
        upload = blobs.begin(name(data), len(data), 0)
        assert upload is not None
        with upload:
            upload.write(data)
            upload.finish()
    with pytest.raises(BlobNotFoundError):
        acquire_all(blobs, [name(MODEL), name(DATA), SHA])
    both = [name(MODEL), name(DATA)]
    assert acquire_all(blobs, both) == tmp_path / "blobs" / name(MODEL)
    assert blobs.room_bytes == 30 - len(MODEL) - len(DATA)
    release_all(blobs, both)
    assert blobs.room_bytes == 30, "those of the refused request were given back too"
    distrust_all(blobs, both)
    (tmp_path / "blobs" / name(DATA)).chmod(0o600)
    (tmp_path / "blobs" / name(DATA)).write_bytes(b"spoiled")
    with pytest.raises(BlobNotFoundError, match="damaged"):
        acquire_all(blobs, both)
