"""Public latencies of many boards, as tables for a transfer to a new board.

ncnn publishes `benchmark/README.md`, which was parsed into `benchmarks.csv`: 68 boards with up to
35 networks, by number of threads and GPU (https://github.com/Tencent/ncnn, BSD-3-Clause). HELP
publishes the latencies of the 15,625 cells of NASBench-201 on 12 devices
(https://github.com/HayeonLee/HELP).
"""

from __future__ import annotations

import csv
import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.table import LatencyTable

CHIPS = (
    "RK3588",
    "RK3399",
    "RK356",
    "BCM2712",
    "BCM2837|BCM2710",
    "(?i)kunpeng 920",
    "FT-2000",
    "2K1000",
)
"""Patterns of chips that several of ncnn's boards have: such boards are siblings. BCM2710A1 is the
die of BCM2837; RK3566 and RK3568 have the same cores."""
EQUAL_RUNS = (("VisionFive2", "4"), ("Phytium FT-2000/4", "4"), ("Loongson 3A4000", "4"))
"""Boards with equal cores, and a number of threads for which they were measured more than once: the
choice of big or little cores changes nothing there, so that the runs are repeats."""
CSV = "benchmarks.csv"
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
"""Edges of a cell in the order of NASBench-201's strings: from node, to node."""
OPS = ("skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
"""Ops of an edge beside `none`."""
MAKERS = {
    "1080ti_1": "NVIDIA",
    "1080ti_32": "NVIDIA",
    "2080ti_1": "NVIDIA",
    "2080ti_32": "NVIDIA",
    "titanx_1": "NVIDIA",
    "titanxp_1": "NVIDIA",
    "gold_6226": "Intel",
    "silver_4114": "Intel",
    "silver_4210r": "Intel",
    "pixel3": "Qualcomm",
    "essential_ph_1": "Qualcomm",
    "samsung_a50": "Samsung",
}
"""Maker of each device's processor, which is left out as a whole. Both phones with a Snapdragon are
siblings."""


class Repeats(NamedTuple):
    """Two measurements of the same, as logarithms of milliseconds, each of shape (m,)."""

    first: Array
    second: Array

    def ceiling(self) -> dict[str, float]:
        """What a perfect predictor scores against one measurement.

        Two measurements differ by sqrt 2 times what one differs from the truth.
        """
        apart = np.abs(self.first - self.second) / np.sqrt(2.0)
        return {
            "pairs": len(apart),
            "within10": float(np.mean(np.expm1(apart) <= 0.1)),
            "mape": float(np.mean(np.expm1(apart))),
        }


def ncnn(folder: Path, *, siblings: bool, latency: str = "min_ms") -> LatencyTable:
    """The boards of ncnn: kinds are "cpu" and "gpu".

    Args:
        folder: holds `benchmarks.csv`.
        siblings: whether boards with the same chip are one group; otherwise each board is one.
        latency: column of the latencies: `min_ms` or `avg_ms`.
    """
    rows = _rows(folder)
    runs = list(dict.fromkeys((row["board"], row["run"]) for row in rows))
    networks = sorted({row["model"] for row in rows})
    latencies = np.full((len(runs), len(networks)), np.nan)
    kinds, names = [""] * len(runs), [""] * len(runs)
    places = {run: place for place, run in enumerate(runs)}
    columns = {name: place for place, name in enumerate(networks)}
    for row in rows:
        place = places[row["board"], row["run"]]
        value = float(row[latency])
        latencies[place, columns[row["model"]]] = value if value > 0 else np.nan
        kinds[place] = "gpu" if int(row["gpu_device"]) >= 0 else "cpu"
        names[place] = f"{row['board']}, {row['num_threads']} threads, run {row['run']}"
    boards = tuple(board for board, _ in runs)
    groups = tuple(chip_of(board) for board in boards) if siblings else boards
    return LatencyTable(tuple(names), boards, groups, tuple(kinds), tuple(networks), latencies)


def chip_of(board: str) -> str:
    """The pattern of a chip that several boards have, or else the board itself."""
    return next((pattern for pattern in CHIPS if re.search(pattern, board)), board)


def ncnn_repeats(folder: Path, latency: str = "min_ms") -> Repeats:
    """Networks that were measured twice in equal conditions on the same board."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in _rows(folder):
        for board, threads in EQUAL_RUNS:
            same = row["board"].startswith(board) and row["num_threads"] == threads
            if same and int(row["gpu_device"]) < 0:
                found.setdefault((row["board"], row["model"]), []).append(float(row[latency]))
    pairs = np.log([values[-2:] for values in found.values() if len(values) > 1])
    return Repeats(pairs[:, 0], pairs[:, 1])


def nasbench(folder: Path) -> LatencyTable:
    """The cells of NASBench-201 on HELP's devices, without cells whose output has no input.

    The amounts are the numbers of ops of each type: of all edges, since most devices run a cell as
    it is written, and of the edges between input and output, since one compiles it first.
    """
    numbers: dict[str, int] = _unpickled(folder / "str_arch2idx.pt")
    cells = sorted(numbers, key=lambda cell: numbers[cell])
    parsed = [edges_of(cell) for cell in cells]
    alive = [live_edges(ops) for ops in parsed]
    kept = [place for place, live in enumerate(alive) if live]
    devices = sorted(MAKERS)
    latencies = np.array([_unpickled(folder / "latency" / f"{name}.pt") for name in devices])
    amounts = [
        [1.0, *counts(parsed[p].values()), *counts(alive[p].values()), float(len(alive[p]))]
        for p in kept
    ]
    makers = tuple(MAKERS[name] for name in devices)
    return LatencyTable(
        tuple(devices),
        tuple(devices),
        makers,
        ("device",) * len(devices),
        tuple(cells[p] for p in kept),
        latencies[:, kept].astype(np.float64),
        np.array(amounts),
    )


def nasbench_repeats(table: LatencyTable, row: int) -> Repeats:
    """Latencies of cells that are the same but for the order of their two inner nodes."""
    places = {cell: place for place, cell in enumerate(table.networks)}
    logs = np.log(table.latencies_ms[row])
    pairs = []
    for cell, place in places.items():
        ops = edges_of(cell)
        if ops[1, 2] != "none":
            continue
        turned = (
            f"|{ops[0, 2]}~0|+|{ops[0, 1]}~0|none~1|+|{ops[0, 3]}~0|{ops[2, 3]}~1|{ops[1, 3]}~2|"
        )
        other = places.get(turned, place)
        if place < other:
            pairs.append((logs[place], logs[other]))
    both = np.array(pairs)
    return Repeats(both[:, 0], both[:, 1])


def flops_of(table: LatencyTable) -> Array:
    """FLOPs of the cells up to a factor, shape (P,), from the amounts that `nasbench` made.

    Of the ops of an edge, a 3x3 convolution has nine times the FLOPs of a 1x1 one, and the others
    have almost none. One is added for everything outside of the cells.
    """
    _ones, _skips, small, large, *_ = table.amounts.T
    return np.asarray(1.0 + small + 9.0 * large)


def edges_of(cell: str) -> dict[tuple[int, int], str]:
    """The op of each edge of a cell that is written as NASBench-201 does."""
    ops = [edge[:-2] for node in cell.split("+") for edge in node.strip("|").split("|")]
    return dict(zip(EDGES, ops, strict=True))


def live_edges(ops: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
    """The edges on a path from the input to the output; none if there is no path."""
    used = [edge for edge in EDGES if ops[edge] != "none"]
    reached, needed = {0}, {3}
    for start, end in used:
        if start in reached:
            reached.add(end)
    for start, end in reversed(used):
        if end in needed:
            needed.add(start)
    return {edge: ops[edge] for edge in used if edge[0] in reached and edge[1] in needed}


def counts(ops: Any) -> list[float]:
    """How often each op of `OPS` is among some ops."""
    listed = list(ops)
    return [float(listed.count(op)) for op in OPS]


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / CSV).open(newline="") as file:
        return list(csv.DictReader(file))


class _PlainUnpickler(pickle.Unpickler):
    """Reads lists, dictionaries, texts and numbers; anything else is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")


def _unpickled(path: Path) -> Any:
    """The plain data of a file that `torch.save` wrote."""
    with zipfile.ZipFile(path) as archive:
        name = next(each for each in archive.namelist() if each.endswith("data.pkl"))
        return _PlainUnpickler(io.BytesIO(archive.read(name))).load()
