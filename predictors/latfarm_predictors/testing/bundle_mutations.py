"""Bundles that somebody has changed, with digests that fit the changed contents.

A damaged bundle is found by its digests. The ones made here are those of somebody who can compute
digests, and wants a program that reads them to fail, to hang, to take all memory or to lie.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from latfarm_predictors.files.bundle_files import SUMS, sums_of
from latfarm_predictors.files.plain_arrays import AnyArray, read_array

Files = dict[str, bytes]
"""Contents of a bundle's files by name."""

_JSON = ("predictor.json", "baselines.json", "bundle.json", "provenance.json", "rules.json")
_ARRAYS = ("arrays.npz", "baselines.npz")

_STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 10**40, -(10**9), 0.0, -0.5, 1e-300, 1e90, 1e300),
    *("", "x", "\x1b[2J", "a\nb", "../../etc", "nan", "1e999", [], {}, [None], {"kind": "gp"}),
    *([0] * 1000, ["Conv"] * 500, [[]] * 50),
)
"""Values that are put in the place of others."""
_STRANGE_TEXTS = ("NaN", "Infinity", "-Infinity", "1e999", "[" * 3000, '"', "", "9" * 5000)
"""Texts that are put in the place of JSON values, most of them no JSON."""
_TYPES = ("float16", "float32", "float64", ">f8", "int8", "int64", "uint64", "bool", "c16", "U3")
"""Types that arrays are converted to."""


def mutated(files: Mapping[str, bytes], seed: int) -> bytes:
    """An archive with some of a bundle's contents changed; its digests fit the new contents.

    Args:
        files: contents of a bundle's files by name.
        seed: the same seed gives the same archive.
    """
    rng = random.Random(seed)
    changed: Files = {name: content for name, content in files.items() if name != SUMS}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_MUTATIONS)(rng, changed)
    changed[SUMS] = sums_of(changed)
    content = _archive(changed)
    return _with_bytes(rng, content) if rng.random() < 0.03 else content


def _archive(files: Mapping[str, bytes]) -> bytes:
    """An archive without a seal, as other tools make it."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in files.items():
            packed = zipfile.ZIP_DEFLATED if len(content) > 2**22 else zipfile.ZIP_STORED
            archive.writestr(zipfile.ZipInfo(name), content, packed, 1)
    return held.getvalue()


def _with_bytes(rng: random.Random, content: bytes) -> bytes:
    """Change, remove or insert some bytes."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 3, 20))):
        place = rng.randrange(len(data)) if data else 0
        match rng.randrange(3):
            case 0 if data:
                data[place] = rng.randrange(256)
            case 1:
                del data[place : place + rng.choice((1, 8, 4096))]
            case _:
                data[place:place] = rng.randbytes(rng.choice((1, 8, 64)))
    return bytes(data)


def _change_bytes(rng: random.Random, files: Files) -> None:
    name = rng.choice(sorted(files))
    files[name] = _with_bytes(rng, files[name])


def _change_json(rng: random.Random, files: Files) -> None:
    """Replace, remove or repeat a value of a JSON file."""
    name = rng.choice([n for n in (*_JSON, *_JSON[:2] * 4) if n in files])
    try:
        tree = json.loads(files[name])
    except (ValueError, RecursionError):
        return
    holder, key = _place(rng, tree)
    if holder is None:
        files[name] = json.dumps(rng.choice(_STRANGE)).encode()
        return
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1:
            other, place = _place(rng, tree)
            holder[key] = holder[key] if other is None else json.loads(json.dumps(other[place]))
        case 2:
            mark = "place of a strange text"
            holder[key] = mark
            text = json.dumps(tree).replace(json.dumps(mark), rng.choice(_STRANGE_TEXTS))
            files[name] = text.encode()
            return
        case _:
            holder[key] = rng.choice(_STRANGE)
    files[name] = json.dumps(tree).encode()


def _place(rng: random.Random, tree: Any) -> tuple[Any, Any]:
    """A random place in a JSON value: what holds it, and its key; None where there is none."""
    holder, key, node = None, None, tree
    while isinstance(node, (dict, list)) and node and (holder is None or rng.random() < 0.85):
        holder = node
        key = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
        node = node[key]
    return holder, key


def _change_array(rng: random.Random, files: Files) -> None:
    """Change one array of a file of arrays."""
    name = rng.choice([n for n in _ARRAYS if n in files] or [""])
    entries = _entries(files.get(name, b""))
    if not entries:
        return
    chosen = rng.choice(sorted(entries))
    entries[chosen] = rng.choice(_ARRAY_MUTATIONS)(rng, entries, chosen)
    files[name] = _archive(entries)


def _entries(content: bytes) -> Files:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {entry.filename: archive.read(entry) for entry in archive.infolist()}
    except (zipfile.BadZipFile, ValueError, RuntimeError, OSError, zlib.error):
        return {}


