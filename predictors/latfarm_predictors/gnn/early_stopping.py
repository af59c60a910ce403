"""Decides when training ends. It is told errors of validation networks and of no others."""

from __future__ import annotations

from math import inf, isfinite


class EarlyStopping:
    """Ends training when validation errors get no better.

    Args:
        patience: number of epochs without a better error after which training ends.

    Attributes:
        best: the least error so far.
        best_epoch: the epoch that it belongs to, counted from 1; 0 before the first.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.best = inf
        self.best_epoch = 0
        self._epoch = 0

    def told(self, error: float) -> bool:
        """Take the error of the next epoch; True if it is the least so far.

        An error that is not finite is never the least, so diverged parameters are never kept.
        """
        self._epoch += 1
        better = isfinite(error) and error < self.best
        if better:
            self.best, self.best_epoch = error, self._epoch
        return better

    @property
    def ended(self) -> bool:
        """Whether training ends now."""
        return self._epoch - self.best_epoch >= self.patience
