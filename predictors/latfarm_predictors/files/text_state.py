"""The state of a model as one readable text, for the sample bundle that ships with this package.

It is JSON. The numbers of an array are decimal texts of a few digits, in lines that a comparison of
versions can show. So a text holds a rounded model: `rounded` gives the one that reading it gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.files.state_check import check_state
from latfarm_predictors.models.base import ModelState

DIGITS = 7
"""Number of significant digits that are kept of a number; measurements repeat in two or three."""
_LINE = 96
"""Number of characters of a line; a single long text makes a line longer."""


def text_of(header: Mapping[str, Any], state: ModelState) -> str:
    """A header of plain JSON values and a state as a text; the same state gives the same text."""
    encoder = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
    lines = [""]
    for token in encoder.iterencode({**header, "state": _tree(state)}):
        if len(lines[-1]) + len(token) > _LINE:
            lines.append("")
        lines[-1] += token
    return "\n".join(lines) + "\n"


def state_of_text(text: str) -> tuple[dict[str, Any], ModelState]:
    """The header and the state that a text holds.

    Raises:
        ValueError: the text has another form, or no model can have such a state.
        KeyError: a part is missing.
    """
    told = json.loads(text)
    state = _state(told.pop("state"))
    check_state(state)
    return told, state


def rounded(state: ModelState) -> ModelState:
    """The state that a text of this state holds."""
    return state_of_text(text_of({}, state))[1]


def _tree(state: ModelState) -> dict[str, Any]:
    return {
        "kind": state.kind,
        "values": dict(state.values),
        "arrays": {name: _told(array) for name, array in state.arrays.items()},
        "texts": {name: text.splitlines() for name, text in state.texts.items()},
        "parts": {name: _tree(part) for name, part in state.parts.items()},
    }


def _state(tree: Mapping[str, Any]) -> ModelState:
    return ModelState(
        kind=str(tree["kind"]),
        values=tree["values"],
        arrays={name: _array(told) for name, told in tree["arrays"].items()},
        texts={name: "\n".join(lines) + "\n" for name, lines in tree["texts"].items()},
        parts={name: _state(part) for name, part in tree["parts"].items()},
    )


def _told(array: npt.NDArray[Any]) -> dict[str, Any]:
    form = f"{{:.{DIGITS}g}}" if array.dtype.kind == "f" else "{}"
    lines = [""]
    for value in array.reshape(-1).tolist():
        number = form.format(value)
        if len(lines[-1]) + len(number) >= _LINE:
            lines.append("")
        lines[-1] += f" {number}" if lines[-1] else number
    return {"dtype": array.dtype.name, "shape": list(array.shape), "numbers": lines}


def _array(told: Mapping[str, Any]) -> npt.NDArray[Any]:
    kind = np.dtype(told["dtype"])
    if kind.kind not in "fiu":
        raise ValueError(f"an array of {kind}")
    return np.array(" ".join(told["numbers"]).split(), dtype=kind).reshape(told["shape"])
