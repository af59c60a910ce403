"""What `network` needs of torch."""

from __future__ import annotations

from typing import Any

import numpy as np

from latfarm_predictors.gnn.learning.device import torch_module

Tensor = Any
"""A tensor of torch, which mypy does not see."""


class TorchOps:
    """torch as the array library of a network.

    Args:
        device: on which it computes.
        dropout: share of the values that `dropped` sets to zero; 0 outside of training.
        seed: random seed of the dropout.
    """

    def __init__(self, device: str, dropout: float = 0.0, seed: int = 0) -> None:
        self._torch = torch_module()
        self._device = device
        self._dropout = dropout
        self._draw = self._torch.Generator(device=device).manual_seed(seed)

    def array(self, values: Any) -> Tensor:
        """See `network.ArrayOps.array`."""
        single = np.ascontiguousarray(values, dtype=np.float32)
        return self._torch.from_numpy(single).to(self._device)

    def rows(self, values: Any) -> Tensor:
        """See `network.ArrayOps.rows`."""
        whole = np.ascontiguousarray(values, dtype=np.int64)
        return self._torch.from_numpy(whole).to(self._device)

    def take(self, values: Tensor, rows: Tensor) -> Tensor:
        """See `network.ArrayOps.take`."""
        return values.index_select(0, rows)

    def sum_by(self, values: Tensor, rows: Tensor, count: int) -> Tensor:
        """See `network.ArrayOps.sum_by`."""
        empty = self._torch.zeros(
            (count, values.shape[1]), dtype=values.dtype, device=values.device
        )
        return empty.index_add(0, rows, values)

    def unit(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.unit`."""
        return self._torch.nn.functional.normalize(values, p=2.0, dim=1, eps=1e-12)

    def relu(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.relu`."""
        return self._torch.relu(values)

    def tanh(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.tanh`."""
        return self._torch.tanh(values)

    def exp(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.exp`."""
        return self._torch.exp(values)

    def log(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.log`."""
        return self._torch.log(values)

    def beside(self, parts: list[Tensor]) -> Tensor:
        """See `network.ArrayOps.beside`."""
        return self._torch.cat(parts, dim=1)

    def dropped(self, values: Tensor) -> Tensor:
        """See `network.ArrayOps.dropped`; what stays is scaled up, so that the mean stays."""
        if not self._dropout:
            return values
        draw = self._torch.rand(
            values.shape, generator=self._draw, device=values.device, dtype=values.dtype
        )
        return values * (draw >= self._dropout) / (1.0 - self._dropout)
