"""What became of one model of `make bench-models`, and the file that keeps these rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from latfarm_predictors.whole_file import written_whole
from latfarm_protos.error_codes import INFRASTRUCTURE_ERRORS

TOO_LONG = "it took longer than "
"""How the reason of a step begins that did not end in time, as on a busy machine."""
SIGNAL = "signal "
"""How the reason of a step begins whose process was killed, as where memory ran out."""
NOT_THE_MODELS_FAULT = INFRASTRUCTURE_ERRORS | {"MODEL_TIMEOUT"}
"""Codes with which the reason of a failed measurement begins that another try may change."""


@dataclass
class ModelRow:
    """What became of one model; times in milliseconds.

    Attributes:
        name: the model.
        family: the row of the table by family.
        exported: whether the exporter wrote it.
        files_bytes: sizes of its files.
        read: whether `read_onnx` made a graph of it.
        nodes: number of nodes of that graph.
        predicted_ms: predicted latency; None if it was not predicted.
        interval_ms: the interval of 90 %.
        unsupported: nodes that are not predicted, with reasons.
        corrected_ms: latency in onnxruntime, corrected for the slowdown of the core in the way of
            the bundle; None if it does not run there.
        timed_ms: that latency as timed; None if it does not run there.
        slowdown: the core's median slowdown meanwhile; 1 where nothing tells it.
        reasons: why a step failed, by step.
        steal: share of the cores' time that the hypervisor took meanwhile; None if it is not known.
    """

    name: str
    family: str
    exported: bool = False
    files_bytes: Mapping[str, int] | None = None
    read: bool = False
    nodes: int = 0
    predicted_ms: float | None = None
    interval_ms: tuple[float, float] | None = None
    unsupported: Sequence[str] = ()
    corrected_ms: float | None = None
    timed_ms: float | None = None
    slowdown: float = 1.0
    reasons: Mapping[str, str] | None = None
    steal: float | None = None

    @property
    def predicted(self) -> bool:
        """Whether the latency is predicted with all ops of the model."""
        return self.predicted_ms is not None and not self.unsupported

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON types; `measured_ms` is the older name of `corrected_ms`."""
        return asdict(self) | {"predicted": self.predicted, "measured_ms": self.corrected_ms}

    def final(self, *, measured: bool) -> bool:
        """Whether another try would give the same row: nothing was broken off, nothing is missing.

        Args:
            measured: whether models are measured.
        """
        reasons = dict(self.reasons or {})
        broken_off = any(why.startswith((TOO_LONG, SIGNAL)) for why in reasons.values())
        broken_off |= reasons.get("measure", "").partition(":")[0] in NOT_THE_MODELS_FAULT
        unmeasured = measured and self.exported and self.corrected_ms is None
        return not broken_off and not (unmeasured and "measure" not in reasons)


class ModelFile:
    """The file of figures, which is written after each model, and which a later run continues.

    Rows are taken from it only if they were made with the same bundle and the same versions of the
    exporting libraries.

    Args:
        path: the file; None: nothing is kept.
        same: what must be the same: entries of the file, as plain JSON types.
        again: examine the models anew that the file has.
    """

    def __init__(self, path: Path | None, same: Mapping[str, Any], *, again: bool = False) -> None:
        self._path = path
        self._rows: dict[str, ModelRow] = {}
        self._replaced = False
        if path is None or again or not path.exists():
            return
        found = json.loads(path.read_text("utf-8"))
        if all(found.get(name) == value for name, value in same.items()):
            self._rows = {row["name"]: row_of(row) for row in found["models"]}
        else:
            self._replaced = True

    @property
    def replaced(self) -> bool:
        """Whether the file has rows that do not count here, which the first `write` replaces."""
        return self._replaced

    @property
    def rows(self) -> Mapping[str, ModelRow]:
        """The rows that the file had, by name."""
        return self._rows

    def write(self, figures: Mapping[str, Any]) -> None:
        """Write the figures; a kill meanwhile leaves the former ones."""
        if self._path is not None:
            with written_whole(self._path, make_folder=True) as part:
                text = json.dumps(figures, indent=1, allow_nan=False)
                part.write_text(text + "\n", encoding="utf-8")


def row_of(told: Mapping[str, Any]) -> ModelRow:
    """A row as the file has it; entries that rows do not have are left out."""
    known = {field.name for field in fields(ModelRow)}
    return ModelRow(**{name: value for name, value in told.items() if name in known})
