"""The results of the benchmark in a folder, to which each finished fit is added at once.

Each source of networks has a file of its own, so that runs of different sources may go on beside
each other. A run that was stopped continues where it stopped: what is in a file is not computed
again. The settings of a run are part of each file, and other settings need another folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from latfarm_predictors.evaluate import evaluate
from latfarm_predictors.features.table import Array
from latfarm_predictors.gnn.network_intervals import NetworkIntervals
from latfarm_predictors.whole_file import written_whole

_STEAL = 7
"""Position of the stolen time among the numbers of the first line of /proc/stat."""


@dataclass(frozen=True)
class BenchJob:
    """One fit and what it is judged on.

    Attributes:
        table: the table that it belongs to: "families" or "cells".
        source: name of the source.
        row: the family that is left out, or the number of training networks.
        method: name of the method.
        seed: random seed.
    """

    table: str
    source: str
    row: str
    method: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.table}/{self.source}/{self.row}/{self.method}/{self.seed}"


class Results:
    """The files of results.

    Args:
        folder: where the file of each source lies; None keeps results in memory only.
        settings: settings of the run, as plain JSON types.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._settings = json.loads(json.dumps(dict(settings)))
        self._content: dict[str, dict[str, Any]] = {}

    def find(self, job: BenchJob) -> dict[str, Any] | None:
        """What is known of a job; None if it is not done.

        Raises:
            ValueError: the file of its source holds results of other settings.
        """
        found: dict[str, Any] | None = self._of(job.source)["jobs"].get(job.key)
        return found

    def keep(self, job: BenchJob, record: Mapping[str, Any]) -> None:
        """Add a finished job, and write the file of its source."""
        self._of(job.source)["jobs"][job.key] = dict(record)
        self._write(job.source)

    def keep_source(self, name: str, facts: Mapping[str, Any]) -> None:
        """Note where the networks of a source come from.

        Raises:
            ValueError: its file holds results of other settings.
        """
        content = self._of(name)
        content["source"] = {**dict(facts), "verdicts": content["source"].get("verdicts", {})}
        self._write(name)

    def keep_verdicts(
        self, name: str, seeds: Sequence[int], told: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Note which methods are shipped, by their fits of these seeds together.

        Verdicts by other seeds stay, and so do those of other methods.
        """
        verdicts = self._of(name)["source"].setdefault("verdicts", {})
        by = "seed " + ", ".join(map(str, seeds))
        verdicts.setdefault(by, {}).update({method: dict(each) for method, each in told.items()})
        self._write(name)

    def durations_s(self) -> dict[str, float]:
        """How long the fits of each method took together in seconds, those of earlier runs too.

        Those of all sources of this run are counted.
        """
        found: dict[str, float] = {}
        for content in self._content.values():
            for key, record in content["jobs"].items():
                method = key.split("/")[-2]
                found[method] = found.get(method, 0.0) + float(record.get("seconds", 0.0))
        return {name: round(found[name], 1) for name in sorted(found)}

    def _of(self, source: str) -> dict[str, Any]:
        """What is known of a source."""
        if source not in self._content:
            self._content[source] = self._read(source)
        return self._content[source]

    def _read(self, source: str) -> dict[str, Any]:
        if self._folder is None or not (path := self._file(self._folder, source)).exists():
            return {"settings": self._settings, "source": {}, "jobs": {}}
        found: dict[str, Any] = json.loads(path.read_text())
        if found.get("settings") != self._settings:
            raise ValueError(f"{path} holds results of other settings; write to another folder")
        return found

    def _write(self, source: str) -> None:
        if self._folder is not None:
            with written_whole(self._file(self._folder, source), make_folder=True) as part:
                part.write_text(json.dumps(self._of(source), indent=1, sort_keys=True) + "\n")

    @staticmethod
    def _file(folder: Path, source: str) -> Path:
        return folder / f"{source}.json"


def scored(found: NetworkIntervals, measured_ms: Array) -> dict[str, Any]:
    """The figures of predictions: MAPE, Acc(10 %), coverage and width of intervals, all errors."""
    scores = evaluate(found.latency_ms, measured_ms)
    inside = (found.low_ms <= measured_ms) & (measured_ms <= found.high_ms)
    width = (found.high_ms - found.low_ms) / measured_ms
    return {
        "count": scores.count,
        "mape": scores.mean_ape,
        "within10": scores.within10,
        "kendall": None if scores.kendall != scores.kendall else scores.kendall,
        "coverage": float(inside.mean()),
        "width": float(np.median(width)),
        "promised": found.promised,
        "errors": [round(float(e), 6) for e in np.abs(found.latency_ms / measured_ms - 1.0)],
    }


class HostWatch:
    """Load and stolen time of the host since it was made; unknown figures are None."""

    def __init__(self) -> None:
        self._before = _ticks()

    def told(self) -> dict[str, float | None]:
        """The load of the last minute, and the share of time that the hypervisor took."""
        after = _ticks()
        passed = [b - a for a, b in zip(self._before, after, strict=False)]
        known = len(passed) > _STEAL and sum(passed) > 0
        steal = round(passed[_STEAL] / sum(passed), 4) if known else None
        return {"load_1m": round(os.getloadavg()[0], 2), "steal_share": steal}


def _ticks() -> Sequence[int]:
    """Processor time by kind since the host started; empty where it is not told."""
    path = Path("/proc/stat")
    if not path.exists():
        return []
    with path.open() as file:
        return [int(each) for each in file.readline().split()[1:]]
