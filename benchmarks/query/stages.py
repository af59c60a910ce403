"""The figures of the benchmark in one file, to which each finished stage is added at once.

A run that was stopped continues where it stopped: stages that are in the file are not measured
again. Load and stolen time of the host stand beside each stage, because the stages of one file may
be from different hours. Stages of another size of the store need another file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from latfarm_predictors.whole_file import written_whole

Bounds = Mapping[str, tuple[str, float]]
"""The bound of figures by their names: "<=" or ">=", and a number."""


def stolen_s() -> float:
    """Processor time that the host of this machine took from it so far, in seconds."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


class StageFile:
    """See the module.

    Args:
        path: the file; None: figures are kept in memory alone.
        settings: what the figures are about, as plain JSON types.
        bounds: of figures, to which they are compared when they are printed.

    Raises:
        ValueError: the file holds something else, or stages of other settings.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any], bounds: Bounds) -> None:
        self._path, self._bounds = path, bounds
        self._content: dict[str, Any] = {"settings": dict(settings), "stages": {}}
        if path is not None and path.exists():
            found = json.loads(path.read_text())
            if not isinstance(found, dict) or found.get("settings") != dict(settings):
                raise ValueError(f"{path} holds figures of other settings; write another file")
            self._content = found

    @property
    def figures(self) -> dict[str, Any]:
        """All figures by name."""
        stages = self._content["stages"].values()
        return {name: value for each in stages for name, value in each["figures"].items()}

    def missing(self, *names: str) -> bool:
        """Whether one of these stages is not done."""
        return any(name not in self._content["stages"] for name in names)

    def run(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> None:
        """Measure a stage unless it is done, print it, and write the file."""
        if not self.missing(name):
            print(f"{name}: in the file already")
            return
        load, before_s, began_s = os.getloadavg(), stolen_s(), time.monotonic()
        figures = dict(measure())
        host = {
            "load_before": [round(each, 2) for each in load],
            "load_after": [round(each, 2) for each in os.getloadavg()],
            "steal_s": round(stolen_s() - before_s, 2),
            "seconds": round(time.monotonic() - began_s, 1),
        }
        self._content["stages"][name] = {"figures": figures, "host": host}
        if self._path is not None:
            with written_whole(self._path, make_folder=True) as part:
                part.write_text(json.dumps(self._content, indent=1) + "\n")
        for figure, value in figures.items():
            print(self.line(figure, value), flush=True)
        print(f"  {name}: {host}", flush=True)

    def line(self, figure: str, value: Any) -> str:
        """A figure beside its bound."""
        sign, bound = self._bounds.get(figure, ("", 0.0))
        met = "" if not sign else "met" if (value <= bound) == (sign == "<=") else "MISSED"
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        return f"{figure:28} {shown:>24.24} {sign:2} {bound or '':>8} {met}".rstrip()
