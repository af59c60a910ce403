"""What `network` needs of numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfarm_predictors.features.table import Rows
from latfarm_predictors.gnn.parameters import Single


class NumpyOps:
    """numpy as the array library of a network; it never drops values out."""

    def array(self, values: Any) -> Single:
        """See `network.ArrayOps.array`."""
        return np.asarray(values, dtype=np.float32)

    def rows(self, values: Any) -> Rows:
        """See `network.ArrayOps.rows`."""
        return np.asarray(values, dtype=np.intp)

    def take(self, values: Single, rows: Rows) -> Single:
        """See `network.ArrayOps.take`."""
        return values[rows]

    def sum_by(self, values: Single, rows: Rows, count: int) -> Single:
        """See `network.ArrayOps.sum_by`."""
        found = np.zeros((count, values.shape[1]), dtype=np.float32)
        if len(rows):
            order = np.argsort(rows, kind="stable")
            present, starts = np.unique(rows[order], return_index=True)
            found[present] = np.add.reduceat(values[order], starts, axis=0)
        return found

    def unit(self, values: Single) -> Single:
        """See `network.ArrayOps.unit`."""
        length = np.sqrt(np.einsum("ij,ij->i", values, values))
        return np.asarray(values / np.maximum(length, np.float32(1e-12))[:, None])

    def relu(self, values: Single) -> Single:
        """See `network.ArrayOps.relu`."""
        return np.maximum(values, np.float32(0.0))

    def tanh(self, values: Single) -> Single:
        """See `network.ArrayOps.tanh`."""
        return np.asarray(np.tanh(values))

    def exp(self, values: Single) -> Single:
        """See `network.ArrayOps.exp`."""
        return np.asarray(np.exp(values))

    def log(self, values: Single) -> Single:
        """See `network.ArrayOps.log`."""
        return np.asarray(np.log(values))

    def beside(self, parts: list[Single]) -> Single:
        """See `network.ArrayOps.beside`."""
        return np.concatenate(parts, axis=1)

    def dropped(self, values: Single) -> Single:
        """See `network.ArrayOps.dropped`."""
        return values
