"""The data set of NNLQP: `gt.txt` with its folder of ONNX files without weights.

NNLQP's README tells the form of a line: id, path of the ONNX file, batch size, latency in ms, type
of the network, number of the platform, and perhaps the part of the split (train or test).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from latfarm_predictors.frontends.onnx import read_onnx

from latfarm_controller.errors import UsageError
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.readers.tables import TableNetwork, TableRow
from latfarm_controller.store.exchange.reading import Refused

TABLE = "gt.txt"
"""Name of the table."""
SOURCE = "NNLQP (Liu et al. 2022), https://github.com/ModelTC/NNLQP"
METHOD = "mean of 50 runs on the platform (NNLQP, section 8.1)"
UNSEEN = "gpu-gtx1660-trt7.1-fp32"
"""The only platform of the part "unseen_structure" (NNLQP's README)."""
PLATFORMS = {
    1: UNSEEN,
    2: "cpu-openppl-fp32",
    9: "hi3559A-nnie11-int8",
    10: "gpu-T4-trt7.1-fp32",
    12: "gpu-T4-trt7.1-int8",
    13: "gpu-P4-trt7.1-fp32",
    14: "gpu-P4-trt7.1-int8",
    16: "hi3519A-nnie12-int8",
    18: "atlas300-acl-fp16",
    23: "mul270-neuware-int8",
}
"""NNLQP's names of its platforms by their numbers, as its demo.py pairs them."""
LARGEST_BATCH = 65_536
"""Largest batch size that is believed."""


class NnlqpFiles:
    """The table and the ONNX files of one part of the data set.

    Args:
        folder: holds `gt.txt`; the paths in it are relative to this folder.

    Raises:
        UsageError: the table cannot be read.
    """

    kind = "nnlqp"
    origin = Origin(SOURCE, "", METHOD)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = folder / TABLE
        try:
            self._lines = self._table.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise UsageError(f"{self._table}: cannot be read: {error.strerror}") from error
        named = {row.network.rpartition("@")[0] for row in self.rows() if isinstance(row, TableRow)}
        there = (path for name in sorted(named) if (path := self._path(name)))
        self.paths: Sequence[Path] = [self._table, *there]

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """Each pair of an ONNX file and a batch size, where its first line stands."""
        known = set()
        for row in self.rows():
            if isinstance(row, Refused) or row.network in known:
                continue  # a line that is none is told with the rows
            known.add(row.network)
            name, _, batch = row.network.rpartition("@")
            path = self._path(name)
            if path is not None:  # a row without a graph is told with the rows
                load = partial(read_onnx, path, batch=int(batch))
                yield TableNetwork(row.network, TABLE, row.line, load)

    def rows(self) -> Iterator[TableRow | Refused]:
        """All lines that are not empty."""
        for line, text in enumerate(self._lines, 1):
            if text.strip():
                yield _row(line, text.split())

    def _path(self, name: str) -> Path | None:
        """The ONNX file of a name; None if it is not in the folder."""
        path = self._folder / name
        try:
            inside = path.resolve().is_relative_to(self._folder.resolve())
            return path if inside and path.is_file() else None
        except (OSError, ValueError):
            return None


def _row(line: int, words: list[str]) -> TableRow | Refused:
    """The row in the words of a line."""
    if len(words) not in (6, 7):
        return Refused(TABLE, line, f"it has {len(words)} fields; 6 or 7 are due")
    number, name, batch, latency, family, platform, *stage = words
    if not (batch.isdecimal() and 1 <= int(batch) <= LARGEST_BATCH):
        return Refused(TABLE, line, f"the batch size is {batch[:40]!r}")
    told = PLATFORMS.get(int(platform)) if platform.isdecimal() else None
    if told is None:
        return Refused(TABLE, line, f"the platform {platform[:40]!r} is not known")
    conditions = {"row": number, "family": family, "batch": str(int(batch))}
    if stage:
        conditions["split"] = stage[0]
    key = f"{name}@{int(batch)}"
    return TableRow(TABLE, line, key, told, latency, conditions=conditions)
