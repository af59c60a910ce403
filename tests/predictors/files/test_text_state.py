from __future__ import annotations

import numpy as np
import pytest
from latfarm_predictors.files.text_state import rounded, state_of_text, text_of
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of, state_of
from latfarm_predictors.testing.synthetic import random_network


def state() -> ModelState:
    inner = ModelState("inner", texts={"lines": "a\nb\n"}, arrays={"none": np.zeros((0, 3))})
    arrays = {
        "reals": np.array([[1 / 3, -2e-17], [1e90, 4.0]]),
        "whole": np.array([2**62, -1], np.int64),
        "scalar": np.array(0.5),
    }
    return ModelState("outer", {"a": [1, "x", None]}, arrays, parts={"part": inner})


def test_what_is_written_is_read() -> None:
    header, found = state_of_text(text_of({"format": "x"}, state()))
    assert header == {"format": "x"}
    assert (found.kind, found.values) == ("outer", {"a": [1, "x", None]})
    assert found.parts["part"].texts == {"lines": "a\nb\n"}
    assert found.parts["part"].arrays["none"].shape == (0, 3)
    assert found.arrays["whole"].tolist() == [2**62, -1]
    assert found.arrays["scalar"].shape == ()
    np.testing.assert_allclose(found.arrays["reals"], state().arrays["reals"], rtol=1e-7)


def test_a_rounded_state_is_written_without_further_loss() -> None:
    once = rounded(state())
    assert text_of({}, rounded(once)) == text_of({}, once)
    assert rounded(once).arrays["reals"].tobytes() == once.arrays["reals"].tobytes()


def test_lines_are_short() -> None:
    many = ModelState("many", arrays={"x": np.random.default_rng(0).standard_normal(500)})
    assert max(map(len, text_of({}, many).splitlines())) < 110


def test_a_predictor_stays_as_good(predictor: PlatformPredictor) -> None:
    found = predictor_of(rounded(state_of(predictor)))
    for seed in range(3):
        graph = random_network(np.random.default_rng(seed))
        ours, theirs = predictor.predict(graph), found.predict(graph)
        assert theirs.latency_ms == pytest.approx(ours.latency_ms, rel=1e-4)
        assert theirs.interval_ms == pytest.approx(ours.interval_ms, rel=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"state": {}}',
        '{"state": {"kind": "x", "values": {}, "arrays": {"a": {"dtype": "object", "shape": [1], '
        '"numbers": ["1"]}}, "texts": {}, "parts": {}}}',
        '{"state": {"kind": "x", "values": {}, "arrays": {"a": {"dtype": "float64", "shape": [2], '
        '"numbers": ["1"]}}, "texts": {}, "parts": {}}}',
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError, AttributeError)):
        state_of_text(text)
