"""Checkpoints of NNLP: one zip archive with JSON and numpy's plain array files, no pickle.

```
manifest.json      format, options, platforms, provenance, names and shapes of arrays, digests
arrays/0.npy ...   the arrays, in the order in which the manifest names them
```

Two digests guard it: SHA-256 of all arrays, and SHA-256 of the manifest itself. The same model
gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import (
    CheckpointDigestError,
    CheckpointError,
    CheckpointShapeError,
)
from latfarm_predictors.files.plain_arrays import MOST_ARRAYS, MOST_BYTES, check_numbers, read_array
from latfarm_predictors.files.plain_json import read_json
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import STATIC
from latfarm_predictors.gnn.nnlp import NNLP, PlatformHead
from latfarm_predictors.gnn.node_features import OP_COLUMNS
from latfarm_predictors.gnn.parameters import shapes
from latfarm_predictors.gnn.scaling import Scaling
from latfarm_predictors.whole_file import written_whole

FORMAT = 1
"""Version of the format of checkpoints."""
_MANIFEST = "manifest.json"
_SCALING = ("node_mean", "node_spread", "static_mean", "static_spread")
_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""Time stamp of all entries: the earliest that zip archives know, so that bytes repeat."""

_DAMAGE = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, EOFError),
    *(RuntimeError, struct.error, zlib.error, zipfile.BadZipFile, zipfile.LargeZipFile),
)
"""What readers raise about content that is no checkpoint; an unknown compression or an encrypted
entry is a RuntimeError."""

AnyArray = npt.NDArray[Any]


def save_checkpoint(model: NNLP, path: Path) -> str:
    """Write a model, completely or not at all.

    Returns:
        The digest of the manifest, which covers all arrays: the model's identity.

    Raises:
        OSError: the file cannot be written.
    """
    arrays = arrays_of(model)
    contents = [_npy(array) for array in arrays.values()]
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": "nnlp",
        **manifest_of(model),
        "arrays": [{"name": name, "shape": list(array.shape)} for name, array in arrays.items()],
        "arrays_sha256": _sha256(*contents),
    }
    manifest["sha256"] = digest = _sha256(_canonical(manifest))
    text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
    with (
        written_whole(path, make_folder=True, durable=True) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive,
    ):
        archive.writestr(zipfile.ZipInfo(_MANIFEST, _EARLIEST), text)
        for number, content in enumerate(contents):
            archive.writestr(zipfile.ZipInfo(f"arrays/{number}.npy", _EARLIEST), content)
    return digest


def load_checkpoint(path: Path) -> NNLP:
    """Read a model that `save_checkpoint` wrote; it predicts the same bits.

    Raises:
        CheckpointDigestError: a digest is wrong: the file was changed or damaged.
        CheckpointShapeError: the parameters are not those of the options.
        CheckpointError: it is no checkpoint, or has another format version.
        OSError: the file cannot be read.
    """
    content = path.read_bytes()
    try:
        manifest, contents = _read(content)
        if not isinstance(manifest, dict) or manifest.get("kind") != "nnlp":
            raise CheckpointError(f"{path}: it is no checkpoint of NNLP")
        if manifest.get("format") != FORMAT:
            raise CheckpointError(
                f"{path}: format {manifest.get('format')!r}, but {FORMAT} is needed; train it anew"
            )
        _check_digests(path, manifest, contents)
        names = [str(entry["name"]) for entry in manifest["arrays"]]
        arrays = {n: read_array(each) for n, each in zip(names, contents, strict=True)}
        for name, array in arrays.items():
            check_numbers(name, array)
        return model_of(str(path), manifest, arrays)
    except _DAMAGE as error:
        raise CheckpointError(f"{path}: it cannot be read: {error}") from error


