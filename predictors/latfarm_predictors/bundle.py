"""Saves and loads bundles: a platform's predictor as files in open formats.

```
predictor.json     the tree of models: their kinds and plain values
rules.json         the fusion rules, for people to read (predictor.json holds them too)
arrays.npz         all arrays, named by their place in the tree; numpy's format without pickle
texts/*.txt        boosted trees in LightGBM's text format
baselines.json     the tree of the baselines, which is read when the first of them is needed
baselines.npz      the arrays of the baselines
provenance.json    what the bundle was made from, as given to `save_bundle`
bundle.json        format, version, platform, names of the files
SHA256SUMS         digest of every file above
```

A bundle is a directory, or one .zip of the same files. Nothing in it is executed, and nothing is
parsed before all digests are known to be right (`files/bundle_files.py`). What a bundle may hold is
bounded: files (`files/bundle_files.py`), JSON (`files/plain_json.py`), arrays
(`files/plain_arrays.py`) and models (`files/state_check.py`). Version 1 had baselines
in predictor.json and arrays.npz; it can still be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.errors import BundleError
from latfarm_predictors.features.table import Array
from latfarm_predictors.files.bundle_files import SUMS, read_files, sums_of, write_files
from latfarm_predictors.files.bundle_state import DAMAGE, as_json, damage, packed, state_of_files
from latfarm_predictors.files.fitted_cache import FittedCache
from latfarm_predictors.files.plain_json import read_json
from latfarm_predictors.learned.score_pool import SCORES_VERSION
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.predict.state import BASELINES_PART, predictor_of, state_of
from latfarm_predictors.slow_core import AS_TOLD, SlowCore

FORMAT = "latfarm-bundle"
"""Name of the format, in every header."""
VERSION = 11
"""Version of the format that is written.

Version 2 has the baselines in files of their own. Version 3 may have regressors of single families
that older programs learn together (`features/groups.py`). In version 4 a graph network may answer.
Version 5 may know kernels without time inside networks (`learned/absent_kernels.py`). Version 6
tells the pieces that moves copy (`Workload.contiguous`). In version 7 unaligned convolutions may
have rates of their own, in version 8 the pieces of moves have one, and in version 9 packs of matrix
products may have them (`models/roofline.py`). In version 10 each family has trees of its own for
kernels at their places (`learned/context_trees.py`), and in version 11 these decide together with
the regressors (`learned/context_shares.py`).
"""
READABLE = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
"""Versions of the format that can be read."""

_LONGEST_NAME = 200
"""Largest number of characters of a platform's name."""
_HEADER = "bundle.json"
"""Name of the file with format, version and platform."""


def save_bundle(
    predictor: PlatformPredictor, path: str | Path, provenance: Mapping[str, Any] | None = None
) -> str:
    """Write `predictor` to `path`: one file if it ends in .zip, else a directory.

    An older bundle at `path` is replaced as a whole or not at all. The same predictor and the same
    provenance give the same bytes.

    Args:
        predictor: the predictor to save.
        path: file or directory of the bundle; parent directories are made.
        provenance: plain JSON values: campaign, versions, dates.

    Returns:
        The bundle's name, platform and digest, as in `Answer.bundle`.

    Raises:
        BundleError: the provenance is no plain JSON, or something at `path` is no bundle.
    """
    files = _files(predictor, provenance or {})
    write_files(files, Path(path))
    return _name(predictor.platform, files[SUMS])


def load_bundle(path: str | Path, fits: Path | None = None) -> PlatformPredictor:
    """The predictor in a bundle; it predicts the same bits as the one that was saved.

    Args:
        path: file or directory of the bundle.
        fits: folder for files that keep what is fitted when it is first needed, of any number of
            bundles (`files/fitted_cache.py`). None: fits are kept as long as the predictor.

    Raises:
        BundleError: the bundle is missing, damaged, or of another format or version.
    """
    files = read_files(Path(path))
    header = _header(files, path)
    try:
        texts = {
            name.removeprefix("texts/").removesuffix(".txt"): content.decode()
            for name, content in files.items()
            if name.startswith("texts/")
        }
        state = state_of_files(files["predictor.json"], files["arrays.npz"], texts)
        later = None
        if header["version"] > 1:
            later = Baselines.later(
                _BaselinesReader(files["baselines.json"], files["baselines.npz"], str(path))
            )
        predictor = predictor_of(state, later)
        if predictor.platform != header["platform"]:
            raise ValueError(f"the header names {header['platform']}, not {predictor.platform}")
        if predictor.slow_core == AS_TOLD:  # older versions kept it in the provenance alone
            told = _object(files["provenance.json"], path)
            predictor.slow_core = SlowCore.from_json(told.get("slow_core"))
    except DAMAGE as error:
        raise BundleError(f"{path}: not a usable bundle: {damage(error)}") from error
    predictor.bundle = _name(str(header["platform"]), files[SUMS])
    if fits is not None:
        kept = FittedCache(fits, hashlib.sha256(files[SUMS]).hexdigest())
        predictor.baselines.keep_in(kept)
        if predictor.confidence is not None:
            predictor.confidence.keep_in(kept)
    return predictor


