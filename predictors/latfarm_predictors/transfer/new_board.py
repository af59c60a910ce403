"""A predictor of a new board from few probes, with intervals whose coverage was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import TransferError
from latfarm_predictors.features.table import Array
from latfarm_predictors.intervals import widened_quantile
from latfarm_predictors.transfer.left_out import LeaveOut, Models, left_out, loss, scores
from latfarm_predictors.transfer.table import LatencyTable, TransferSettings

SETTINGS = tuple(
    TransferSettings(prior_rows=rows, own_sigma=own, other_kind=other, likeness=likeness)
    for rows, own, other, likeness in (
        (5.0, 0.14, 0.02, 0.3),
        (5.0, 0.14, 0.3, 0.3),
        (15.0, 0.14, 0.3, 0.3),
        (5.0, 0.14, 0.02, 0.0),
    )
)
"""The settings to choose from where nothing is known about the networks."""
SETTINGS_OF_AMOUNTS = tuple(
    TransferSettings(
        ratio=True,
        prior_rows=1.0,
        own_sigma=0.02,
        noise=noise,
        other_kind=1.0,
        likeness=0.0,
        rest=rest,
    )
    for noise, rest in product((0.05, 0.1), (0.0, 0.3))
)
"""The settings to choose from where amounts of work are known."""


WITH_SIBLINGS = LeaveOut(siblings=True)
"""The default: five parts, and other configurations of a board may be known."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How a predictor of new boards is fitted.

    Attributes:
        how: how boards are left out, to choose the settings and to calibrate intervals. Its
            `siblings` says whether other configurations of a board may be known.
        settings: to choose from; empty: `SETTINGS`, or `SETTINGS_OF_AMOUNTS` where amounts are
            known.
    """

    how: LeaveOut = WITH_SIBLINGS
    settings: tuple[TransferSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class BoardAnswers:
    """The latencies of all P networks of a table on a new board; arrays have shape (P,).

    Attributes:
        networks: names of the networks.
        latency_ms: as measured for probes, as predicted for others; NaN where nothing is known.
        low_ms: lower ends of the intervals.
        high_ms: upper ends of the intervals.
        measured: which are probes.
        calibrated: whether enough boards were left out to promise the coverage.
    """

    networks: tuple[str, ...]
    latency_ms: Array
    low_ms: Array
    high_ms: Array
    measured: npt.NDArray[np.bool_]
    calibrated: bool


@dataclass(frozen=True)
class NewBoard:
    """Predicts platforms of new boards of one kind; make one with `fit`.

    It is a pure function of the rows and options, and may be used by several threads.

    Attributes:
        table: the rows of other boards.
        settings: those that erred least when boards were left out.
        models: fitted with them.
        scores: conformal scores of platforms that were left out.
        sibling_scores: the same where other configurations of their boards were known.
    """

    table: LatencyTable
    settings: TransferSettings
    models: Models
    scores: Array
    sibling_scores: Array

    @staticmethod
    def fit(table: LatencyTable, kind: str, options: TransferOptions | None = None) -> NewBoard:
        """Learn from other boards, and measure on them how far off a transfer is.

        Args:
            table: the rows of other boards.
            kind: of the platforms to predict, such as "cpu".
            options: how to fit; None: the defaults.

        Raises:
            NotEnoughDataError: there are too few rows of that kind.
        """
        options = options or TransferOptions()
        alone = replace(options.how, siblings=False)
        choices = options.settings or (SETTINGS_OF_AMOUNTS if table.amounts.size else SETTINGS)
        tried = [list(left_out(table, kind, each, alone)) for each in choices]
        best = min(range(len(choices)), key=lambda place: loss(tried[place]))
        siblings = _sibling_scores(table, kind, choices[best], options.how)
        models = Models.fit(table, kind, choices[best], siblings=options.how.siblings)
        return NewBoard(table, choices[best], models, scores(tried[best]), siblings)

    def plan(
        self,
        count: int = 10,
        candidates: Sequence[str] | None = None,
        configurations: Array | None = None,
    ) -> list[str]:
        """The networks to measure on the new board, the most telling one first.

        Args:
            count: number of probes.
            candidates: which networks may be probes; None: all of the table.
            configurations: as for `predict`.

        Raises:
            TransferError: a candidate is not in the table.
        """
        allowed = None
        if candidates is not None:
            allowed = np.zeros(len(self.table.networks), dtype=bool)
            allowed[self._places(candidates)] = True
        others = self._none() if configurations is None else configurations
        return [self.table.networks[p] for p in self.models.plan(count, allowed, others)]

    def predict(
        self,
        probes_ms: Mapping[str, float],
        coverage: float = 0.9,
        configurations: Array | None = None,
    ) -> BoardAnswers:
        """The latencies of all networks of the table on the new board.

        Args:
            probes_ms: measured latencies in milliseconds by network. Any network of the table may
                be one, planned or not.
            coverage: share of cases in which the latency shall lie in the interval.
            configurations: latencies of other configurations of the board in milliseconds, shape
                (c, P); NaN where nothing was measured.

        Raises:
            TransferError: a probe is not in the table, or its latency is not positive.
            NotEnoughDataError: there are too few probes.
        """
        places = self._places(list(probes_ms))
        measured_ms = np.array(list(probes_ms.values()), dtype=np.float64)
        if not (np.isfinite(measured_ms).all() and (measured_ms > 0).all()):
            raise TransferError("the latency of a probe is not positive and finite")
        others = self._none() if configurations is None else configurations
        found = self.models.predict(places, measured_ms, others)
        known = self.sibling_scores if len(others) and len(self.sibling_scores) else self.scores
        factor, enough = widened_quantile(known, coverage)
        latency = np.exp(found.log_ms)
        reach = np.exp(factor * found.sigma)
        low, high = latency / reach, latency * reach
        measured = np.zeros(len(latency), dtype=bool)
        measured[places] = True
        for values in (latency, low, high):
            values[places] = measured_ms
        return BoardAnswers(self.table.networks, latency, low, high, measured, enough)

    def _none(self) -> Array:
        """No other configurations of the board."""
        return np.zeros((0, len(self.table.networks)))

    def _places(self, names: Sequence[str]) -> npt.NDArray[np.intp]:
        places = {name: place for place, name in enumerate(self.table.networks)}
        unknown = [name for name in names if name not in places]
        if unknown:
            raise TransferError(f"no other board has measured {unknown[0]}; choose another probe")
        return np.array([places[name] for name in names], dtype=np.intp)


def _sibling_scores(
    table: LatencyTable, kind: str, settings: TransferSettings, how: LeaveOut
) -> Array:
    """Scores with known configurations; none where no board has two of them."""
    pairs = set(zip(table.boards, table.kinds, strict=True))
    if not how.siblings or len(pairs) == len(table.boards):
        return np.zeros(0)
    return scores(list(left_out(table, kind, settings, how)))
