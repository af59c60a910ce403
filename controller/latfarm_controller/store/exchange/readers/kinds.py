"""Which reader reads a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from latfarm_controller.errors import UsageError
from latfarm_controller.store.exchange.form import MANIFEST
from latfarm_controller.store.exchange.readers import cells, ncnn, nnlqp, nnmeter
from latfarm_controller.store.exchange.readers.tables import TableFiles, TableReader
from latfarm_controller.store.exchange.reading import LatfarmReader, Reader

LATFARM = "latfarm"
"""The kind of what `latfarm db export` writes."""
FILES: Mapping[str, tuple[str, Callable[[Path], TableFiles]]] = {
    "nnlqp": (nnlqp.TABLE, nnlqp.NnlqpFiles),
    "nnlqp-cells": (cells.CELLS, cells.CellFiles),
    "help": (cells.INDEX, cells.HelpFiles),
    "ncnn": (ncnn.TABLE, ncnn.NcnnFiles),
    "nn-meter": ("*.jsonl", nnmeter.NnMeterFiles),
}
"""For each kind the name of a file that shows it, as a pattern, and what reads such files."""
KINDS = (LATFARM, *FILES)
"""All kinds."""


def open_reader(folder: Path, kind: str = "") -> Reader:
    """The reader of a folder.

    Args:
        folder: the files.
        kind: one of `KINDS`; empty: the first whose file is there.

    Raises:
        UsageError: there is no such folder or kind, or the folder holds no known files.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder; check the path")
    if kind and kind not in KINDS:
        raise UsageError(f"there is no format {kind!r}; known: {', '.join(KINDS)}")
    found = kind or _kind_of(folder)
    if found == LATFARM:
        return LatfarmReader(folder)
    sign, files = FILES[found]
    if not any(folder.glob(sign)):
        raise UsageError(f"{folder}: {sign} is missing, which files of the format {found} have")
    return TableReader(files(folder))


def _kind_of(folder: Path) -> str:
    """The kind of the files in a folder."""
    if (folder / MANIFEST).exists():
        return LATFARM
    for kind, (sign, _) in FILES.items():
        if any(folder.glob(sign)):
            return kind
    signs = ", ".join((MANIFEST, *(sign for sign, _ in FILES.values())))
    raise UsageError(f"{folder}: no files of a known format are here; one of {signs} is due")
