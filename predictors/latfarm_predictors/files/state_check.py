"""Checks the state of a model that may come from anywhere, before any model is made from it.

Models trust their state: they index arrays by numbers in other arrays, walk along the branches of
trees until they reach a leaf, and allocate what a list's length says. So sizes that must agree are
compared here, branches are followed to their ends, and what costs memory is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latfarm_predictors.files.plain_arrays import AnyArray, check_numbers
from latfarm_predictors.models.base import ModelState

_MOST_MODELS = 20_000
"""Largest number of models in one tree of states; a bundle has some hundreds."""
_MOST_NESTING = 20
"""Largest number of models inside one another; in a bundle it is six."""
_MOST_OPS = 64
"""Largest number of ops that are features of one model; models keep 12 of a kind."""
_MOST_TREES = 2000
"""Largest number of trees of a forest; usual are 150."""
_MOST_STEPS = 4000
"""Longest way from a root to a leaf; a tree on n measurements has at most n - 1."""
_MOST_POINTS = 20_000
"""Largest number of points of a Gaussian process; models keep 3,000."""
_MOST_DEVIATION_POINTS = 3000
"""Largest number of points that deviations rest on; models keep 600."""

_FOREST_NODES = ("feature", "threshold", "left", "right", "value")
"""The arrays of a forest with one entry for each node."""


def check_state(state: ModelState) -> None:
    """Check the state of a model and of all models in it.

    Raises:
        ValueError: no model can have such a state; the text says why.
        KeyError: an array or a value is missing.
        TypeError: a value is of another type.
    """
    waiting = [(state, 1)]
    count = 0
    while waiting:
        own, depth = waiting.pop()
        count += 1
        if count > _MOST_MODELS or depth > _MOST_NESTING:
            raise ValueError("there are more models in it than a predictor has")
        _check_own(own)
        waiting.extend((part, depth + 1) for part in own.parts.values())


def _check_own(state: ModelState) -> None:
    """Check what every model has, and then what its kind of model has."""
    for name, array in state.arrays.items():
        check_numbers(name, array, endless=name == "threshold")
    for name in ("main_ops", "appended_ops"):
        _check_ops(state.values.get(name, ()))
    if {"roots", *_FOREST_NODES} <= state.arrays.keys():
        _check_trees(state.arrays)
    if "whitening" in state.arrays:
        _check_process(state.arrays)
    for name in ("latency_ms", "spread"):
        if name in state.arrays and not (state.arrays[name] > 0).all():
            raise ValueError(f"the array {name} holds a number that is not positive")


def _check_ops(names: object) -> None:
    """Check a list of ops that are features."""
    if not isinstance(names, Sequence) or isinstance(names, str) or len(names) > _MOST_OPS:
        raise ValueError(f"the ops that are features are no list of at most {_MOST_OPS} names")
    if not all(isinstance(name, str) for name in names):
        raise TypeError("an op that is a feature is no name")


def _check_trees(arrays: Mapping[str, AnyArray]) -> None:
    """Check that every walk through the trees of a forest ends in a leaf."""
    nodes = len(arrays["feature"])
    if any(arrays[name].shape != (nodes,) for name in _FOREST_NODES):
        raise ValueError("a forest's arrays are not of one length")
    roots, feature = _indices(arrays, "roots", nodes), _indices(arrays, "feature", 4096)
    left, right = _indices(arrays, "left", nodes), _indices(arrays, "right", nodes)
    if roots.ndim != 1 or not 1 <= len(roots) <= _MOST_TREES:
        raise ValueError(f"a forest has 1 to {_MOST_TREES} trees")
    if np.isnan(arrays["threshold"]).any() or feature.ndim != 1:
        raise ValueError("a node of a forest decides by nothing")
    here = np.arange(nodes)
    leaf = left == here
    if (leaf != (right == here)).any():
        raise ValueError("a node of a forest is half a leaf")
    parents = np.bincount(np.concatenate([left[~leaf], right[~leaf], roots]), minlength=nodes)
    if parents.max(initial=0) > 1:
        raise ValueError("two branches of a forest lead to the same node")
    # each node has one parent, and a root has none, so no walk can come back to where it was
    level = roots
    for _ in range(_MOST_STEPS):
        level = level[~leaf[level]]
        if not len(level):
            return
        level = np.concatenate([left[level], right[level]])
    raise ValueError(f"a tree of a forest is more than {_MOST_STEPS} nodes deep")


def _check_process(arrays: Mapping[str, AnyArray]) -> None:
    """Check that the arrays of a Gaussian process agree in size."""
    inputs, columns = arrays["inputs"], arrays["columns"]
    points = len(inputs)
    if inputs.shape != (points, len(columns)) or not points <= _MOST_POINTS:
        raise ValueError(f"a Gaussian process has points of shape {inputs.shape}")
    features = len(arrays["low"])
    rows = _indices(arrays, "deviation_rows", points)
    _indices(arrays, "columns", features)
    if len(rows) > _MOST_DEVIATION_POINTS or len(np.unique(rows)) != len(rows):
        raise ValueError("the deviations of a Gaussian process rest on too many points")
    shapes: dict[str, Any] = {
        "weights": (points,),
        "centre": (len(columns),),
        "spread": (len(columns),),
        "low": (features,),
        "high": (features,),
        "columns": (len(columns),),
        "deviation_rows": (len(rows),),
        "whitening": (len(rows) * (len(rows) + 1) // 2,),
    }
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            raise ValueError(f"the array {name} of a Gaussian process is not of shape {shape}")


def _indices(arrays: Mapping[str, AnyArray], name: str, limit: int) -> AnyArray:
    """An array of indices below a limit."""
    array = arrays[name]
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() < limit):
        raise ValueError(f"the array {name} holds what is no index below {limit}")
    return array.astype(np.int64)
