"""Who is trained on, who ends training, who calibrates, and who judges: fixed before any fit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latfarm_predictors.features.table import Rows


@dataclass(frozen=True)
class FoldShares:
    """Rows of three disjoint parts of a training fold.

    Attributes:
        train: rows that parameters are fitted to.
        validation: rows that decide when training ends.
        calibration: rows that intervals rest on; neither of the others is among them.
    """

    train: Rows
    validation: Rows
    calibration: Rows


def shares_of(names: Sequence[str], validation: float, calibration: float, seed: int) -> FoldShares:
    """Split rows by a hash of their names, so that equal names are always in the same part.

    The part of a network does not change when other networks come or go. A part that should not be
    empty gets at least one row, as far as there are two names for each part. With fewer names the
    training part comes first: it has at least one name, at the cost of the larger other part.

    Args:
        names: what tells networks apart, such as their hashes; siblings have the same name.
        validation: share of the networks that decides when training ends.
        calibration: share of the networks that calibrates intervals.
        seed: random seed of the split.
    """
    order = sorted(dict.fromkeys(names), key=lambda name: _place(name, seed))
    count = len(order)
    wanted = [round(share * count) for share in (validation, calibration)]
    for index, share in enumerate((validation, calibration)):
        if share > 0 and count >= 6:
            wanted[index] = max(wanted[index], 1)
    while count and sum(wanted) >= count:
        wanted[wanted.index(max(wanted))] -= 1
    first, second = wanted[0], wanted[0] + wanted[1]
    part = {name: (0 if at < first else 1 if at < second else 2) for at, name in enumerate(order)}
    of_row = np.array([part[name] for name in names], dtype=np.intp)
    return FoldShares(*(np.flatnonzero(of_row == number) for number in (2, 0, 1)))


def leave_one_out(groups: Sequence[str]) -> dict[str, tuple[Rows, Rows]]:
    """For each group, the rows of all others and its own rows, in the order of first occurrence.

    Groups are families of networks, or physical boards with all their runs and thread counts.
    """
    of_row = np.array(groups, dtype=object)
    return {
        name: (np.flatnonzero(of_row != name), np.flatnonzero(of_row == name))
        for name in dict.fromkeys(groups)
    }


def _place(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(), digest_size=16).digest()
