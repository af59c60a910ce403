"""The models of a platform as commands show them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latfarm_controller.cli.shell import output
from latfarm_controller.training.model_register import (
    BUNDLE_SUFFIX,
    ModelRecord,
    RegisterChange,
    read_register,
)
from latfarm_controller.training.promotion import FrozenScores


@dataclass(frozen=True)
class ShownModel:
    """A model with what the register of its platform says of it.

    Attributes:
        platform: the platform.
        record: the model.
        path: its bundle.
        changes: when it was put in use, and why; the oldest first.
    """

    platform: str
    record: ModelRecord
    path: Path
    changes: tuple[RegisterChange, ...] = ()

    @property
    def scores(self) -> FrozenScores | None:
        """How it predicts the frozen set; None if it was not judged."""
        return FrozenScores.from_json(self.record.scores)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """What a table about this model alone tells."""
        scores = self.scores
        told = [
            ("model", f"{self.record.number}, {self.record.state}"),
            ("parent", self.record.parent or "none"),
            ("revision of its rows", self.record.data_revision or "unknown"),
            ("frozen set", "not judged" if scores is None else scores.sentence),
        ]
        for change in self.changes:
            how = "forced into use" if change.forced else "put in use"
            when = _time(change.at_s) or "before there was a register"
            told.append((how, f"{when}{': ' + change.reason if change.reason else ''}"))
        return told

    def to_json(self) -> dict[str, Any]:
        """What is told of it, as plain JSON types."""
        scores = self.scores
        return {
            "model": self.record.number,
            "path": str(self.path),
            "state": self.record.state,
            "model_parent": self.record.parent,
            "data_revision": self.record.data_revision,
            "added_at_s": self.record.added_at_s,
            "scores": None if scores is None else scores.summary(),
            "changes": [change.to_json() for change in self.changes],
        }


def models_of(folder: Path) -> list[ShownModel]:
    """The models of the platform whose bundles are in a folder.

    Raises:
        StoreError: the register cannot be read.
    """
    register = read_register(folder)
    return [
        ShownModel(
            folder.name,
            record,
            folder / f"{record.number}{BUNDLE_SUFFIX}",
            tuple(change for change in register.history if change.model == record.number),
        )
        for record in register.models.values()
    ]


def show_models(models: Sequence[ShownModel], *, as_json: bool) -> None:
    """Print models as a table, or as JSON."""
    if as_json:
        output.json_text([{"platform": m.platform, **m.to_json()} for m in models])
        return
    header = ["platform", "model", "state", "parent", "rows", "error", "covered", "added"]
    rows = []
    for model in models:
        scores, record = model.scores, model.record
        judged = (
            ["", ""] if scores is None else [f"{scores.mean_error:.1%}", f"{scores.coverage:.0%}"]
        )
        told = [model.platform, record.number, record.state, record.parent, record.data_revision]
        rows.append([*told, *judged, _time(record.added_at_s)])
    output.table("", header, rows)


def _time(at_s: float) -> str:
    """A Unix time in seconds for people, in UTC; empty where it is not known."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at_s)) if at_s else ""
