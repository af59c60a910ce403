"""What flushed caches add to a kernel's latency: mostly fetching its weights from memory again."""

from __future__ import annotations

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.optional_libraries import library

_LEAST_ROWS = 8
"""With fewer cold measurements than this nothing is learned."""
_CACHES_BYTES = (1e6, 4e6, 24e6)
"""Sizes, in bytes, that the caches of a board may have."""


class ColdCost:
    """Extra latency as a sum of a fixed cost, weight bytes and activation bytes.

    Coefficients are not negative and minimise relative errors. Weights count only up to the sizes
    of plausible caches: what no cache can keep between two runs is fetched by a warm run too, and
    costs nothing extra. With fewer than 8 cold measurements the extra latency is zero.

    Attributes:
        rows: number of cold measurements.
    """

    kind = "cold"

    def __init__(self) -> None:
        self._coefficients: Array = np.zeros(2 + len(_CACHES_BYTES))
        self.rows = 0

    @property
    def known(self) -> bool:
        """Whether there were enough cold measurements to learn from."""
        return self.rows >= _LEAST_ROWS

    def fit(self, table: Table, latency_ms: Array, extra_ms: Array) -> ColdCost:
        """Learn from the rows with a finite extra latency.

        Args:
            table: n kernels.
            latency_ms: warm latency of each, shape (n,).
            extra_ms: cold minus warm latency of each, shape (n,); NaN where it was not measured.
        """
        nnls = library("scipy.optimize").nnls
        rows = np.flatnonzero(np.isfinite(extra_ms))
        self.rows = len(rows)
        if not self.known:
            return self
        columns = self._columns(table.take(rows))
        scale = columns.mean(axis=0) + 1e-12
        weight = 1.0 / (latency_ms[rows] + extra_ms[rows])
        solution, _ = nnls(columns / scale * weight[:, None], extra_ms[rows] * weight)
        self._coefficients = solution / scale
        return self

    def extra_ms(self, table: Table) -> Array:
        """Latency in ms that flushed caches add to each kernel, shape (n,)."""
        # not "@", which rounds a row differently at the end of a table than inside it
        return np.asarray(np.einsum("ij,j->i", self._columns(table), self._coefficients))

    def state(self) -> ModelState:
        """What was learned, as plain data."""
        return ModelState(self.kind, {"rows": self.rows}, {"coefficients": self._coefficients})

    @classmethod
    def from_state(cls, state: ModelState) -> ColdCost:
        """The model whose state this is."""
        model = cls()
        model.rows = int(state.values["rows"])
        model._coefficients = state.arrays["coefficients"]
        return model

    def _columns(self, table: Table) -> Array:
        activations = table.input_bytes + table.output_bytes
        kept = [np.minimum(table.weight_bytes, size) for size in _CACHES_BYTES]
        return np.stack([np.ones(len(table)), *kept, activations], axis=1)
