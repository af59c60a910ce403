"""Cells of NAS-Bench-201 with latencies: the networks around them are those of the benchmark.

`CellFiles` reads 2,000 of NNLQP's networks whose cells were inferred from their numbers.
`HelpFiles` reads the tables of HELP (Lee et al. 2021). Both name cells alone. The network around a
cell is the benchmark's for CIFAR-10: 3 x 32 x 32 pixels, 16 channels at first, and ten classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import UsageError
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.readers.nnlqp import UNSEEN
from latfarm_controller.store.exchange.readers.plain_pickle import read_plain
from latfarm_controller.store.exchange.readers.tables import TableNetwork, TableRow
from latfarm_controller.store.exchange.reading import Refused, rows_of
from latfarm_controller.store.exchange.records import BadRowError
from latfarm_controller.zoo.cnn.nasbench201 import cell_from_text, connected, network
from latfarm_controller.zoo.design import Design

CELLS = "cells.csv"
"""Name of the table of NNLQP's cells."""
INFERRED = (
    "mean of 50 runs on the platform (NNLQP, section 8.1). THE CELL IS INFERRED: the file number "
    "was read in base 5 for the six edges, which explains 96.9 % of the variance of the latencies; "
    "the order of the edges is less certain than their operations"
)
"""How the latencies of `cells.csv` were measured, and what is uncertain about its networks."""
INDEX = "str_arch2idx.pt"
"""Name of HELP's file that gives each cell its position in the tables."""
LATENCIES = "latency"
"""Name of HELP's folder with a table for each device."""
HELP_METHOD = (
    "as the authors of HELP measured (Lee et al. 2021). The tables name cells; the network around "
    "each is taken to be NAS-Bench-201's for CIFAR-10, and the batch size to be 1 where the name "
    "of a table does not tell one"
)
RESOLUTION = 32
"""Height and width of the input in pixels."""
MOST_CELLS = 1_000_000
"""Most cells in a table; NAS-Bench-201 has 15,625."""


def cell_network(text: str, batch: int) -> Graph:
    """The benchmark's network of a cell.

    Raises:
        BadRowError: the text is no cell, or the result of the cell does not depend on its input.
    """
    try:
        cell = cell_from_text(text)
    except ValueError as error:
        raise BadRowError(str(error)) from None
    if not connected(cell):
        raise BadRowError("the result of this cell does not depend on its input")
    builder = GraphBuilder(f"nasbench201 {text}")
    x = builder.input((batch, 3, RESOLUTION, RESOLUTION))
    return builder.build([network(builder, x, Design(), cell)])


class CellFiles:
    """NNLQP's networks of NAS-Bench-201 with inferred cells.

    Args:
        folder: holds `cells.csv` with the columns index, cell, latency_ms and stage.
    """

    kind = "nnlqp-cells"
    origin = Origin(
        "NNLQP (Liu et al. 2022), as repeated by https://github.com/yuny220/NAR-Former-V2",
        "MIT",
        INFERRED,
    )

    def __init__(self, folder: Path) -> None:
        self._table = folder / CELLS

    @property
    def paths(self) -> Sequence[Path]:
        """The table."""
        return (self._table,)

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """The network of each cell."""
        known = set()
        for row in self.rows():
            if isinstance(row, TableRow) and row.network not in known:
                known.add(row.network)
                load = partial(cell_network, row.network, 1)
                yield TableNetwork(row.network, CELLS, row.line, load)

    def rows(self) -> Iterator[TableRow | Refused]:
        """All rows."""
        for line, row in rows_of(self._table):
            index, cell = str(row.get("index", "")), str(row.get("cell", ""))
            if not index or not cell or "latency_ms" not in row:
                yield Refused(CELLS, line, "index, cell or latency_ms is missing")
                continue
            conditions = {"row": index, "split": str(row.get("stage", "")), "cell": "inferred"}
            yield TableRow(CELLS, line, cell, UNSEEN, row["latency_ms"], conditions=conditions)


class HelpFiles:
    """HELP's tables of NAS-Bench-201: a latency in ms for each cell, a file for each device.

    The name of a file is the device, perhaps with the batch size behind it: `1080ti_32.pt`.

    Args:
        folder: holds `str_arch2idx.pt` and the folder `latency`.

    Raises:
        UsageError: the files cannot be read, or are none of HELP's.
    """

    kind = "help"
    origin = Origin("HELP (Lee et al. 2021), https://github.com/HayeonLee/HELP", "MIT", HELP_METHOD)

    def __init__(self, folder: Path) -> None:
        self._index = folder / INDEX
        self._tables = sorted((folder / LATENCIES).glob("*.pt"))
        if not self._tables:
            raise UsageError(f"{folder / LATENCIES}: there is no table of latencies, such as a.pt")
        told = read_plain(self._index)
        if not isinstance(told, dict) or len(told) > MOST_CELLS:
            raise UsageError(f"{self._index}: this is no table of cells")
        self._cells = {place: text for text, place in told.items() if isinstance(text, str)}

    @property
    def paths(self) -> Sequence[Path]:
        """The index of the cells, then the tables."""
        return (self._index, *self._tables)

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """The network of each cell with each batch size that a table has."""
        for batch in sorted({_device(path)[1] for path in self._tables}):
            for place in sorted(each for each in self._cells if isinstance(each, int)):
                text = self._cells[place]
                load = partial(cell_network, text, batch)
                yield TableNetwork(f"{text}@{batch}", INDEX, place + 1, load)

    def rows(self) -> Iterator[TableRow | Refused]:
        """The latencies of all tables; the line is the position in the table, from 1 on."""
        for path in self._tables:
            name = f"{LATENCIES}/{path.name}"
            device, batch = _device(path)
            latencies = read_plain(path)
            if not isinstance(latencies, list):
                yield Refused(name, 1, "this is no table of latencies")
                continue
            for place, latency in enumerate(latencies):
                cell = self._cells.get(place)
                if cell is None:
                    yield Refused(name, place + 1, f"{INDEX} does not name the cell {place}")
                    continue
                conditions = {"batch": str(batch)}
                yield TableRow(
                    name,
                    place + 1,
                    f"{cell}@{batch}",
                    f"help-{device}",
                    latency,
                    conditions=conditions,
                )


def _device(path: Path) -> tuple[str, int]:
    """The device and the batch size in the name of a table; a name without a number has 1."""
    device, _, batch = path.stem.rpartition("_")
    if device and batch.isdecimal() and 1 <= int(batch) <= 1024:
        return device, int(batch)
    return path.stem, 1