def _loaded(content: bytes) -> AnyArray:
    """The array of an .npy file; one number where an earlier change made it unreadable."""
    try:
        return read_array(content)
    except ValueError:
        return np.zeros(1)


def _saved(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array, allow_pickle=False)
    return held.getvalue()


def _with_numbers(rng: random.Random, entries: Files, name: str) -> bytes:
    """Some elements, or all of them, become strange numbers."""
    array = _loaded(entries[name])
    if not array.size:
        return _saved(np.ones(3))
    flat = array.reshape(-1).copy()
    place = rng.randrange(flat.size)
    part = rng.choice((slice(place, place + 1), slice(place, None), slice(None)))
    strange: list[Any] = [0, 1, -1, flat.size, flat.size - 1, 2**31 - 1, 127]
    if flat.dtype.kind == "f":
        strange += [np.nan, np.inf, -np.inf, 1e90, -1e30, 1e-30]
    with np.errstate(all="ignore"):
        flat[part] = np.array(rng.choice(strange)).astype(flat.dtype)
    return _saved(flat.reshape(array.shape))


def _with_other_order(rng: random.Random, entries: Files, name: str) -> bytes:
    """The elements are mixed up, which makes circles in trees."""
    array = _loaded(entries[name])
    order = np.random.default_rng(rng.randrange(2**31)).permutation(array.size)
    return _saved(array.reshape(-1)[order].reshape(array.shape))


def _with_shape(rng: random.Random, entries: Files, name: str) -> bytes:
    array = _loaded(entries[name])
    shapes: tuple[Callable[[], Any], ...] = (
        lambda: array.reshape(-1)[: rng.randrange(array.size + 1)],
        lambda: np.concatenate([array, array]) if array.ndim else array,
        lambda: array.reshape(-1, 1),
        lambda: array.reshape(-1),
        lambda: np.asfortranarray(array),
        lambda: np.zeros(0, array.dtype),
        lambda: np.zeros((0, 7), array.dtype),
        lambda: np.zeros((), array.dtype),
        lambda: array[None],
    )
    return _saved(rng.choice(shapes)())


def _with_type(rng: random.Random, entries: Files, name: str) -> bytes:
    with np.errstate(all="ignore"):
        return _saved(_loaded(entries[name]).astype(rng.choice(_TYPES)))


def _with_claim(rng: random.Random, entries: Files, name: str) -> bytes:
    """A header that claims another array than the file has."""
    content = entries[name]
    claims = (
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (100000, 100000), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '|V0', 'fortran_order': False, 'shape': (4611686018427387904,), }",
        "{'descr': [('a', '<f8')], 'fortran_order': True, 'shape': (2,), }",
        "(" * 400,
    )
    header = rng.choice(claims).encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content[128:]


def _with_others(rng: random.Random, entries: Files, name: str) -> bytes:
    """The content of another array of the file."""
    del name
    return entries[rng.choice(sorted(entries))]


def _without(rng: random.Random, entries: Files, name: str) -> bytes:
    del rng
    return entries[name][:-8]


_ARRAY_MUTATIONS = (
    *(_with_numbers,) * 4,
    *(_with_other_order, _with_shape, _with_type, _with_claim, _with_others, _without),
)


def _change_text(rng: random.Random, files: Files) -> None:
    """Change a number or a line of boosted trees."""
    texts = sorted(name for name in files if name.startswith("texts/"))
    if not texts:
        return
    name = rng.choice(texts)
    lines = files[name].decode("utf-8", "replace").split("\n")
    place = rng.randrange(len(lines))
    start, is_value, told = lines[place].partition("=")
    numbers = told.split()
    if is_value and numbers and rng.random() < 0.8:
        numbers[rng.randrange(len(numbers))] = rng.choice(
            ("nan", "inf", "-1", "0", "1e300", "99999999", "x", "-99999", "7", "1.5")
        )
        lines[place] = f"{start}={' '.join(numbers)}"
    elif rng.random() < 0.5:
        del lines[place]
    else:
        lines.insert(place, rng.choice(lines))
    files[name] = "\n".join(lines).encode()


def _change_files(rng: random.Random, files: Files) -> None:
    """Remove, rename, add or exchange files."""
    name = rng.choice(sorted(files))
    match rng.randrange(6):
        case 0:
            del files[name]
        case 1:
            files["../outside"] = b"x"
        case 2:
            files.update({f"texts/{number}.txt": b"tree" for number in range(5000)})
        case 3:
            files[name] = files[rng.choice(sorted(files))]
        case 4:
            files[name] = b""
        case _:
            # it is packed into a thousandth of its size
            files[rng.choice((name, "texts/zeros.txt"))] = bytes(rng.choice((2**20, 2**25)))


_MUTATIONS: tuple[Callable[[random.Random, Files], None], ...] = (
    *(_change_json,) * 6,
    *(_change_array,) * 6,
    *(_change_text,) * 2,
    *(_change_files, _change_bytes),
)
