"""The sample bundle that ships with this package: a simulated board, characterised like any other.

It answers before anything is measured, for a first look and for examples. It says nothing of a real
machine. `make sample-bundle` makes it again: it runs a board of `latfarm-agent serve --simulate`,
whose true latencies are a documented formula, and characterises it (docs/adr/0029).
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from latfarm_predictors.errors import BundleError
from latfarm_predictors.files.bundle_state import DAMAGE, damage
from latfarm_predictors.files.text_state import state_of_text, text_of
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import predictor_of

FILE = "sample.json"
"""Name of the file in this package."""
FORMAT = "latfarm-sample"
"""Name of the format, in the file's header."""
MACHINE = "a simulated NPU"
"""What the sample is a predictor of, in words."""


def load_sample() -> PlatformPredictor:
    """The predictor of the sample bundle; its platform is a simulated board.

    Raises:
        BundleError: the file is missing or damaged.
    """
    try:
        return sample_of(_text())
    except DAMAGE as error:
        raise BundleError(f"{FILE}: not a usable sample: {damage(error)}") from error


def sample_of(text: str) -> PlatformPredictor:
    """The predictor that a text of the sample holds.

    Raises:
        one of `files.bundle_state.DAMAGE`: the text has another form.
    """
    header, state = state_of_text(text)
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is not {FORMAT}")
    predictor = predictor_of(state)
    digest = hashlib.sha256(text.encode()).hexdigest()
    predictor.bundle = f"{predictor.platform}@{digest[:12]}"
    return predictor


def sample_text(state: ModelState, provenance: dict[str, Any]) -> str:
    """The text of a sample, given the state of its predictor and what it was made from."""
    return text_of({"format": FORMAT, "provenance": provenance}, state)


def sample_provenance() -> dict[str, Any]:
    """What the sample was made from."""
    header, _ = state_of_text(_text())
    return dict(header["provenance"])


def _text() -> str:
    return (files("latfarm_predictors") / FILE).read_text(encoding="utf-8")
