"""Boards are left out in turn, to choose settings and to see how far off a transfer is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import NotEnoughDataError
from latfarm_predictors.features.table import Array
from latfarm_predictors.transfer.model import LEAST_PROBES, TransferModel
from latfarm_predictors.transfer.siblings import averaged, relative_table
from latfarm_predictors.transfer.table import LatencyTable, Transferred, TransferSettings

WORST_ERROR = 0.5
"""Largest error of a logarithm that counts when settings are compared: one odd board must not
decide."""
LEAST_OTHERS = 3
"""Smallest number of networks beside the probes with which a left-out platform is judged."""


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """How boards are left out.

    Attributes:
        probes: number of probes of a left-out platform.
        folds: number of parts into which the groups of boards are divided.
        seed: of the division.
        siblings: whether the other configurations of a left-out board are known.
    """

    probes: int = 10
    folds: int = 5
    seed: int = 0
    siblings: bool = False


class LeftOut(NamedTuple):
    """What was predicted for one platform that was left out.

    Attributes:
        platform: its name.
        probes: places of the probes among the networks, shape (k,).
        judged: places of the networks that were judged, shape (m,).
        log_ms: logarithms of their predictions in milliseconds, shape (m,).
        errors: errors of the logarithms, shape (m,).
        sigma: their standard deviations before calibration, shape (m,).
    """

    platform: str
    probes: npt.NDArray[np.intp]
    judged: npt.NDArray[np.intp]
    log_ms: Array
    errors: Array
    sigma: Array


@dataclass(frozen=True)
class Models:
    """The models of one kind of platform.

    Attributes:
        alone: predicts from probes.
        relative: predicts ratios of configurations of one board; None if there are too few.
    """

    alone: TransferModel
    relative: TransferModel | None

    @staticmethod
    def fit(
        table: LatencyTable, kind: str, settings: TransferSettings, *, siblings: bool
    ) -> Models:
        """Fit them to the rows of other boards.

        Raises:
            NotEnoughDataError: there are too few rows of that kind.
        """
        relative = None
        if siblings:
            # Alike boards tell nothing about ratios, and amounts do not add up in them.
            plain = TransferSettings(likeness=0.0, other_kind=settings.other_kind)
            try:
                relative = TransferModel.fit(relative_table(table), kind, plain)
            except NotEnoughDataError:
                relative = None
        return Models(TransferModel.fit(table, kind, settings), relative)

    def plan(
        self, count: int, candidates: npt.NDArray[np.bool_] | None, configurations: Array
    ) -> list[int]:
        """The probes; see `TransferModel.plan`. `configurations` is as in `predict`."""
        if self.relative is None or not len(configurations):
            return self.alone.plan(count, candidates)
        shared = np.asarray((~np.isnan(configurations)).any(axis=0))
        allowed = shared if candidates is None else shared & candidates
        chosen = self.relative.plan(count, allowed)
        if len(chosen) < count:
            left = self.alone.known if candidates is None else candidates.copy()
            left[chosen] = False
            chosen += self.alone.plan(count - len(chosen), left)
        return chosen

    def predict(
        self, probes: npt.NDArray[np.intp], latencies_ms: Array, configurations: Array
    ) -> Transferred:
        """All networks, shape (P,).

        Args:
            probes: places of the probes, shape (k,).
            latencies_ms: their latencies in milliseconds, shape (k,).
            configurations: latencies of other configurations of the board in milliseconds, shape
                (c, P); NaN where nothing was measured.

        Raises:
            NotEnoughDataError: there are too few probes.
        """
        found = [self.alone.predict(probes, latencies_ms)]
        for row in configurations if self.relative is not None else ():
            assert self.relative is not None
            shared = ~np.isnan(row[probes]) & self.relative.known[probes]
            if shared.sum() >= LEAST_PROBES:
                some = probes[shared]
                ratio = self.relative.predict(some, latencies_ms[shared] / row[some])
                found.append(Transferred(ratio.log_ms + np.log(row), ratio.sigma))
        return averaged(found)


def left_out(
    table: LatencyTable, kind: str, settings: TransferSettings, how: LeaveOut
) -> Iterator[LeftOut]:
    """Predict each platform of a kind from probes, as if its group of boards were not known.

    Platforms with too few networks, or without other configurations where these shall be known,
    are passed over.
    """
    for fold in folds(table, kind, how):
        others = table.kept(np.array([name not in fold for name in table.groups], dtype=bool))
        try:
            models = Models.fit(others, kind, settings, siblings=how.siblings)
        except NotEnoughDataError:
            continue
        for row, (group, its_kind) in enumerate(zip(table.groups, table.kinds, strict=True)):
            if group in fold and its_kind == kind:
                judged = judge(table, row, models, how)
                if judged is not None:
                    yield judged


def judge(
    table: LatencyTable,
    row: int,
    models: Models,
    how: LeaveOut,
    candidates: npt.NDArray[np.bool_] | None = None,
) -> LeftOut | None:
    """Predict one row of a table from probes; None if it has too few networks.

    Args:
        table: with the row.
        row: its place.
        models: fitted to rows of other boards.
        how: the number of probes, and whether other configurations of the board are known.
        candidates: which networks may be probes, shape (P,); None: all.
    """
    truth = table.latencies_ms[row]
    others = configurations_of(table, row) if how.siblings else table.latencies_ms[:0]
    if how.siblings and not len(others):
        return None
    measured = ~np.isnan(truth)
    allowed = measured if candidates is None else measured & candidates
    probes = np.array(models.plan(how.probes, allowed, others), dtype=np.intp)
    if len(probes) < LEAST_PROBES:
        return None
    found = models.predict(probes, truth[probes], others)
    measured[probes] = False
    judged = np.flatnonzero(measured & ~np.isnan(found.log_ms))
    if len(judged) < LEAST_OTHERS:
        return None
    log_ms = found.log_ms[judged]
    errors = log_ms - np.log(truth[judged])
    return LeftOut(table.platforms[row], probes, judged, log_ms, errors, found.sigma[judged])


def configurations_of(table: LatencyTable, row: int) -> Array:
    """Latencies of the other configurations of a row's board, of the same kind, shape (c, P)."""
    key = (table.boards[row], table.kinds[row])
    keys = zip(table.boards, table.kinds, strict=True)
    return table.latencies_ms[[p for p, other in enumerate(keys) if other == key and p != row]]


def folds(table: LatencyTable, kind: str, how: LeaveOut) -> list[set[str]]:
    """The groups of boards in parts of about equal size, each left out once."""
    groups = sorted({g for g, k in zip(table.groups, table.kinds, strict=True) if k == kind})
    shuffled = np.random.default_rng(how.seed).permutation(len(groups)).tolist()
    parts = max(1, min(how.folds, len(groups)))
    return [{groups[place] for place in shuffled[part::parts]} for part in range(parts)]


def loss(found: Sequence[LeftOut]) -> float:
    """Mean over platforms of the mean absolute error of the logarithm; infinite without any."""
    if not found:
        return float("inf")
    means = [np.minimum(np.abs(each.errors), WORST_ERROR).mean() for each in found]
    return float(np.mean(means))


def scores(found: Sequence[LeftOut]) -> Array:
    """Conformal scores |error| / sigma of all networks of all platforms, shape (m,)."""
    if not found:
        return np.zeros(0)
    return np.concatenate([np.abs(each.errors) / each.sigma for each in found])