def read_provenance(path: str | Path) -> dict[str, Any]:
    """What a bundle was made from, as given to `save_bundle`.

    Raises:
        BundleError: the bundle is missing, damaged, or of another format or version.
    """
    files = read_files(Path(path))
    _header(files, path)
    return _object(files["provenance.json"], path)


def read_scores(path: str | Path) -> tuple[str, Array] | None:
    """The platform of a bundle, and the scores of its own calibration networks.

    Returns:
        None if the bundle has none, or scores of another kind than this version's.

    Raises:
        BundleError: the bundle is missing, damaged, or of another format or version.
    """
    files = read_files(Path(path))
    header = _header(files, path)
    texts = {
        name.removeprefix("texts/").removesuffix(".txt"): content.decode()
        for name, content in files.items()
        if name.startswith("texts/")
    }
    try:
        state = state_of_files(files["predictor.json"], files["arrays.npz"], texts)
        held = state.parts["correction"]
        # Bundles from before there were versions have scores of version 1.
        if held.values.get("scores_version", 1) != SCORES_VERSION:
            return None
        scores = np.asarray(held.arrays["scores"], dtype=np.float64)
    except DAMAGE as error:
        raise BundleError(f"{path}: not a usable bundle: {error!r}") from error
    return (str(header["platform"]), scores) if len(scores) else None


def _header(files: Mapping[str, bytes], path: str | Path) -> dict[str, Any]:
    """The header of a bundle that this version can read, or an error that says why it cannot."""
    if _HEADER not in files:
        raise BundleError(f"{path}: not a bundle: it has no {_HEADER}")
    header = _object(files[_HEADER], path)
    version = header.get("version")
    # the type is compared too, because True equals 1 and 2.0 equals 2
    if header.get("format") != FORMAT or type(version) is not int or version not in READABLE:
        raise BundleError(
            f"{path}: a bundle of format {_short(header.get('format'))} version "
            f"{_short(version)}; this program reads {FORMAT!r} in the versions "
            f"{', '.join(map(str, READABLE))}: install one that reads it, or train the platform "
            "anew"
        )
    platform = header.get("platform")
    if not isinstance(platform, str) or not platform.isprintable() or len(platform) > _LONGEST_NAME:
        raise BundleError(f"{path}: the bundle names no platform")
    needed = {"predictor.json", "arrays.npz", "provenance.json"}
    if version > 1:
        needed |= {"baselines.json", "baselines.npz"}
    missing = needed - set(files)
    if missing:
        raise BundleError(f"{path}: the bundle lacks {', '.join(sorted(missing))}")
    return header


def _object(content: bytes, path: str | Path) -> dict[str, Any]:
    """The JSON object that a file of a bundle holds."""
    try:
        data = read_json(content)
    except ValueError as error:
        raise BundleError(f"{path}: not a bundle: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{path}: not a bundle: its header is no JSON object")
    return data


def _short(value: object) -> str:
    """A value of a file as a short text without control characters."""
    return ascii(value)[:_LONGEST_NAME]


def _name(platform: str, sums: bytes) -> str:
    """Name of a bundle, given the content of its list of digests."""
    return f"{platform}@{hashlib.sha256(sums).hexdigest()[:12]}"


def _files(predictor: PlatformPredictor, provenance: Mapping[str, Any]) -> dict[str, bytes]:
    """All files of a bundle by name; the list of digests is the last."""
    state = state_of(predictor)
    beside = state.parts[BASELINES_PART]
    others = {name: part for name, part in state.parts.items() if name != BASELINES_PART}
    texts: dict[str, str] = {}
    tree, arrays = packed(replace(state, parts=others), texts)
    baselines, baseline_arrays = packed(beside, texts)
    files = {
        "predictor.json": tree,
        "rules.json": as_json(predictor.rules.to_json()),
        "arrays.npz": arrays,
        "baselines.json": baselines,
        "baselines.npz": baseline_arrays,
        "provenance.json": as_json(dict(provenance)),
        **{f"texts/{name}.txt": text.encode() for name, text in sorted(texts.items())},
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "platform": predictor.platform,
        "files": sorted(files),
    }
    files[_HEADER] = as_json(header)
    files[SUMS] = sums_of(files)
    return files


class _BaselinesReader:
    """Reads the baselines of a bundle from contents in memory, since its files may be replaced."""

    def __init__(self, tree: bytes, arrays: bytes, path: str) -> None:
        self._tree = tree
        self._arrays = arrays
        self._path = path

    def __call__(self) -> ModelState:
        """The state of the baselines.

        Raises:
            BundleError: the contents are damaged.
        """
        try:
            return state_of_files(self._tree, self._arrays, {})
        except DAMAGE as error:
            raise BundleError(
                f"{self._path}: its baselines are not usable: {damage(error)}"
            ) from error
