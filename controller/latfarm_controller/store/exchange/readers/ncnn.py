"""ncnn's benchmark table (`benchmarks.csv`) with the exact networks (`models/*.param`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from latfarm_predictors.frontends.ncnn.network import read_ncnn
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.readers.tables import TableNetwork, TableRow
from latfarm_controller.store.exchange.reading import Refused, rows_of
from latfarm_controller.store.exchange.records import Row

TABLE = "benchmarks.csv"
"""Name of the table."""
MODELS = "models"
"""Name of the folder with the networks."""
COLUMNS = (
    *("board", "run", "num_threads", "powersave", "gpu_device", "loop_count"),
    *("model", "min_ms", "max_ms", "avg_ms"),
)
"""The columns of the table."""
_WHOLE = ("run", "num_threads", "powersave", "gpu_device", "loop_count")
_INT8 = "_int8"
"""End of the names of networks that have int8 weights."""
_NO_WORD = re.compile(r"[^A-Za-z0-9.]+")


class NcnnFiles:
    """The table and the networks.

    Args:
        folder: holds `benchmarks.csv` and the folder `models`.
    """

    kind = "ncnn"
    origin = Origin(
        "ncnn's benchmark table, https://github.com/Tencent/ncnn/tree/master/benchmark",
        "BSD-3-Clause",
        "benchncnn: mean of `loop_count` runs after a warm-up, with random weights, by whoever "
        "gave the figures to ncnn",
    )

    def __init__(self, folder: Path) -> None:
        self._table = folder / TABLE
        self._models = {path.stem: path for path in sorted((folder / MODELS).glob("*.param"))}

    @property
    def paths(self) -> Sequence[Path]:
        """The table, then the networks."""
        return (self._table, *self._models.values())

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """All networks of the folder."""
        for name, path in self._models.items():
            yield TableNetwork(name, f"{MODELS}/{path.name}", 1, partial(_graph, path))

    def rows(self) -> Iterator[TableRow | Refused]:
        """All rows."""
        for line, row in rows_of(self._table):
            missing = [name for name in COLUMNS if not row.get(name)]
            if missing:
                yield Refused(TABLE, line, f"{missing[0]} is missing")
                continue
            wrong = [name for name in _WHOLE if not re.fullmatch(r"-?\d{1,9}", str(row[name]))]
            if wrong:
                value = str(row[wrong[0]])[:40]
                yield Refused(TABLE, line, f"{wrong[0]} is {value!r}, which is no whole number")
                continue
            yield _row(line, row)


def _row(line: int, row: Row) -> TableRow:
    """The row of a line whose fields are all there."""
    model, board = str(row["model"]), str(row["board"])
    told = {name: int(row[name]) for name in _WHOLE}
    slug = _NO_WORD.sub("-", board).strip("-.").lower()
    gpu = told["gpu_device"]
    words = [slug, "ncnn", "cpu" if gpu < 0 else f"gpu{gpu}"]
    if model.endswith(_INT8):
        words.append("int8")
    words += [f"p{told['powersave']}", f"{told['num_threads']}t"]
    conditions = {"board": board, **{name: str(value) for name, value in told.items()}}
    return TableRow(
        TABLE,
        line,
        model,
        "-".join(words),
        row["avg_ms"],
        board=f"{slug}/{told['run']}",
        runs=max(0, told["loop_count"]),
        min_ms=row["min_ms"],
        conditions=conditions,
    )


def _graph(path: Path) -> Graph:
    """The network of a file; one with int8 weights is the float network that was quantised."""
    return read_ncnn(path).graph
