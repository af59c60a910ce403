"""Evidence: the measurements that a predictor was made from, kept to tell how far to trust it.

A bundle holds them beside its models. `predict` never looks at them; `network_trust.py` does, and
fits the paper's confidence metrics to them when first asked: the forests of these would make a
bundle many times as large as the rows do.
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
TREES = 150

_COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("types", "families"))
_OWN = ("latency_ms", "padding_ms", "unseen_ms", "unseen_sigma")


@dataclass(frozen=True)
class Evidence:
    """The n distinct kernels that a predictor learned from. Thread-safe.

    Attributes:
        table: the kernels.
        latency_ms: what was measured of each, call overhead taken off, shape (n,).
        padding_ms: half the width of its smart padding interval; 0 without one, shape (n,).
        unseen_ms: what our models say that never saw it, shape (n,).
        unseen_sigma: and their log-sigma, shape (n,).
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
        """From a training set and each row's estimate without it, each of shape (n,)."""
        return Evidence(
            training.table, training.latency_ms, training.padding_ms, unseen_ms, unseen_sigma
        )

    def __len__(self) -> int:
        """How many kernels."""
        return len(self.table)

    def __reduce__(self) -> tuple[type[Evidence], tuple[Table | Array, ...]]:
        """For pickle and copy: what was fitted can be fitted again."""
        return Evidence, (self.table, *(getattr(self, name) for name in _OWN))

    def keep_in(self, kept: FittedCache) -> None:
        """Keep there what is fitted when first asked for, and look there before."""
        self._kept[:] = [kept]

    @property
    def fitted_families(self) -> frozenset[str]:
        """Families whose metrics are fitted already; "" stands for all kernels together."""
        return frozenset(self._fitted)

    @cached_property
    def rows(self) -> dict[str, Rows]:
        """The rows of each family."""
        return family_rows(self.table)

    def metrics(self, families: Collection[str]) -> PlatformConfidence:
        """The paper's metrics of these families, those with too few rows served by a stand-in.

        The stand-in is calibrated on all kernels together. Each is fitted once.

        Raises:
            NotEnoughDataError: fewer than 10 kernels in all.
        """
        found = {name for name in families if len(self.rows.get(name, ())) >= LEAST_ROWS}
        with self._fitting:
            stand_in = self._fit("") if set(families) - found else None
            return PlatformConfidence({name: self._fit(name) for name in sorted(found)}, stand_in)

    def _fit(self, family: str) -> LayerConfidence:
        """Of one family; "" stands for all kernels."""
        if family not in self._fitted:
            rows = self.rows[family] if family else np.arange(len(self), dtype=np.intp)
            self._fitted[family] = self._fit_rows(family, rows)
        return self._fitted[family]

    def _fit_rows(self, family: str, rows: Rows) -> LayerConfidence:
        """Of these kernels, or as it was kept."""
        key = f"confidence {family}, {TREES} trees"
        for kept in self._kept:
            state = kept.get(key)
            if state is not None:
                with suppress(*DAMAGE):  # of another version that forgot to say so: fitted anew
                    return LayerConfidence.from_state(state)
        latency, half = self.latency_ms[rows], self.padding_ms[rows]
        found = LayerConfidence.of(
            self.table.take(rows),
            latency,
            low_ms=np.maximum(latency - half, 0.0),
            high_ms=latency + half,
            trees=TREES,
        )
        for kept in self._kept:
            kept.put(key, found.state())
        return found

    def state(self) -> ModelState:
        """As plain data."""
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
        """Read what `state` gave.

        Raises:
            ValueError: columns are missing, or not as many rows as names.
        """
        values, rows = state.values, state.arrays["rows"]
        named = dict(zip(values["columns"], rows, strict=True))
        missing = {*_OWN, *_COLUMNS} - set(named)
        types, families = tuple(values["types"]), tuple(values["families"])
        if missing or not len(types) == len(families) == rows.shape[1]:
            raise ValueError(f"the evidence lacks rows, or columns: {', '.join(sorted(missing))}")
        table = Table(types, families, *(named[name] for name in _COLUMNS))
        return Evidence(table, *(named[name] for name in _OWN))
