"""Reading a model and predicting it from a bundle needs numpy and onnx alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_predictors.bundle import save_bundle
from latfarm_predictors.errors import MissingLibraryError
from latfarm_predictors.features.table import as_table
from latfarm_predictors.kernels.workload import workload
from latfarm_predictors.models.boosted import Boosted
from latfarm_predictors.optional_libraries import EXTRAS, check_installed, library
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.testing.onnx_files import write
from latfarm_predictors.testing.synthetic import random_kernel, random_network

from tests.predictors.light import plain_answers

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def bundle(predictor: PlatformPredictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that has everything, boosted trees too."""
    rng = np.random.default_rng(0)
    table = as_table([workload(random_kernel(rng, "conv")) for _ in range(90)])
    stack = predictor.models.stacks["conv"]
    trees = Boosted(sigma=0.1, roofline=stack.gp.roofline)
    mixed = type(stack).from_state(stack.state())
    mixed.boosted = trees.fit(table, 0.01 + table.macs / 1e7)
    mixed.gp_weight = 0.6
    models = replace(predictor.models, stacks={**predictor.models.stacks, "conv": mixed})
    path = tmp_path_factory.mktemp("light") / "synthetic.zip"
    save_bundle(replace(predictor, models=models), path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("models")
    networks = [random_network(np.random.default_rng(5), f"net{i}") for i in range(2)]
    return [str(write(network, folder / f"{network.name}.onnx")) for network in networks]


def run(kind: str, bundle: Path, models: Sequence[str]) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", plain_answers.__name__, kind, str(bundle), *models],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_predictions_are_the_same_bits_without_the_extras(bundle: Path, models: list[str]) -> None:
    found = run("predict", bundle, models)
    assert found["told"] == json.loads(json.dumps(plain_answers.answers(str(bundle), models)))
    assert set(found["used"]) <= plain_answers.NEEDED
    assert {"numpy", "onnx"} <= set(found["used"])


def test_fitting_without_the_extra_says_what_to_install(bundle: Path, models: list[str]) -> None:
    found = run("fit", bundle, models)
    assert found["told"] == [
        f"{name} is not installed, which fitting to measurements and optimising models needs; "
        "install it with: pip install 'latfarm-predictors[fit]'"
        for name in ("sklearn", "scipy", "lightgbm", "onnxslim")
    ]


def test_each_optional_library_is_in_the_extra_that_its_error_names() -> None:
    told = tomllib.loads((ROOT / "predictors/pyproject.toml").read_text())["project"]
    assert names_of(told["dependencies"]) == {"numpy", "onnx"}
    extras = {extra: names_of(lines) for extra, lines in told["optional-dependencies"].items()}
    distributions = {"onnx_ir": "onnx-ir", "sklearn": "scikit-learn"}
    for name, extra in EXTRAS.items():
        assert distributions.get(name, name) in extras[extra]


def names_of(lines: Sequence[str]) -> set[str]:
    return {re.split(r"[><=;\s]", line)[0] for line in lines}


def test_a_library_that_is_broken_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_name: str) -> None:
        raise ModuleNotFoundError("No module named 'of_scipy'", name="of_scipy")

    monkeypatch.setattr("latfarm_predictors.optional_libraries.import_module", broken)
    with pytest.raises(ModuleNotFoundError):
        library("scipy.optimize")


def test_a_library_that_is_not_installed_is_found_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scipy", "scipy.optimize"):  # another test may have imported either
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingLibraryError, match=r"latfarm-predictors\[fit\]"):
        library("scipy.optimize")
    with pytest.raises(MissingLibraryError, match=r"latfarm-predictors\[fit\]"):
        check_installed("scipy")
