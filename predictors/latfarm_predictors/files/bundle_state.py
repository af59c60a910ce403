"""The state of a model as the contents of files: plain values as JSON, arrays as one .npz.

There is no pickle, so nothing that is read can run code.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import BundleError, PredictorsError
from latfarm_predictors.files.plain_arrays import read_arrays
from latfarm_predictors.files.plain_json import read_json
from latfarm_predictors.files.state_check import check_state
from latfarm_predictors.models.base import ModelState

DAMAGE = (
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    OSError,
    EOFError,
    ArithmeticError,
    MemoryError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
    PredictorsError,
)
"""The errors that reading contents of another form may raise."""
_LONGEST = 200
"""Number of characters of an error that are told; errors may quote whole files."""


def packed(state: ModelState, texts: dict[str, str]) -> tuple[bytes, bytes]:
    """A state as the contents of two files, plain values and arrays.

    Args:
        state: the state.
        texts: gets the state's texts, named by their place in the tree of states.
    """
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = _flatten(state, "", arrays, texts)
    held = io.BytesIO()
    np.savez_compressed(held, allow_pickle=False, **arrays)
    return as_json(tree), held.getvalue()


def state_of_files(tree: bytes, held: bytes, texts: Mapping[str, str]) -> ModelState:
    """The state that `packed` was given.

    Args:
        tree: content of the file of plain values.
        held: content of the file of arrays.
        texts: the texts, named by their place.

    Raises:
        one of `DAMAGE`: the contents have another form, or no model can have such a state.
    """
    state = _grow(read_json(tree), "", read_arrays(held), texts)
    check_state(state)
    return state


def damage(error: BaseException) -> str:
    """What an error of `DAMAGE` says, as one short line, whatever contents it quotes."""
    return ascii(f"{type(error).__name__}: {error}"[:_LONGEST])[1:-1]


def as_json(data: Any) -> bytes:
    """Readable JSON, with the same bytes for the same data.

    Raises:
        BundleError: the data are not plain JSON values.
    """
    try:
        return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise BundleError(f"a bundle holds plain JSON values: {error}") from error


def _flatten(
    state: ModelState, place: str, arrays: dict[str, npt.NDArray[Any]], texts: dict[str, str]
) -> dict[str, Any]:
    """The plain values of a tree of states; arrays and texts are added, named by their place."""
    for name, array in state.arrays.items():
        arrays[f"{place}{name}"] = array
    for name, text in state.texts.items():
        texts[f"{place}{name}".replace("/", ".")] = text
    return {
        "kind": state.kind,
        "values": dict(state.values),
        "arrays": sorted(state.arrays),
        "texts": sorted(state.texts),
        "parts": {
            name: _flatten(part, f"{place}{name}/", arrays, texts)
            for name, part in state.parts.items()
        },
    }


def _grow(
    tree: Mapping[str, Any],
    place: str,
    arrays: Mapping[str, npt.NDArray[Any]],
    texts: Mapping[str, str],
) -> ModelState:
    """The state at one place of a tree of states."""
    return ModelState(
        kind=str(tree["kind"]),
        values=tree["values"],
        arrays={name: arrays[f"{place}{name}"] for name in tree["arrays"]},
        texts={name: texts[f"{place}{name}".replace("/", ".")] for name in tree["texts"]},
        parts={
            name: _grow(part, f"{place}{name}/", arrays, texts)
            for name, part in tree["parts"].items()
        },
    )