def _read(content: bytes) -> tuple[Any, list[bytes]]:
    """The manifest, and the content of each array in order."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        if _MANIFEST not in entries:
            raise ValueError(f"it has no {_MANIFEST}")
        size = sum(entry.file_size for entry in entries.values())
        if len(entries) > MOST_ARRAYS or size > MOST_BYTES:
            raise ValueError(f"{len(entries)} entries of {size} bytes are too many")
        count = len(entries) - 1
        contents = [archive.read(f"arrays/{number}.npy") for number in range(count)]
        return read_json(archive.read(_MANIFEST)), contents


def _check_digests(path: Path, manifest: Mapping[str, Any], contents: list[bytes]) -> None:
    told = {name: value for name, value in manifest.items() if name != "sha256"}
    if _sha256(_canonical(told)) != manifest.get("sha256"):
        raise CheckpointDigestError(f"{path}: the manifest was changed; get the file again")
    if _sha256(*contents) != manifest.get("arrays_sha256"):
        raise CheckpointDigestError(f"{path}: an array was changed; get the file again")


def manifest_of(model: NNLP) -> dict[str, Any]:
    """What a model holds besides its arrays, as plain JSON types."""
    return {
        "config": model.config.to_json(),
        "log_sizes": model.scaling.log_sizes,
        "scales_ms": {name: head.scale_ms for name, head in model.heads.items()},
        "provenance": dict(model.provenance),
    }


def model_of(origin: str, manifest: Mapping[str, Any], arrays: Mapping[str, AnyArray]) -> NNLP:
    """The model that `manifest_of` and `arrays_of` told; it predicts the same bits.

    Args:
        origin: where it is from, for errors.
        manifest: what it holds besides arrays.
        arrays: its arrays.

    Raises:
        CheckpointShapeError: the parameters are not those of the options.
        ValueError: a value is not allowed.
        KeyError: a value or an array is missing.
    """
    config = NNLPConfig.from_json(manifest["config"])
    scales = {str(name): float(value) for name, value in manifest["scales_ms"].items()}
    if not all(0 < value < 1e100 for value in scales.values()):
        raise ValueError("a typical latency is not positive")
    columns = OP_COLUMNS + len(arrays["scaling.node_mean"])
    wanted = shapes(config, columns, scales)
    own = {n.removeprefix("parameters."): a for n, a in arrays.items() if n.startswith("para")}
    _check_shapes(origin, wanted, {name: array.shape for name, array in own.items()})
    sizes = (columns - OP_COLUMNS, columns - OP_COLUMNS, len(STATIC), len(STATIC))
    scaling = {name: arrays[f"scaling.{name}"].astype(np.float64) for name in _SCALING}
    _check_shapes(
        origin,
        {name: (size,) for name, size in zip(_SCALING, sizes, strict=True)},
        {name: array.shape for name, array in scaling.items()},
    )
    heads = {
        name: PlatformHead(scale, np.sort(arrays[f"scores.{name}"].astype(np.float64).ravel()))
        for name, scale in scales.items()
    }
    return NNLP(
        config,
        Scaling(bool(manifest["log_sizes"]), **scaling),
        {name: array.astype(np.float32) for name, array in own.items()},
        heads,
        dict(manifest["provenance"]),
    )


def _check_shapes(
    origin: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]
) -> None:
    for name in sorted(set(wanted) | set(found)):
        if wanted.get(name) != found.get(name):
            raise CheckpointShapeError(
                f"{origin}: parameter {name} has shape {found.get(name)}, "
                f"but its options need {wanted.get(name)}"
            )


def arrays_of(model: NNLP) -> dict[str, AnyArray]:
    """All arrays of a model by the names of the manifest."""
    found: dict[str, AnyArray] = {
        f"parameters.{name}": value for name, value in sorted(model.parameters.items())
    }
    for name in _SCALING:
        found[f"scaling.{name}"] = getattr(model.scaling, name)
    for name, head in sorted(model.heads.items()):
        found[f"scores.{name}"] = head.scores
    return found


def _npy(array: AnyArray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.ascontiguousarray(array), (1, 0), allow_pickle=False)
    return stream.getvalue()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sha256(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)
    return digest.hexdigest()
