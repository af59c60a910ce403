"""Scores of other platforms' bundles are pooled where that is valid; notes beside measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from latfarm_controller.campaigns.host_noise import CONDITION, HostNoise
from latfarm_controller.campaigns.networks.calibration import SCALED, VARIANTS
from latfarm_controller.cli.answers import bundle
from latfarm_controller.training.bundle_notes import NewestNotes
from latfarm_controller.training.pooling import other_scores
from latfarm_predictors.bundle import load_bundle, save_bundle
from latfarm_predictors.measurement import Measurement, Outcome
from latfarm_predictors.predict.fitting import PlatformSamples, fit_predictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.slow_core import SHIFT, SlowCore
from latfarm_predictors.testing.synthetic import RULES, SyntheticBoard, random_kernels
from typer.testing import CliRunner

NOISE = HostNoise(0.03, 40, None, ((0.0, -3.0, 0.3),))
"""A host on which measurements of all lengths scatter by 5 %."""


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    rng = np.random.default_rng(0)
    board = SyntheticBoard()
    samples = [board.kernel_sample(k, rng) for k in random_kernels(rng, {"eltwise": 12})]
    made = fit_predictor(PlatformSamples("p", RULES, samples, []), baselines=False)
    made.slow_core = SlowCore(-0.25, 0.02, 40)
    return made


def put(folder: Path, made: PlatformPredictor, name: str, draw: str | None, scale: float) -> Path:
    made.platform = name
    made.correction.scores = scale * np.linspace(0.1, 2.0, 20)
    told: dict[str, Any] = {"slow_core": made.slow_core.to_json(), "host_noise": NOISE.to_json()}
    path = folder / name / "0001.zip"
    save_bundle(made, path, told | ({} if draw is None else {"calibration_draw": draw}))
    return path


def test_bundles_whose_networks_were_drawn_alike_are_pooled(
    tmp_path: Path, predictor: PlatformPredictor, caplog: pytest.LogCaptureFixture
) -> None:
    for number, name in enumerate("abc"):
        put(tmp_path, predictor, name, VARIANTS, 1.0 + number / 10)
    put(tmp_path, predictor, "old", None, 1.0)
    damaged = tmp_path / "damaged" / "0001.zip"
    damaged.parent.mkdir()
    damaged.write_bytes(b"PK" + bytes(100))
    found = other_scores(tmp_path, "a", {"calibration_draw": VARIANTS})
    assert sorted(found) == ["b", "c"]
    np.testing.assert_allclose(found["c"], 1.2 * np.linspace(0.1, 2.0, 20))
    assert "damaged" in caplog.text
    assert sorted(other_scores(tmp_path, "a", {"calibration_draw": SCALED})) == ["old"]


def test_a_bundle_keeps_what_it_pooled(tmp_path: Path, predictor: PlatformPredictor) -> None:
    for name in "bcd":
        put(tmp_path, predictor, name, VARIANTS, 1.0)
    others = other_scores(tmp_path, "a", {"calibration_draw": VARIANTS})
    predictor.correction.other_scores = others
    try:
        loaded = load_bundle(put(tmp_path, predictor, "a", VARIANTS, 1.1))
    finally:
        predictor.correction.other_scores = {}
    told = loaded.correction.calibration.guarantee(0.9)
    assert (told.basis, told.networks, told.platforms) == ("pooled", 20, ("b", "c", "d"))
    assert loaded.slow_core == SlowCore(-0.25, 0.02, 40)
    # Only own scores are handed on: others of others would count twice.
    again = other_scores(tmp_path, "b", {"calibration_draw": VARIANTS})
    assert {name: len(scores) for name, scores in again.items()} == {"a": 20, "c": 20, "d": 20}


def test_an_older_bundle_has_its_correction_in_the_provenance_alone(
    tmp_path: Path, predictor: PlatformPredictor
) -> None:
    kept, predictor.slow_core = predictor.slow_core, SlowCore()
    path = tmp_path / "old.zip"
    try:
        save_bundle(predictor, path, {"slow_core": kept.to_json()})
    finally:
        predictor.slow_core = kept
    assert load_bundle(path).slow_core == kept
    save_bundle(predictor, path, {"slow_core": {"shift": "?"}})
    assert load_bundle(path).slow_core == kept, "a bundle's own correction goes before"


def test_measurements_get_the_notes_of_their_platforms_bundle(
    tmp_path: Path, predictor: PlatformPredictor
) -> None:
    put(tmp_path, predictor, "a", VARIANTS, 1.0)
    notes = NewestNotes(tmp_path)
    slow = Measurement(
        "r",
        "g",
        "a",
        "query",
        Outcome.OK,
        latency_ms=2.0,
        mad_ms=0.08,
        session_ms=(2.0,),
        unstable=True,
        conditions={"slowdown": "16", "uncorrected_ms": "9"},
    )
    unknown = Measurement("r", "g", "z", "query", Outcome.OK, latency_ms=2.0)
    noted, same = notes.noted([slow, unknown])
    assert same is unknown
    assert noted.conditions[SHIFT] == "-0.25"
    assert noted.conditions[CONDITION] == "usual"
    found = SlowCore.told_by(noted).latency(noted)
    assert found is not None
    assert (found.corrected_ms, found.timed_ms, found.slowdown) == (4.0, 9.0, 16.0)


def test_a_bundle_is_shown_with_its_promise(
    tmp_path: Path,
    predictor: PlatformPredictor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path))
    put(tmp_path / "bundles", predictor, "a", VARIANTS, 1.0)
    shown = CliRunner().invoke(bundle.app, ["show", "a"]).stdout
    assert "by 20 calibration networks, 90% intervals hold 90.5%" in " ".join(shown.split())
    assert "-0.25, 40 pairs" in shown
    assert "standard deviation of 3.0%" in shown
    asked = ["show", "a", "--coverage", "0.8", "--json"]
    told = json.loads(CliRunner().invoke(bundle.app, asked).stdout)
    assert told["guarantee"]["coverage"] == 0.8
    assert 0.6 < told["guarantee"]["low"] < 0.8 < told["guarantee"]["high"] < 0.95
