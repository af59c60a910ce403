"""nn-Meter's benchmark dataset: `.jsonl` files with a network and its latencies in each line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from latfarm_predictors.frontends.nnmeter import graph_from_nnmeter
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import UsageError
from latfarm_controller.store.exchange.form import Origin
from latfarm_controller.store.exchange.readers.tables import TableNetwork, TableRow
from latfarm_controller.store.exchange.reading import Refused
from latfarm_controller.store.exchange.records import BadRowError

PLATFORMS = (
    "cortexA76cpu_tflite21",
    "adreno640gpu_tflite21",
    "adreno630gpu_tflite21",
    "myriadvpu_openvino2019r2",
)
"""Keys of the latencies in ms, which name the platforms (nn-Meter's gnn_dataloader.py)."""
LONGEST_LINE_BYTES = 64 << 20
"""Longest line that is read, in bytes."""


class NnMeterFiles:
    """The files of the dataset in one folder.

    Args:
        folder: holds the files.

    Raises:
        UsageError: there are none.
    """

    kind = "nn-meter"
    origin = Origin(
        "nn-Meter's benchmark dataset (Zhang et al. 2021), https://github.com/microsoft/nn-Meter",
        "MIT",
        "mean of 50 runs (nn-Meter, section 6): TFLite's benchmark tool on the CPU and an "
        "operator profiler on the GPU, OpenVINO on the VPU",
    )

    def __init__(self, folder: Path) -> None:
        self.paths: Sequence[Path] = sorted(folder.glob("*.jsonl"))
        if not self.paths:
            raise UsageError(f"{folder}: there is no .jsonl file")

    def networks(self) -> Iterator[TableNetwork | Refused]:
        """The network of each line."""
        for path, line, data in self._lines():
            load = partial(_graph, data)
            yield TableNetwork(f"{path.name}:{line}", path.name, line, load)

    def rows(self) -> Iterator[TableRow | Refused]:
        """Each latency of each line. A line that cannot be read was told with its network."""
        for path, line, data in self._lines():
            try:
                told = _object(data)
            except BadRowError:
                continue
            named = str(told.get("id", ""))[:200]
            for platform in PLATFORMS:
                latency = told.get(platform)
                if latency is not None:
                    key = f"{path.name}:{line}"
                    conditions = {"id": named}
                    yield TableRow(path.name, line, key, platform, latency, conditions=conditions)

    def _lines(self) -> Iterator[tuple[Path, int, bytes]]:
        """The lines of all files that are not empty."""
        for path in self.paths:
            try:
                with path.open("rb") as file:
                    line = 0
                    while data := file.readline(LONGEST_LINE_BYTES + 1):
                        line += 1
                        if data.strip():
                            yield path, line, data
                        while len(data) > LONGEST_LINE_BYTES and not data.endswith(b"\n"):
                            data = file.readline(LONGEST_LINE_BYTES)  # what is left of this line
            except OSError as error:
                raise UsageError(f"{path}: cannot be read: {error.strerror}") from error


def _object(data: bytes) -> dict[str, Any]:
    """The JSON object in a line.

    Raises:
        BadRowError: it is none.
    """
    if len(data) > LONGEST_LINE_BYTES:
        raise BadRowError(f"the line has more than {LONGEST_LINE_BYTES} bytes")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"the line is no JSON: {str(error)[:100]}") from None
    if not isinstance(told, dict):
        raise BadRowError("the line is no JSON object")
    return told


def _graph(data: bytes) -> Graph:
    """The network in a line."""
    told = _object(data)
    return graph_from_nnmeter(str(told.get("id", "network"))[:200], told.get("graph"))
