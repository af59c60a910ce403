"""What is fitted when it is first needed is kept in files, and damaged files are not used."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.confidence.layer_confidence import METRICS, LayerConfidence
from latfarm_predictors.features.table import as_table
from latfarm_predictors.files.fitted_cache import FittedCache
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.published.per_type import PerType
from latfarm_predictors.testing.synthetic import SyntheticBoard, random_kernel

BUNDLE = "ab" * 32


def evidence() -> Evidence:
    rng = np.random.default_rng(0)
    works = [workload(random_kernel(rng, "conv")) for _ in range(30)]
    board = SyntheticBoard()
    latency = np.array([board.kernel_true_ms(work) for work in works])
    zeros = np.zeros(len(works))
    return Evidence(as_table(works), latency, zeros, latency, zeros + 0.1)


def some(value: float) -> ModelState:
    return ModelState("some", {"value": value}, {"array": np.full(2000, value)})


@pytest.fixture
def cache(tmp_path: Path) -> FittedCache:
    return FittedCache(tmp_path / "kept", BUNDLE)


def test_a_model_is_fitted_once_and_read_back_bit_for_bit(
    cache: FittedCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = evidence()
    first, known_first = Baselines(), evidence()
    first.keep_in(cache)
    known_first.keep_in(cache)
    told = first.per_type("annette-mixed", known).predict(known.table)
    metrics = known_first.metrics({"conv"}).families["conv"]
    widths = [metrics.intervals(known.table, metric).half_ms for metric in METRICS]
    own = [metrics.on_medians().own_intervals(metric).half_ms for metric in METRICS]

    def never(*_: object, **__: object) -> object:
        raise AssertionError("fitted a second time")

    monkeypatch.setattr(PerType, "fit", never)
    monkeypatch.setattr(LayerConfidence, "of", never)
    second, known_second = Baselines(), evidence()
    second.keep_in(cache)
    known_second.keep_in(cache)
    again = second.per_type("annette-mixed", known).predict(known.table)
    np.testing.assert_array_equal(told, again)
    metrics = known_second.metrics({"conv"}).families["conv"]
    for metric, width, half in zip(METRICS, widths, own, strict=True):
        np.testing.assert_array_equal(metrics.intervals(known.table, metric).half_ms, width)
        np.testing.assert_array_equal(metrics.on_medians().own_intervals(metric).half_ms, half)


def test_other_bundles_and_other_names_have_nothing(cache: FittedCache, tmp_path: Path) -> None:
    cache.put("a", some(1.0))
    found = cache.get("a")
    assert found is not None
    assert found.values == {"value": 1.0}
    np.testing.assert_array_equal(found.arrays["array"], np.full(2000, 1.0))
    assert cache.get("b") is None
    assert FittedCache(tmp_path / "kept", "cd" * 32).get("a") is None


def test_a_file_with_any_changed_byte_is_not_used(cache: FittedCache, tmp_path: Path) -> None:
    cache.put("a", some(1.0))
    (path,) = (tmp_path / "kept").glob("*.zip")
    content = path.read_bytes()
    for place in range(0, len(content), max(len(content) // 40, 1)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert cache.get("a") is None
    path.write_bytes(content[: len(content) // 2])
    assert cache.get("a") is None
    path.write_bytes(content)
    assert cache.get("a") is not None


def test_a_file_under_the_name_of_another_is_not_used(cache: FittedCache, tmp_path: Path) -> None:
    cache.put("a", some(1.0))
    (first,) = (tmp_path / "kept").glob("*.zip")
    cache.put("b", some(2.0))
    (second,) = set((tmp_path / "kept").glob("*.zip")) - {first}
    first.replace(second)
    assert cache.get("b") is None


def test_the_files_not_used_for_longest_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    rng = np.random.default_rng(0)
    cache = FittedCache(folder, BUNDLE, most_bytes=60_000)
    for number in range(3):
        cache.put(str(number), ModelState("some", {}, {"array": rng.random(2000)}))
        for path in folder.glob("*.zip"):  # makes the file ten seconds older
            told = path.stat()
            os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns - 10**10))
    assert cache.get("0") is not None  # used just now
    cache.put("3", ModelState("some", {}, {"array": rng.random(2000)}))
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 60_000
    assert cache.get("1") is None
    assert cache.get("0") is not None
    assert cache.get("3") is not None


def test_an_unwritable_folder_keeps_nothing_and_raises_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    cache = FittedCache(tmp_path / "kept", BUNDLE)
    cache.put("a", some(1.0))
    assert cache.get("a") is None
    baselines, known = Baselines(), evidence()
    baselines.keep_in(cache)
    assert len(baselines.per_type("annette-roofline", known).predict(known.table)[0]) == 30
