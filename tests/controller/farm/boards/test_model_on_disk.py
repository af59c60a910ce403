"""Large models in files: there as long as somebody needs them."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.farm.boards.model_on_disk import ModelOnDisk, write_model
from latfarm_controller.farm.boards.shard import fetch_model


def test_the_file_goes_with_the_last_who_needs_it(tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(b"weights")
    cached = ordered = ModelOnDisk(path)
    del cached
    assert asyncio.run(fetch_model(ordered)) == b"weights"
    assert path.exists()
    del ordered
    gc.collect()
    assert not path.exists()


def test_a_file_that_is_gone_already_is_no_error(tmp_path: Path) -> None:
    model = ModelOnDisk(tmp_path / "model")
    del model
    gc.collect()


def test_a_model_of_several_files_comes_back_whole_and_goes_whole(tmp_path: Path) -> None:
    files = ModelFiles(b"model", {"a.data": b"weights", "b.data": b"more"})
    model = ModelOnDisk(tmp_path / "model", write_model(tmp_path / "model", files))
    assert len(list(tmp_path.iterdir())) == 3
    assert asyncio.run(fetch_model(model)) == files
    del model
    gc.collect()
    assert list(tmp_path.iterdir()) == []
