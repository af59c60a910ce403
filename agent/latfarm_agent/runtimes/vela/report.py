"""Reading Vela's report about a network that it compiled: the cycles of each operation of the NPU.

Vela writes the report as two files: the summary (one row of CSV) and the debug database (tables of
CSV within XML, whose rows have ids). In the database, the rows of "source" are the operators of the
TFLite file, the rows of "perf" are what Vela made of them, and "group" says which of these rows run
as one operation. The format is described in DEBUG_DB.md and PERFORMANCE.md of
https://gitlab.arm.com/artificial-intelligence/ethos-u/ethos-u-vela
"""

from __future__ import annotations

import csv
import mmap
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, Sequence

from latfarm_agent.runtimes.base import LayerTime, RuntimeFailure
from latfarm_agent.runtimes.flatbuffer import Flatbuffer, FlatbufferError
from latfarm_agent.runtimes.tflite_format import schema

_ON_CPU = "Passthrough"  # operator of a perf row that stays on the CPU
_ROUNDING = 1e-3
"""Share by which the sum of the layers may differ from the summary, as both are rounded."""
_PERF = ("id", "source_id", "optimised_id", "operator", "name")
# The user chose the name, so it may hold commas, quotes and line ends. The row ends with a known
# number of numbers, which shows where the name ends.
_PERF_ROW = r'^(\d+),(\d+),\d+,"([^",\n]*)","?(.*?)"?,((?:[\d.]+,){%d}[\d.]+)$'


@dataclass(frozen=True)
class VelaOperator:
    """An operator of the TFLite file: its unique name, and the tensor that it makes."""

    name: str
    output: str


@dataclass(frozen=True)
class VelaEstimate:
    """Vela's estimate for a network.

    `on_cpu`: the operators that stay on the CPU, for which Vela has no time.
    """

    latency_ms: float
    layers: tuple[LayerTime, ...]
    on_cpu: tuple[str, ...]


@dataclass(frozen=True)
class _ReportRow:
    source: int
    operator: str
    name: str
    cycles: float
    unit: int  # rows of one unit run as one operation


