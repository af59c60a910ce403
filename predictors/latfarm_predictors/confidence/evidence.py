"""The measurements from which a predictor was made, kept to say how far to trust its predictions.

A bundle holds them beside its models. Predicting does not need them. `trust/network_trust.py` needs
them: it fits the paper's confidence metrics to them when it is first asked. Metrics are not part of
a bundle, because their forests would make it many times as large as the measurements do.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from threading import Lock

import numpy as np

from latfarm_predictors.confidence.layer_confidence import LEAST_ROWS, LayerConfidence
from latfarm_predictors.confidence.measures import PlatformConfidence, family_rows
from latfarm_predictors.features.table import Array, Rows, Table
from latfarm_predictors.files.bundle_state import DAMAGE
from latfarm_predictors.files.fitted_cache import FittedCache
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.samples import Training

KIND = "evidence"
"""Kind of the state of the evidence."""
TREES = 150
"""Number of trees of each metric's forest."""

_MOST_ROWS = 50_000
"""Largest number of kernels; a platform has hundreds, and more would take minutes to fit."""

# what a state holds of each kernel: columns of its table, and columns of the evidence
_COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("types", "families"))
_OWN = ("latency_ms", "padding_ms", "unseen_ms", "unseen_sigma")


@dataclass(frozen=True)
class Evidence:
    """The n distinct kernels that a predictor learned from. Thread-safe.

    Attributes:
        table: the kernels.
        latency_ms: measured latency of each without the call overhead, shape (n,).
        padding_ms: half the width of its smart padding interval, shape (n,); 0 without one.
        unseen_ms: its latency by models of ours that never saw it, shape (n,).
        unseen_sigma: log-sigma of that latency, shape (n,).
    """

    table: Table
    latency_ms: Array
    padding_ms: Array
    unseen_ms: Array
    unseen_sigma: Array
    _fitted: dict[str, LayerConfidence] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _kept: list[FittedCache] = field(default_factory=list, init=False, repr=False, compare=False)
    _fitting: Lock = field(default_factory=Lock, init=False, repr=False, compare=False)

    @staticmethod
    def of(training: Training, unseen_ms: Array, unseen_sigma: Array) -> Evidence:
        """The evidence of a training set.

        Args:
            training: n kernels.
            unseen_ms: latency of each by models that never saw it, shape (n,).
            unseen_sigma: log-sigma of each of these latencies, shape (n,).
        """
        return Evidence(
            training.table, training.latency_ms, training.padding_ms, unseen_ms, unseen_sigma
        )

    def __len__(self) -> int:
        """Number of kernels."""
        return len(self.table)

    def __reduce__(self) -> tuple[type[Evidence], tuple[Table | Array, ...]]:
        """For pickle and copy, which leave out fitted metrics; these can be fitted again."""
        return Evidence, (self.table, *(getattr(self, name) for name in _OWN))

    def keep_in(self, kept: FittedCache) -> None:
        """Keep fitted metrics in files, and read them from there instead of fitting them again."""
        self._kept[:] = [kept]

    @cached_property
    def rows(self) -> dict[str, Rows]:
        """The rows of each family."""
        return family_rows(self.table)

    def metrics(self, families: Collection[str]) -> PlatformConfidence:
        """The paper's metrics of some families; each is fitted once.

        Families with fewer than 10 kernels share a stand-in, which is calibrated on all kernels.

        Args:
            families: names of the families.

        Raises:
            NotEnoughDataError: a stand-in is needed, and there are fewer than 10 kernels in all.
        """
        found = {name for name in families if len(self.rows.get(name, ())) >= LEAST_ROWS}
        with self._fitting:
            stand_in = self._fit("") if set(families) - found else None
            return PlatformConfidence({name: self._fit(name) for name in sorted(found)}, stand_in)

    def _fit(self, family: str) -> LayerConfidence:
        """The metrics of one family, or of all kernels if it is ""."""
        if family not in self._fitted:
            rows = self.rows[family] if family else np.arange(len(self), dtype=np.intp)
            self._fitted[family] = self._fit_rows(family, rows)
        return self._fitted[family]

    def _fit_rows(self, family: str, rows: Rows) -> LayerConfidence:
        """The metrics of some kernels, read from files if they were kept there."""
        key = f"confidence {family}, {TREES} trees"
        for kept in self._kept:
            state = kept.get(key)
            if state is not None:
                with suppress(*DAMAGE):  # a file that cannot be read is no reason to fail
                    return LayerConfidence.from_state(state)
        latency, half = self.latency_ms[rows], self.padding_ms[rows]
        found = LayerConfidence.of(
            self.table.take(rows),
            latency,
            padding_ms=(np.maximum(latency - half, 0.0), latency + half),
            trees=TREES,
        )
        for kept in self._kept:
            kept.put(key, found.state())
        return found

    def state(self) -> ModelState:
        """The evidence as plain data."""
        own = [getattr(self, name) for name in _OWN]
        columns = [getattr(self.table, name) for name in _COLUMNS]
        return ModelState(
            KIND,
            values={
                "types": list(self.table.types),
                "families": list(self.table.families),
                "columns": [*_OWN, *_COLUMNS],
            },
            arrays={"rows": np.stack([*own, *columns])},
        )

    @staticmethod
    def from_state(state: ModelState) -> Evidence:
        """The evidence whose state this is.

        Raises:
            ValueError: columns are missing, there are not as many rows as names or too many of
                them, or a latency is not positive.
        """
        values, rows = state.values, state.arrays["rows"]
        named = dict(zip(values["columns"], rows, strict=True))
        named.setdefault("contiguous", np.ones(rows.shape[1]))  # older bundles do not tell it
        missing = {*_OWN, *_COLUMNS} - set(named)
        types, families = tuple(values["types"]), tuple(values["families"])
        if not all(isinstance(text, str) for text in (*types, *families)):
            raise TypeError("types and families of the evidence are texts")
        if missing or not len(types) == len(families) == rows.shape[1]:
            raise ValueError(f"the evidence lacks rows, or columns: {', '.join(sorted(missing))}")
        if len(types) > _MOST_ROWS:
            raise ValueError(f"the evidence has {len(types)} rows; {_MOST_ROWS} are allowed")
        positive = all((named[name] > 0).all() for name in ("latency_ms", "unseen_ms"))
        if not positive or any((named[name] < 0).any() for name in (*_OWN, *_COLUMNS)):
            raise ValueError("the evidence has a latency or a size that is none")
        table = Table(types, families, *(named[name] for name in _COLUMNS))
        return Evidence(table, *(named[name] for name in _OWN))
