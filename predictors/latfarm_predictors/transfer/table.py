"""The latencies of networks on platforms: what is known when a new board arrives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import TransferError
from latfarm_predictors.features.table import Array


def no_amounts() -> Array:
    """The default of `LatencyTable.amounts`: nothing is known about the networks."""
    return np.zeros((0, 0))


@dataclass(frozen=True)
class LatencyTable:
    """Latencies of P networks on n platforms. A row is a platform, a column is a network.

    Attributes:
        platforms: name of each row, n.
        boards: the physical board of each row, n. Rows of one board are its configurations, such
            as numbers of threads or runtimes.
        groups: what is left out together when boards are left out, n: the board, or what stands
            for all boards with the same chip.
        kinds: kind of each row, n, such as "cpu" and "gpu". Rows of another kind say little.
        networks: name of each column, P.
        latencies_ms: latencies in milliseconds, shape (n, P); NaN where nothing was measured.
        amounts: work of each network that adds up, shape (P, f), such as the number of its ops of
            each type; shape (0, 0) if none is known. A column of ones stands for a constant time.
    """

    platforms: tuple[str, ...]
    boards: tuple[str, ...]
    groups: tuple[str, ...]
    kinds: tuple[str, ...]
    networks: tuple[str, ...]
    latencies_ms: Array
    amounts: Array = field(default_factory=no_amounts)

    def __post_init__(self) -> None:
        """Check that all parts fit together.

        Raises:
            TransferError: a shape does not fit, a name is there twice, or a latency is not
                positive and finite.
        """
        rows, columns = len(self.platforms), len(self.networks)
        if any(len(names) != rows for names in (self.boards, self.groups, self.kinds)):
            raise TransferError("every platform needs a board, a group and a kind")
        if self.latencies_ms.shape != (rows, columns):
            raise TransferError(
                f"latencies of shape {self.latencies_ms.shape} do not fit {rows} platforms and "
                f"{columns} networks"
            )
        if self.amounts.size and len(self.amounts) != columns:
            raise TransferError(f"amounts of {len(self.amounts)} networks do not fit {columns}")
        if len(set(self.networks)) < columns or len(set(self.platforms)) < rows:
            raise TransferError("a platform or a network is there twice")
        known = self.latencies_ms[~np.isnan(self.latencies_ms)]
        if not (np.isfinite(known).all() and (known > 0).all()):
            raise TransferError("a latency is not positive and finite")
        if not np.isfinite(self.amounts).all():
            raise TransferError("an amount is not finite")

    def kept(self, rows: npt.NDArray[np.bool_]) -> LatencyTable:
        """The table with only some rows, given as a mask of shape (n,)."""
        places = np.flatnonzero(rows).tolist()

        def some(names: Sequence[str]) -> tuple[str, ...]:
            return tuple(names[place] for place in places)

        return LatencyTable(
            some(self.platforms),
            some(self.boards),
            some(self.groups),
            some(self.kinds),
            self.networks,
            self.latencies_ms[places],
            self.amounts,
        )

    def of_networks(self, columns: npt.NDArray[np.intp]) -> LatencyTable:
        """The table with only some networks, given by their places."""
        return LatencyTable(
            self.platforms,
            self.boards,
            self.groups,
            self.kinds,
            tuple(self.networks[place] for place in columns.tolist()),
            self.latencies_ms[:, columns],
            self.amounts[columns] if self.amounts.size else self.amounts,
        )

    def without_group(self, group: str) -> LatencyTable:
        """The table without the rows of a group."""
        return self.kept(np.array([name != group for name in self.groups], dtype=bool))


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """How rows of other boards become an expectation of a new one.

    `new_board.py` chooses among several by leaving boards out of the rows. The defaults are those
    that were chosen most often on ncnn's boards (`make bench-new-board`).

    Attributes:
        ratio: deviations of boards are shares of the typical latency, so that costs add up;
            otherwise they are differences of logarithms, which suits networks of very different
            sizes.
        prior_rows: how many rows the expectation of independent deviations counts for.
        own_sigma: relative deviation of one network that no other network tells about.
        noise: relative spread of a measurement.
        other_kind: weight of rows of other kinds; rows of the same kind count 1.
        likeness: distance at which a board still counts as alike, in spreads of the boards; 0: how
            much boards are alike is ignored.
        likeness_noise: share of a correction by alike boards that is taken as chance.
        rest: weight of deviations that the amounts do not explain, 0 to 1.
        amounts: relative spread, from board to board, of the time that one amount stands for.
    """

    ratio: bool = False
    prior_rows: float = 5.0
    own_sigma: float = 0.14
    noise: float = 0.06
    other_kind: float = 0.02
    likeness: float = 0.3
    likeness_noise: float = 0.2
    rest: float = 1.0
    amounts: float = 0.2


@dataclass(frozen=True, slots=True)
class Transferred:
    """Latencies that other boards tell about a new one; all arrays have shape (P,).

    Attributes:
        log_ms: logarithms of the latencies in milliseconds; NaN where nothing is known.
        sigma: their standard deviations before they are calibrated.
    """

    log_ms: Array
    sigma: Array
