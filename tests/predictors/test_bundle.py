"""Bundles give the same bits back, damage is found, and no bundle is half written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.baselines.names import BASELINES
from latfarm_predictors.bundle import load_bundle, read_provenance, save_bundle
from latfarm_predictors.errors import BundleError, NoBaselineError, PredictorsError
from latfarm_predictors.files import bundle_state
from latfarm_predictors.files.bundle_state import packed
from latfarm_predictors.files.plain_arrays import read_arrays
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.models.published.per_type import PerType
from latfarm_predictors.predict.baseline_sums import baseline_ms
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import state_of
from latfarm_predictors.testing.synthetic import random_network

PROVENANCE = {"campaign": "c-1", "made_at": "2026-01-01T00:00:00Z", "versions": {"numpy": "2"}}
GRAPHS = [random_network(np.random.default_rng(5), f"net{i}") for i in range(4)]


@pytest.fixture(scope="module")
def stored(predictor: PlatformPredictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles")
    save_bundle(predictor, folder / "tree", PROVENANCE)
    save_bundle(predictor, folder / "one.zip", PROVENANCE)
    return folder


@pytest.mark.parametrize("name", ["tree", "one.zip"])
def test_a_loaded_predictor_predicts_the_same_bits(
    name: str, stored: Path, predictor: PlatformPredictor
) -> None:
    loaded = load_bundle(stored / name)
    for level in (0.5, 0.9, 0.99):
        ours, theirs = (p.predict_many(GRAPHS, level) for p in (predictor, loaded))
        assert [replace(answer, bundle="") for answer in theirs] == ours
        assert all(answer.bundle == loaded.bundle for answer in theirs)
    # these are fitted when they are needed, which takes long
    slow = ("nn-meter", "annette-statistical", "annette-mixed")
    for baseline in [name for name in BASELINES if name not in slow]:
        for graph in GRAPHS:
            assert baseline_ms(loaded, graph, baseline) == baseline_ms(predictor, graph, baseline)
    assert replace_bundle(loaded.explain()) == predictor.explain()
    assert loaded.rules == predictor.rules


def replace_bundle(told: dict[str, object]) -> dict[str, object]:
    return {**told, "bundle": ""}


def test_boosted_trees_survive_the_bundle(predictor: PlatformPredictor, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    from latfarm_predictors.features.table import as_table
    from latfarm_predictors.kernels.workload import workload
    from latfarm_predictors.testing.synthetic import random_kernel

    table = as_table([workload(random_kernel(rng, "conv")) for _ in range(90)])
    latency = 0.01 + table.macs / 1e7
    stack = predictor.models.stacks["conv"]
    trees = Boosted(sigma=0.1, roofline=stack.gp.roofline).fit(table, latency)
    mixed = type(stack).from_state(stack.state())
    mixed.boosted, mixed.gp_weight = trees, 0.6
    models = replace(predictor.models, stacks={**predictor.models.stacks, "conv": mixed})
    changed = replace(predictor, models=models)
    save_bundle(changed, tmp_path / "b", {})
    assert any((tmp_path / "b" / "texts").iterdir())
    loaded = load_bundle(tmp_path / "b")
    for ours, theirs in zip(changed.predict_many(GRAPHS), loaded.predict_many(GRAPHS), strict=True):
        assert ours == replace(theirs, bundle="")


def test_the_same_predictor_gives_the_same_bytes(
    stored: Path, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    name = save_bundle(predictor, tmp_path / "again.zip", PROVENANCE)
    assert (tmp_path / "again.zip").read_bytes() == (stored / "one.zip").read_bytes()
    assert load_bundle(stored / "tree").bundle == load_bundle(stored / "one.zip").bundle == name
    assert name.startswith("synthetic-1t@")


def test_provenance_comes_back(stored: Path) -> None:
    assert read_provenance(stored / "tree") == read_provenance(stored / "one.zip") == PROVENANCE


def test_files_are_open_formats(stored: Path) -> None:
    names = {p.relative_to(stored / "tree").as_posix() for p in (stored / "tree").rglob("*.*")}
    assert {"bundle.json", "predictor.json", "rules.json", "arrays.npz"} <= names
    with np.load(stored / "tree" / "arrays.npz", allow_pickle=False) as arrays:
        assert len(arrays.files) > 20
        assert all(arrays[name].dtype != object for name in arrays.files)
    header = json.loads((stored / "tree" / "bundle.json").read_text())
    assert (header["format"], header["version"]) == ("latfarm-bundle", 11)


def rewrite(stored: Path, target: Path, **changes: bytes) -> None:
    """Write a bundle with other contents and digests that match them."""
    shutil.copytree(stored / "tree", target)
    for name, content in changes.items():
        (target / f"{name}.json").write_bytes(content)
    sign(target)


def sign(target: Path) -> None:
    """Write the list of digests of the files."""
    lines = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(target).as_posix()}\n"
        for p in sorted(target.rglob("*"))
        if p.is_file() and p.name != "SHA256SUMS"
    ]
    (target / "SHA256SUMS").write_text("".join(lines))


@pytest.mark.parametrize("version", [12, 0, True, 2.0, "2", None])
def test_another_version_is_refused_with_both_numbers(
    version: object, stored: Path, tmp_path: Path
) -> None:
    header = {"format": "latfarm-bundle", "version": version, "platform": "p"}
    rewrite(stored, tmp_path / "new", bundle=json.dumps(header).encode())
    with pytest.raises(
        BundleError,
        match=r"this program reads .* versions 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11: .*train",
    ):
        load_bundle(tmp_path / "new")
    assert issubclass(BundleError, PredictorsError)


def test_a_header_of_another_platform_is_refused(stored: Path, tmp_path: Path) -> None:
    header = {"format": "latfarm-bundle", "version": 2, "platform": "pixel4"}
    rewrite(stored, tmp_path / "new", bundle=json.dumps(header).encode())
    with pytest.raises(BundleError, match="pixel4, not synthetic-1t"):
        load_bundle(tmp_path / "new")


def test_baselines_are_read_when_they_are_first_needed(
    stored: Path, predictor: PlatformPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def counted(content: bytes) -> Any:
        read.append(1)
        return read_arrays(content)

    monkeypatch.setattr(bundle_state, "read_arrays", counted)
    loaded = load_bundle(stored / "one.zip")
    loaded.predict(GRAPHS[0])
    assert len(read) == 1
    for name in ("forest", "annette-refined"):
        assert baseline_ms(loaded, GRAPHS[0], name) == baseline_ms(predictor, GRAPHS[0], name)
    assert len(read) == 2


def test_fits_are_kept_for_everyone_who_loads_the_same_bundle(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.zip"
    shutil.copyfile(stored / "one.zip", path)
    loaded = load_bundle(path, tmp_path / "fits")
    # the content that was loaded counts, even if the file is gone when something is fitted
    path.unlink()
    told = baseline_ms(loaded, GRAPHS[0], "annette-mixed")
    assert len(list((tmp_path / "fits").iterdir())) == 1

    def never(*_: object, **__: object) -> object:
        raise AssertionError("fitted a second time")

    monkeypatch.setattr(PerType, "fit", never)
    again = load_bundle(stored / "one.zip", tmp_path / "fits")
    assert baseline_ms(again, GRAPHS[0], "annette-mixed") == told
    with pytest.raises(AssertionError, match="second time"):
        baseline_ms(load_bundle(stored / "one.zip"), GRAPHS[0], "annette-mixed")


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"kind":"","values":{},"arrays":["x"]}'])
def test_damaged_baselines_are_refused_when_they_are_needed(
    content: bytes, stored: Path, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    rewrite(stored, tmp_path / "odd", baselines=content)
    loaded = load_bundle(tmp_path / "odd")
    assert loaded.predict(GRAPHS[0]).latency_ms == predictor.predict(GRAPHS[0]).latency_ms
    with pytest.raises(BundleError, match="odd: its baselines are not usable"):
        baseline_ms(loaded, GRAPHS[0], "forest")
    with pytest.raises(BundleError, match="not usable"):  # the second time too
        baseline_ms(loaded, GRAPHS[0], "forest")


def test_a_bundle_of_version_1_is_read(
    stored: Path, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    """Version 1 held forests with the models, and lookup and totals beside them."""
    state = state_of(predictor)
    held = state.parts["baselines"].parts
    forests = held["kernel-forest"]
    models = state.parts["models"]
    parts = {n: part for n, part in state.parts.items() if n not in ("baselines", "confidence")}
    parts["lookup"] = held["kernel-lookup"]
    for name in ("flops", "flops_mac"):
        parts[f"linear-{name}"] = held[f"network-{name}"].parts["linear"]
    parts["models"] = replace(
        models,
        values={**models.values, "forests": forests.values["forests"]},
        parts={**models.parts, **forests.parts},
    )
    old = replace(state, values={**state.values, "linear": ["flops", "flops_mac"]}, parts=parts)
    tree, arrays = packed(old, {})
    header = {"format": "latfarm-bundle", "version": 1, "platform": "synthetic-1t"}
    rewrite(stored, tmp_path / "old", predictor=tree, bundle=json.dumps(header).encode())
    for name in ("baselines.json", "baselines.npz"):
        (tmp_path / "old" / name).unlink()
    (tmp_path / "old" / "arrays.npz").write_bytes(arrays)
    sign(tmp_path / "old")
    loaded = load_bundle(tmp_path / "old")
    for graph in GRAPHS:
        assert replace(loaded.predict(graph), bundle="") == predictor.predict(graph)
        for name in ("forest", "lookup", "roofline", "sum", "operators", "flops", "flops_mac"):
            assert baseline_ms(loaded, graph, name) == baseline_ms(predictor, graph, name)
    with pytest.raises(NoBaselineError, match=r"'annette-mixed'.*older version.*anew"):
        baseline_ms(loaded, GRAPHS[0], "annette-mixed")
    with pytest.raises(NoBaselineError, match=r"'mnn_cost'.*older version.*it has forest, lookup"):
        baseline_ms(loaded, GRAPHS[0], "mnn_cost")


@pytest.mark.parametrize(
    "tree", [b"[]", b"{", b"{}", b'{"kind": 1}', b'{"kind":"","values":{},"arrays":["x"]}']
)
def test_a_damaged_tree_of_models_is_refused(tree: bytes, stored: Path, tmp_path: Path) -> None:
    rewrite(stored, tmp_path / "odd", predictor=tree)
    with pytest.raises(BundleError, match="odd"):
        load_bundle(tmp_path / "odd")


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such"):
        load_bundle(tmp_path / "missing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "empty")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(BundleError):
        load_bundle(tmp_path / "text.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BundleError, match="no list of digests"):
        load_bundle(tmp_path / "other.zip")


@pytest.mark.parametrize("name", ["tree", "one.zip"])
def test_saving_again_replaces_the_old_bundle(
    name: str, predictor: PlatformPredictor, tmp_path: Path
) -> None:
    first = save_bundle(predictor, tmp_path / name, {"n": 1})
    second = save_bundle(predictor, tmp_path / name, {"n": 2})
    assert first != second
    assert read_provenance(tmp_path / name) == {"n": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["tree", "one.zip"])
def test_a_failed_write_leaves_the_old_bundle_and_no_other_files(
    name: str, predictor: PlatformPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_bundle(predictor, tmp_path / name, {"n": 1})

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        save_bundle(predictor, tmp_path / name, {"n": 2})
    assert read_provenance(tmp_path / name) == {"n": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_folder_that_is_no_bundle_is_not_overwritten(
    predictor: PlatformPredictor, tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match="not overwritten"):
        save_bundle(predictor, tmp_path / "home", {})
    assert (tmp_path / "home" / "thesis.txt").read_text() == "years of work"


def test_provenance_must_be_plain_json(predictor: PlatformPredictor, tmp_path: Path) -> None:
    for value in (object(), float("nan")):
        with pytest.raises(BundleError, match="plain JSON"):
            save_bundle(predictor, tmp_path / "b", {"x": value})
    assert list(tmp_path.iterdir()) == []
