"""Bundle: a platform's predictor as files in open formats, versioned, checked, written atomically.

```
predictor.json     the tree of models: their kinds and plain values
rules.json         the fusion rules, to be read by people (predictor.json holds them too)
arrays.npz         all arrays, named by their place in the tree; numpy's format without pickle
texts/*.txt        boosted trees in LightGBM's text format
provenance.json    what it was made from, as given to `save_bundle`
bundle.json        format version, platform, files
SHA256SUMS         digest of every file above
```

A bundle is a directory, or one .zip of the same files. Nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import BundleError, PredictorsError
from latfarm_predictors.models.base import State
from latfarm_predictors.predictor import PlatformPredictor

FORMAT = "latfarm-bundle"
VERSION = 1

_SUMS = "SHA256SUMS"
_HEADER = "bundle.json"
_MOST_BYTES = 2**31
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)
_UNREADABLE = (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive raises (RuntimeError: encrypted, or an unknown method)."""


def save_bundle(
    predictor: PlatformPredictor, path: str | Path, provenance: Mapping[str, Any] | None = None
) -> str:
    """Write `predictor` to `path`: one file if it ends in .zip, else a directory.

    What was there before is replaced at once or not at all. The same predictor and provenance give
    the same bytes.

    Args:
        predictor: what to save.
        path: where to; parent directories are made.
        provenance: plain JSON values: campaign, versions, dates.

    Returns:
        The bundle's name: platform and digest, as `Answer.bundle` will tell it.

    Raises:
        BundleError: the provenance is no plain JSON, or `path` is something that is no bundle.
    """
    target = Path(path)
    files = _files(predictor, provenance or {})
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.suffix == ".zip":
        _write_zip(files, target)
    else:
        _write_directory(files, target)
    return _name(predictor.platform, files[_SUMS])


def load_bundle(path: str | Path) -> PlatformPredictor:
    """Read a bundle back; it predicts the same bits as what was saved.

    Raises:
        BundleError: missing, damaged, of another format or version.
    """
    files = _read(Path(path))
    header = _header(files, path)
    try:
        tree = json.loads(files["predictor.json"])
        with np.load(io.BytesIO(files["arrays.npz"]), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        texts = {
            name.removeprefix("texts/").removesuffix(".txt"): content.decode()
            for name, content in files.items()
            if name.startswith("texts/")
        }
        predictor = PlatformPredictor.from_state(_grow(tree, "", arrays, texts))
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        OSError,
        zipfile.BadZipFile,
        PredictorsError,
    ) as error:
        raise BundleError(f"{path}: not a usable bundle: {error!r}") from error
    predictor.bundle = _name(str(header["platform"]), files[_SUMS])
    return predictor


def read_provenance(path: str | Path) -> dict[str, Any]:
    """What a bundle says it was made from.

    Raises:
        BundleError: as `load_bundle`.
    """
    files = _read(Path(path))
    _header(files, path)
    return _object(files["provenance.json"], path)


def _header(files: Mapping[str, bytes], path: str | Path) -> dict[str, Any]:
    header = _object(files[_HEADER], path)
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise BundleError(
            f"{path}: a bundle of format {header.get('format')!r} version "
            f"{header.get('version')!r}; this version reads {FORMAT!r} version {VERSION}"
        )
    if not isinstance(header.get("platform"), str):
        raise BundleError(f"{path}: the bundle names no platform")
    missing = {"predictor.json", "arrays.npz", "provenance.json"} - set(files)
    if missing:
        raise BundleError(f"{path}: the bundle lacks {', '.join(sorted(missing))}")
    return header


def _object(content: bytes, path: str | Path) -> dict[str, Any]:
    try:
        data = json.loads(content)
    except ValueError as error:
        raise BundleError(f"{path}: not a bundle: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{path}: not a bundle: its header is no JSON object")
    return data


def _name(platform: str, sums: bytes) -> str:
    return f"{platform}@{hashlib.sha256(sums).hexdigest()[:12]}"


def _files(predictor: PlatformPredictor, provenance: Mapping[str, Any]) -> dict[str, bytes]:
    """All files of a bundle by name, the digests last."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    texts: dict[str, str] = {}
    tree = _flatten(predictor.state(), "", arrays, texts)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    files = {
        "predictor.json": _json(tree),
        "rules.json": _json(predictor.rules.to_json()),
        "arrays.npz": packed.getvalue(),
        "provenance.json": _json(dict(provenance)),
        **{f"texts/{name}.txt": text.encode() for name, text in sorted(texts.items())},
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "platform": predictor.platform,
        "files": sorted(files),
    }
    files[_HEADER] = _json(header)
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    files[_SUMS] = "".join(lines).encode()
    return files


def _json(data: Any) -> bytes:
    try:
        return (json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise BundleError(f"a bundle holds plain JSON values: {error}") from error


def _flatten(
    state: State, place: str, arrays: dict[str, npt.NDArray[Any]], texts: dict[str, str]
) -> dict[str, Any]:
    """The tree's plain values; arrays and texts go to their own files, named by place."""
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
) -> State:
    return State(
        kind=str(tree["kind"]),
        values=tree["values"],
        arrays={name: arrays[f"{place}{name}"] for name in tree["arrays"]},
        texts={name: texts[f"{place}{name}".replace("/", ".")] for name in tree["texts"]},
        parts={
            name: _grow(part, f"{place}{name}/", arrays, texts)
            for name, part in tree["parts"].items()
        },
    )


def _read(path: Path) -> dict[str, bytes]:
    """Every file of a bundle, each checked against its digest.

    Raises:
        BundleError: no such bundle, a file missing or changed.
    """
    try:
        files = _read_zip(path) if path.is_file() else _read_directory(path)
    except _UNREADABLE as error:
        raise BundleError(f"{path}: not a bundle: {error}") from error
    try:
        lines = files[_SUMS].decode("ascii").splitlines()
        listed: dict[str, str] = {}
        for line in lines:
            digest, name = line.split("  ", 1)
            listed[name] = digest
    except (KeyError, ValueError) as error:
        raise BundleError(f"{path}: the bundle has no list of digests") from error
    if set(listed) != set(files) - {_SUMS} or _HEADER not in listed:
        raise BundleError(f"{path}: the bundle's files are not those that its digests list")
    for name, digest in listed.items():
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise BundleError(f"{path}: {name} is damaged: its digest is not the one listed")
    return files


def _read_zip(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > _MOST_BYTES:
            raise ValueError("larger than 2 GiB unpacked")
        return {entry.filename: archive.read(entry) for entry in archive.infolist()}


def _read_directory(path: Path) -> dict[str, bytes]:
    if not path.is_dir():
        raise FileNotFoundError("no such file or directory")
    return {
        entry.relative_to(path).as_posix(): entry.read_bytes()
        for entry in sorted(path.rglob("*"))
        if entry.is_file()
    }


def _write_zip(files: Mapping[str, bytes], target: Path) -> None:
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in files.items():
                    entry = zipfile.ZipInfo(name, _ZIP_DATE)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(entry, content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).chmod(0o644)
        Path(scratch).replace(target)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _write_directory(files: Mapping[str, bytes], target: Path) -> None:
    if target.exists() and not (target / _SUMS).is_file() and not _is_empty(target):
        raise BundleError(f"{target}: exists and is no bundle: not overwritten")
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        for name, content in files.items():
            place = scratch / "new" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        if target.exists():
            target.rename(scratch / "old")
        try:
            (scratch / "new").rename(target)
        except OSError:
            if (scratch / "old").exists():
                (scratch / "old").rename(target)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
