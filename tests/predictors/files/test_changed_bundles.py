"""A bundle that somebody has changed is refused in one line, or predicts finite numbers."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.errors import BundleError
from latfarm_predictors.files.bundle_files import MOST_BYTES, SUMS, read_files, sums_of
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.fuzz_bundles import fuzz_bundles, small_predictor
from latfarm_predictors.testing.synthetic import random_network

NETWORK = random_network(np.random.default_rng(5), "net")


@pytest.fixture(scope="module")
def files(
    predictor: PlatformPredictor, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("bundles") / "one.zip"
    save_bundle(predictor, path, {"campaign": "c"})
    return {name: content for name, content in read_files(path).items() if name != SUMS}


def archive(files: dict[str, bytes], target: Path) -> Path:
    """Write a bundle with digests that fit its contents."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in {**files, SUMS: sums_of(files)}.items():
            made.writestr(name, content)
    return target


def with_array(
    files: dict[str, bytes], end: str, change: Callable[[Any], Any], held: str = "arrays.npz"
) -> dict[str, bytes]:
    """The files with every array whose name ends in `end` changed."""
    with np.load(io.BytesIO(files[held])) as stored:
        arrays = {name: np.array(stored[name]) for name in stored.files}
    chosen = [name for name in arrays if name.endswith(end)]
    assert chosen
    made = io.BytesIO()
    changed = {name: change(array) if name in chosen else array for name, array in arrays.items()}
    np.savez(made, allow_pickle=False, **changed)
    return {**files, held: made.getvalue()}


def refused(path: Path, says: str) -> None:
    """Check that a bundle cannot be used, for a reason that is told in one short line."""
    with pytest.raises(BundleError, match=says) as told:
        load_bundle(path).predict(NETWORK)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 1000


def test_a_claimed_giant_array_takes_no_memory(files: dict[str, bytes], tmp_path: Path) -> None:
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as made:
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8)
        made.writestr("cold/coefficients.npy", content)
    changed = {**files, "arrays.npz": held.getvalue()}
    refused(archive(changed, tmp_path / "giant.zip"), "claims another size")


@pytest.mark.parametrize("name", ["bundle.json", "provenance.json", "predictor.json"])
def test_deep_nesting(name: str, files: dict[str, bytes], tmp_path: Path) -> None:
    path = archive({**files, name: b"[" * 100_000 + b"]" * 100_000}, tmp_path / "deep.zip")
    with pytest.raises(BundleError, match="nested too deep"):
        read_provenance(path) if name == "provenance.json" else load_bundle(path)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_numbers_that_are_none(number: str, files: dict[str, bytes], tmp_path: Path) -> None:
    text = files["predictor.json"].decode()
    place = text.index('"call_overhead_ms": ') + len('"call_overhead_ms": ')
    changed = text[:place] + number + text[text.index(",", place) :]
    path = archive({**files, "predictor.json": changed.encode()}, tmp_path / "number.zip")
    refused(path, "not a usable bundle")


@pytest.mark.parametrize(
    ("end", "change", "says"),
    [
        ("weights", lambda array: array * np.nan, "not finite"),
        ("cold/coefficients", lambda array: array + np.inf, "not finite"),
        ("whitening", lambda array: array[:-1], "is not of shape"),
        ("deviation_rows", lambda array: array + 10**6, "no index"),
        ("inputs", lambda array: array.astype("c16"), "no plain number"),
        ("gp/weights", lambda array: array * 0 + 1e90, "no finite number"),
    ],
)
def test_arrays_that_no_model_has(
    end: str, change: Callable[[Any], Any], says: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    refused(archive(with_array(files, end, change), tmp_path / "array.zip"), says)


def test_models_that_do_not_fit_each_other(files: dict[str, bytes], tmp_path: Path) -> None:
    changed = with_array(files, "cold/coefficients", lambda array: array[:2])
    refused(archive(changed, tmp_path / "misfit.zip"), "do not fit together")


def circle(array: Any) -> Any:
    """Children that lead back to their own tree's root."""
    children = np.zeros_like(array)
    children[-1] = len(array) - 1
    return children


@pytest.mark.parametrize("end", ["/left", "/right"])
def test_a_tree_that_leads_in_a_circle(end: str, files: dict[str, bytes], tmp_path: Path) -> None:
    changed = with_array(files, end, circle, "baselines.npz")
    loaded = load_bundle(archive(changed, tmp_path / "circle.zip"))
    with pytest.raises(BundleError, match="forest"):
        loaded.baselines.state()


def test_an_archive_that_unpacks_to_gigabytes(files: dict[str, bytes], tmp_path: Path) -> None:
    path = archive({**files, "texts/zeros.txt": bytes(MOST_BYTES)}, tmp_path / "bomb.zip")
    assert path.stat().st_size < 2**24
    refused(path, "larger than 256 MiB")


def test_an_archive_of_many_files(files: dict[str, bytes], tmp_path: Path) -> None:
    many = {f"texts/{number}.txt": b"" for number in range(5000)}
    refused(archive({**files, **many}, tmp_path / "many.zip"), "more than 4096 files")


def test_changed_bundles_are_refused_or_predict_finite_numbers(
    predictor: PlatformPredictor,
) -> None:
    summary = fuzz_bundles(0, 120, predictor)
    assert summary.violations == []
    assert summary.outcomes["read"] > 15
    assert summary.outcomes["BundleError"] > 50


@pytest.fixture(scope="module")
def fuzzed() -> PlatformPredictor:
    """What `make fuzz-trust` changes."""
    return small_predictor()


@pytest.mark.parametrize("case", [2906, 3218, 5126, 11582, 16724, 17436])
def test_what_a_full_run_found_is_refused_or_predicts_finite_numbers(
    case: int, fuzzed: PlatformPredictor
) -> None:
    summary = fuzz_bundles(case, 1, fuzzed)
    assert summary.violations == []