def read_operators(path: Path) -> list[VelaOperator]:
    """Return the operators of a TFLite file, named after the tensors that they make.

    If several operators make tensors of the same name, the operator's number follows: "name@3".

    Raises:
        RuntimeFailure: MODEL_INVALID; MODEL_UNSUPPORTED if the file has several subgraphs.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            outputs = _outputs(Flatbuffer(data))
    except (OSError, ValueError) as error:
        raise RuntimeFailure("MODEL_INVALID", f"not a TFLite model: {error}") from error
    times = Counter(outputs)
    return [
        VelaOperator(output if times[output] == 1 and output else f"{output}@{index}", output)
        for index, output in enumerate(outputs)
    ]


def read_estimate(
    summary: str, database: str, operators: Sequence[VelaOperator], device: str
) -> VelaEstimate:
    """Read the latency of a network, and the times of its layers.

    Each operator of the file is in at most one layer. All operations of the NPU that belong to the
    same operator are one layer; a softmax alone becomes about thirty operations. Operators that
    cost nothing (reshapes, paddings that became part of a convolution, concatenations in place)
    have no layer.

    Args:
        summary: text of the summary file.
        database: text of the debug database.
        operators: operators of the TFLite file, in order.
        device: name of the NPU for the layers.

    Raises:
        RuntimeFailure: MODEL_FAILED if the texts do not have the known form.
    """
    try:
        (totals,) = csv.DictReader(summary.splitlines())
        clock_hz = float(totals["core_clock"])
        latency_ms = float(totals["cycles_total"]) / clock_hz * 1e3
        sources = {
            int(row["id"]): (row["operator"], int(row["ext_key"]))
            for row in _table(database, "source")
        }
        layers = _layers(_perf(database), sources, operators, clock_hz, device)
        _check_sum(latency_ms, layers)
    except (KeyError, ValueError, IndexError, ZeroDivisionError) as error:
        raise RuntimeFailure(
            "MODEL_FAILED", f"Vela's report cannot be read: {type(error).__name__}: {error}"
        ) from error
    on_cpu = tuple(f"{layer.op} {layer.name!r}" for layer in layers if layer.device == "cpu")
    return VelaEstimate(latency_ms, tuple(layers), on_cpu)


def _check_sum(latency_ms: float, layers: Sequence[LayerTime]) -> None:
    told_ms = sum(layer.latency_ms for layer in layers)
    if abs(told_ms - latency_ms) > _ROUNDING * latency_ms:
        raise ValueError(f"{latency_ms:.6f} ms in all, its operations take {told_ms:.6f} ms")


def _outputs(flat: Flatbuffer) -> list[str]:
    """Return the name of the first tensor that each operator makes."""
    graphs = flat.tables(flat.table(flat.root(), schema.MODEL)[2])
    if len(graphs) != 1:
        raise RuntimeFailure(
            "MODEL_UNSUPPORTED",
            f"the model has {len(graphs)} subgraphs; Vela does not know how often each one runs",
        )
    tensors, _, _, operators = flat.table(graphs[0], schema.SUBGRAPH)[:4]
    names = [_text(flat, flat.table(place, schema.TENSOR)[3]) for place in flat.tables(tensors)]
    found = []
    for place in flat.tables(operators):
        made = flat.numbers(flat.table(place, schema.OPERATOR)[2], "i")
        if any(not 0 <= index < len(names) for index in made):
            raise FlatbufferError("an operator makes a tensor that is not there")
        found.append(names[made[0]] if made else "")
    return found


def _text(flat: Flatbuffer, field: int) -> str:
    start, count = flat.vector(field, 1)
    return bytes(flat.data[start : start + count]).decode("utf-8", "replace")


def _section(database: str, name: str) -> str:
    """Return the text of a table with its header; empty if there is no such table."""
    head = f'<table name="{name}">\n<![CDATA[\n'
    start = database.find(head)
    if start < 0:
        return ""
    return database[start + len(head) : database.index("\n]]>\n</table>", start)]


def _table(database: str, name: str) -> list[dict[str, str]]:
    """Return the rows of a table that holds no names chosen by the user."""
    return list(csv.DictReader(_section(database, name).splitlines()))


def _perf(database: str) -> list[_ReportRow]:
    """Return the rows of the table "perf", in the order in which they run."""
    units = {int(row["id"]): int(row["group_id"]) for row in _table(database, "group")}
    text = _section(database, "perf")
    head, _, body = text.partition("\n")
    columns = [column.strip('"') for column in head.split(",")]
    if tuple(columns[: len(_PERF)]) != _PERF:
        raise ValueError(f"its table of operations has the columns {', '.join(columns) or 'none'}")
    place = columns.index("op_cycles") - len(_PERF)
    pattern = re.compile(_PERF_ROW % (len(columns) - len(_PERF) - 1), re.DOTALL | re.MULTILINE)
    found = []
    for row, source, operator, name, numbers in pattern.findall(body):
        cycles = float(numbers.split(",")[place])
        found.append(_ReportRow(int(source), operator, name, cycles, units.get(int(row), int(row))))
    return found


def _layers(
    rows: Sequence[_ReportRow],
    sources: Mapping[int, tuple[str, int]],
    operators: Sequence[VelaOperator],
    clock_hz: float,
    device: str,
) -> list[LayerTime]:
    covered = _covered(rows, {index for _, index in sources.values()}, sources, operators)
    clusters = _clusters(rows, covered)
    kinds = {index: kind for kind, index in sources.values()}
    taken: Counter[str] = Counter()
    found = []
    for members in clusters:
        indices = sorted({covered[row] for row in members} - {-1})
        name = "+".join(operators[index].name for index in indices) or rows[members[0]].name
        taken[name] += 1
        if taken[name] > 1:
            name += f" #{taken[name]}"
        on_cpu = all(rows[row].operator == _ON_CPU for row in members)
        found.append(
            LayerTime(
                name,
                "+".join(kinds[index] for index in indices) or rows[members[0]].operator,
                sum(rows[row].cycles for row in members) / clock_hz * 1e3,
                "cpu" if on_cpu else device,
            )
        )
    return found


def _covered(
    rows: Sequence[_ReportRow],
    known: set[int],
    sources: Mapping[int, tuple[str, int]],
    operators: Sequence[VelaOperator],
) -> list[int]:
    """Return for each row the number of the operator that it is part of, -1 if it is not known.

    Some rewrites, for example of an ArgMax, lose the operator they came from. Their last row makes
    the tensor of that operator.
    """
    makers = {operator.output: index for index, operator in enumerate(operators) if index in known}
    unique = Counter(operator.output for operator in operators)
    found = [sources[row.source][1] if row.source in sources else -1 for row in rows]
    for index in found:
        if index >= len(operators):
            raise ValueError(f"it speaks of operator {index}, there are {len(operators)}")
    pending: list[int] = []
    for row, index in enumerate(found):
        if index >= 0:
            pending = []
            continue
        pending.append(row)
        name = rows[row].name
        if name in makers and unique[name] == 1:
            for lost in pending:
                found[lost] = makers[name]
            pending = []
    return found


def _clusters(rows: Sequence[_ReportRow], covered: Sequence[int]) -> list[list[int]]:
    """Group the rows that run as one operation or belong to one operator, ordered by first row."""
    parents = list(range(len(rows)))

    def root(row: int) -> int:
        while parents[row] != row:
            parents[row] = parents[parents[row]]
            row = parents[row]
        return row

    for keys in ([("unit", row.unit) for row in rows], [("op", index) for index in covered]):
        first: dict[tuple[str, int], int] = {}
        for row, key in enumerate(keys):
            if key == ("op", -1):
                continue
            low, high = sorted((root(first.setdefault(key, row)), root(row)))
            parents[high] = low
    found: dict[int, list[int]] = {}
    for row in range(len(rows)):
        found.setdefault(root(row), []).append(row)
    return list(found.values())
