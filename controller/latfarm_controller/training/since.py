"""Trains a model further: only what new rows touch is fitted again, all else is kept.

What is new is told by the revision of the rows (`data_revision`) that the parent was trained on, or
by a time. Families of kernels without new rows keep their fitted models, and so predict the same
bits. Three things rest on all rows together and are fitted again whenever anything has changed:
what the neighbours of a kernel change inside networks, the correction from sums of kernels to
networks with its intervals, and the baselines of the literature.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from latfarm_predictors.bundle import load_bundle, read_provenance

from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import Store
from latfarm_controller.training.bundles import SUFFIX, choose
from latfarm_controller.training.data_revision import DataRevision, RowChanges
from latfarm_controller.training.fit_bundle import ParentModel, TrainingInputs
from latfarm_controller.training.foreign_rows import ForeignNetworks, foreign_beside, sources_of
from latfarm_controller.training.frozen_set import frozen_set
from latfarm_controller.training.gather import (
    RowChoice,
    family_of_campaign,
    finished_before,
    gather,
)
from latfarm_controller.training.insight_trial import InsightWays, told_basis
from latfarm_controller.training.model_register import read_register
from latfarm_controller.training.training import check_here, read_inputs, started_from
from latfarm_controller.training.training_set import Basis, TrainingSet, recorded_basis

_AGE = re.compile(r"(\d+)([smhd])")
_AGE_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Length of the units of an age, in seconds."""


@dataclass(frozen=True)
class Since:
    """From when on rows are new.

    Attributes:
        path: the bundle of the parent.
        time_s: rows of campaigns that were finished then or later are new, Unix time in seconds;
            None: those that the parent was not trained on.
    """

    path: Path
    time_s: float | None = None


def read_since(bundles_dir: Path, platform: str, text: str, now_s: float | None = None) -> Since:
    """What `--since` means: a model's number, a revision, a time (ISO 8601), or an age such as 7d.

    With a time the parent is the model in use; else it is the model with that number or revision.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform.
        text: the value of the option.
        now_s: the present Unix time in seconds, from which ages count; None: that of the clock.

    Raises:
        UsageError: the platform has no bundle, or the text means nothing.
        StoreError: the register of the models cannot be read.
    """
    in_use = choose(bundles_dir, platform)
    if text.isdecimal():
        return Since(choose(bundles_dir, platform, text))
    models = read_register(in_use.parent).models
    same = [name for name, model in models.items() if text and model.data_revision == text]
    if same:
        return Since(in_use.with_name(f"{same[-1]}{SUFFIX}"))
    age = _AGE.fullmatch(text)
    if age is not None:
        present_s = time.time() if now_s is None else now_s
        return Since(in_use, present_s - float(age[1]) * _AGE_UNITS_S[age[2]])
    try:
        told = datetime.fromisoformat(text)
    except ValueError:
        known = ", ".join(m.data_revision for m in models.values() if m.data_revision) or "none"
        raise UsageError(
            f"--since {text}: give the number of a model, a revision (known: {known}), a time "
            "such as 2026-11-20T12:00, or an age such as 7d"
        ) from None
    # A time without a zone is one of UTC, as all times in bundles are.
    return Since(in_use, (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp())


def inputs_since(
    store: Store, bundles_dir: Path, platform: str, since: Since
) -> TrainingInputs | None:
    """What a further training needs; None if there are no new rows.

    Networks of other farms are those of the sources that the parent was trained with.

    Args:
        store: holds the measurements.
        bundles_dir: the folder of all bundles.
        platform: the platform.
        since: the parent, and from when on rows are new.

    Raises:
        UsageError: the parent's measurements, or those of its sources, are not in this store, or it
            does not tell on which rows it was trained and no time is given.
        BundleError: the parent's bundle is damaged.
        StoreError: the measurements cannot be read.
    """
    told = read_provenance(since.path)
    campaign = check_here(store, platform, str(told.get("campaign", "")))
    chain = family_of_campaign(store, platform, campaign)
    frozen = frozen_set(store, bundles_dir, platform)
    barred = frozenset() if frozen is None else frozen.hashes
    rows = RowChoice(chain, barred, load_bundle(since.path).slow_core)
    own = _own_basis(store, chain)
    basis = told_basis(told, campaign)
    chosen = None if basis == own else basis
    data = gather(store, platform, chain[0], chosen, rows)
    sources = sources_of(told)
    seen = _Seen(data, foreign_beside(store, data, sources, rows.barred), chosen, rows)
    changes = _changes(store, seen, since, DataRevision.told_by(told))
    if not changes:
        return None
    parent = ParentModel(since.path.stem, since.path, changes)
    seed = int(told.get("seed", 0))
    if changes.setting:
        whole = read_inputs(
            store,
            platform,
            chain[0],
            seed=seed,
            bundles_dir=bundles_dir,
            chain=chain,
            foreign=sources,
        )
        return replace(whole, parent=parent)
    return TrainingInputs(
        platform,
        chain[0],
        InsightWays(own, {own: data}, "as its parent"),
        started_from(store, chain),
        seed,
        parent,
        told.get("insight", {}).get("trial", {}),
        "" if frozen is None else frozen.name,
        seen.theirs,
    )


@dataclass(frozen=True)
class _Seen:
    """What there is to train from now.

    Attributes:
        data: what this farm measured.
        theirs: networks of other farms.
        basis: what the times of kernels rest on; None: what each campaign measured for.
        rows: which rows `data` is made of.
    """

    data: TrainingSet
    theirs: ForeignNetworks
    basis: Basis | None
    rows: RowChoice


def _changes(store: Store, seen: _Seen, since: Since, before: DataRevision | None) -> RowChanges:
    """What is new: since the parent's revision where it tells one, and since the time if given."""
    if before is None and since.time_s is None:
        raise UsageError(
            f"model {since.path.stem} does not tell on which rows it was trained, because an older "
            "version made it; give a time, as in --since 2026-11-20, or train without --since"
        )
    data, rows = seen.data, seen.rows
    now = DataRevision.of(seen.theirs.added_to(data))
    changes = RowChanges() if before is None else now.changed_since(before)
    if since.time_s is None:
        return changes
    older = finished_before(store, rows.chain, since.time_s)
    if rows.chain[-1] not in older:  # even the characterisation is new
        return changes | RowChanges(setting=True)
    old = gather(store, data.platform, older[0], seen.basis, replace(rows, chain=older))
    # Rows of other farms do not tell when they came, so they are old in this comparison.
    return changes | now.changed_since(DataRevision.of(seen.theirs.added_to(old)))


def _own_basis(store: Store, chain: tuple[str, ...]) -> Basis:
    """What the times of kernels rest on where no trial decided otherwise."""
    record = store.get_campaign(chain[-1])
    return recorded_basis({} if record is None else record.outcome)
