"""The sample bundle is small, says what it is, and is as good as it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from latfarm_controller import zoo
from latfarm_predictors import load_sample, sample
from latfarm_predictors.errors import BundleError
from latfarm_predictors.predict.predictor import PlatformPredictor

from benchmarks.sample import make

FILE = Path(sample.__file__).with_name(sample.FILE)


@pytest.fixture(scope="module")
def predictor() -> PlatformPredictor:
    return load_sample()


def test_it_is_a_small_text() -> None:
    text = FILE.read_text(encoding="ascii")
    assert len(text) <= make.MOST_BYTES
    assert max(map(len, text.splitlines())) < 200


def test_it_says_what_it_was_made_from(predictor: PlatformPredictor) -> None:
    told = sample.sample_provenance()
    assert predictor.platform == told["platform"] == f"sim-{make.KIND}"
    assert predictor.bundle.startswith("sim-npu@")
    assert told["kernels"] >= 50
    assert len(told["networks"]) >= 9
    assert not predictor.baselines.names


def test_it_is_as_good_as_it_says(predictor: PlatformPredictor) -> None:
    told = sample.sample_provenance()["judged"]
    found = make.judged(predictor, 0)
    assert found["networks"] == told["networks"]
    assert found["largest_error"] == pytest.approx(told["largest_error"], abs=2e-3)
    for share in ("within5", "within10", "inside_90_percent_interval"):
        assert found[share] == pytest.approx(told[share], abs=0.051)


def test_it_is_good_enough_to_show(predictor: PlatformPredictor) -> None:
    told = sample.sample_provenance()["judged"]
    assert told["within10"] >= 0.7
    assert told["inside_90_percent_interval"] >= 0.8
    graph = zoo.build("mobilenet-v2")
    answer = predictor.predict(graph)
    assert answer.calibrated
    assert np.isfinite(answer.interval_ms).all()


@pytest.mark.parametrize("text", ["", "{", '{"format": "other", "state": {}}'])
def test_a_damaged_sample_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "_text", lambda: text)
    with pytest.raises(BundleError, match=sample.FILE):
        load_sample()
