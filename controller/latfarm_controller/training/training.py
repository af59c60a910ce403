"""Training: from the measurements in the store to a model in the register of its platform."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.bundle import read_provenance
from latfarm_predictors.errors import BundleError
from latfarm_predictors.files.bundle_state import DAMAGE, damage
from latfarm_predictors.gnn.shipping import ShippingDecision
from latfarm_predictors.predict.nnlp_corrector import NNLP_CORRECTED, NNLP_METHOD

from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import Store
from latfarm_controller.training.bundles import choose
from latfarm_controller.training.entering import EnteredModel, enter_model
from latfarm_controller.training.fit_bundle import OnProgress, TrainingInputs, fit_bundle
from latfarm_controller.training.foreign_rows import foreign_beside, sources_of
from latfarm_controller.training.frozen_set import frozen_set
from latfarm_controller.training.gather import RowChoice, bases, family_of_campaign
from latfarm_controller.training.insight_trial import gather_ways, told_basis
from latfarm_controller.training.new_bundle import numbered, unnumbered_bundle
from latfarm_controller.training.training_set import warn_of

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

    from latfarm_controller.training.training_set import Basis


def train(
    store: Store,
    platform: str,
    campaign_id: str,
    path: Path,
    *,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    pool_from: Path | None = None,
) -> PlatformPredictor:
    """Fit a predictor to a campaign, and to those it adds to, and save it as a bundle at `path`.

    Args:
        store: holds the measurements.
        platform: the platform.
        campaign_id: the campaign.
        path: file of the new bundle.
        seed: random seed of the fit.
        on_progress: called with each stage, and how far it is.
        pool_from: the folder of all bundles, whose scores may help to calibrate intervals, and
            whose frozen set is left out; None: there is neither.

    Returns:
        The predictor as loaded from its bundle.

    Raises:
        UsageError: as `gather`, or the campaign measured too little.
        StoreError: the measurements cannot be read, or the bundle cannot be written.
    """
    inputs = read_inputs(store, platform, campaign_id, seed=seed, bundles_dir=pool_from)
    return fit_bundle(inputs, path, on_progress, pool_from)


def read_inputs(
    store: Store,
    platform: str,
    campaign_id: str,
    *,
    seed: int = 0,
    bundles_dir: Path | None = None,
    chain: tuple[str, ...] = (),
    foreign: Sequence[str] = (),
) -> TrainingInputs:
    """Read from the store all that the fit of a bundle needs.

    Args:
        store: holds the measurements.
        platform: the platform.
        campaign_id: the campaign.
        seed: random seed of the fit.
        bundles_dir: the folder of all bundles. The platform's frozen set lies there and is left
            out; it is chosen now if there is none. None: no network is left out.
        chain: the campaigns to train from, see `RowChoice`; empty: those that `campaign_id` adds
            to.
        foreign: sources of other farms' measurements of networks that somebody asked to train
            with.

    Raises:
        UsageError: as `gather`, or a source measured no network on the platform.
        StoreError: the measurements cannot be read, or the frozen set cannot be read or written.
    """
    chain = chain or tuple(bases(store, campaign_id))
    kept = None if bundles_dir is None else _basis_in_use(bundles_dir, platform, chain)
    frozen = None if bundles_dir is None else frozen_set(store, bundles_dir, platform)
    barred = frozenset() if frozen is None else frozen.hashes
    ways = gather_ways(store, platform, campaign_id, RowChoice(chain, barred), kept)
    warn_of(ways.tried[ways.own])
    theirs = foreign_beside(store, ways.tried[ways.own], foreign, barred)
    return TrainingInputs(
        platform,
        campaign_id,
        ways,
        started_from(store, chain),
        seed,
        frozen_set="" if frozen is None else frozen.name,
        foreign=theirs,
    )


def _basis_in_use(bundles_dir: Path, platform: str, chain: Sequence[str]) -> Basis | None:
    """What times of kernels rest on in the bundle in use, if campaigns add to what it was made of.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform.
        chain: the campaigns to train from; a single one adds to none.
    """
    if len(chain) == 1:
        return None
    try:
        told = read_provenance(choose(bundles_dir, platform))
    except (UsageError, BundleError):  # there is no bundle, or it is damaged: this makes a new one
        return None
    campaign = told.get("campaign")
    return told_basis(told, str(campaign)) if campaign in chain else None


def started_from(store: Store, chain: tuple[str, ...]) -> dict[str, object]:
    """The sibling's bundle that a campaign started from, as its configuration tells it, if any."""
    for name in chain:
        record = store.get_campaign(name)
        if record is not None and record.config.get("started_from"):
            return {"started_from": record.config["started_from"]}
    return {}


def read_again(store: Store, bundles_dir: Path, platform: str) -> TrainingInputs:
    """Read what a platform's bundle in use was made from, to make it again.

    Networks of other farms are among them only if somebody asked for them when it was made. Graph
    networks are tried again if one of them answers.

    Args:
        store: holds the measurements.
        bundles_dir: the folder of all bundles.
        platform: the platform.

    Raises:
        UsageError: there is no bundle, or its measurements are not in this store.
        BundleError: the bundle in use is damaged.
        StoreError: the measurements cannot be read.
    """
    campaign, seed, chain = trained_from(store, bundles_dir, platform)
    told = read_provenance(choose(bundles_dir, platform))
    found = read_inputs(
        store,
        platform,
        campaign,
        seed=seed,
        bundles_dir=bundles_dir,
        chain=chain,
        foreign=sources_of(told),
    )
    return replace(found, nnlp=has_graph_network(told))


def has_graph_network(provenance: Mapping[str, Any]) -> bool:
    """Whether a graph network answers in a bundle with this provenance.

    Raises:
        BundleError: the decision about it is incomplete.
    """
    try:
        decision = ShippingDecision.from_json(provenance.get("corrector"))
    except DAMAGE as error:
        raise BundleError(
            f"the bundle's decision about a corrector is damaged: {damage(error)}"
        ) from error
    shipped = "" if decision is None or not decision.ship else decision.method
    return shipped in (NNLP_METHOD, NNLP_CORRECTED)


def trained_from(
    store: Store, bundles_dir: Path, platform: str, *, added: bool = False
) -> tuple[str, int, tuple[str, ...]]:
    """The campaign that the bundle in use was made from, the seed of its fit, and all campaigns.

    Args:
        store: holds the campaigns.
        bundles_dir: the folder of all bundles.
        platform: the platform.
        added: also those campaigns that were added since.

    Raises:
        UsageError: there is no bundle, or its measurements are not in this store.
        BundleError: the bundle in use is damaged.
    """
    told = read_provenance(choose(bundles_dir, platform))
    campaign = check_here(store, platform, str(told.get("campaign", "")))
    known = tuple(map(str, told.get("campaigns", ()))) or tuple(bases(store, campaign))
    chain = family_of_campaign(store, platform, campaign) if added else known
    return chain[0], int(told.get("seed", 0)), chain


def check_here(store: Store, platform: str, campaign: str) -> str:
    """The name of a bundle's campaign, if its measurements are in this store.

    Raises:
        UsageError: they are not.
    """
    if store.get_campaign(campaign) is None:
        raise UsageError(
            f"the bundle in use of {platform} was made elsewhere: its campaign "
            f"{campaign or '(not told)'} is not in this store; to make one here, run: "
            f"latfarm characterize --platform {platform}"
        )
    return campaign


def fit_model(
    bundles_dir: Path,
    inputs: TrainingInputs,
    *,
    promote: bool,
    on_progress: OnProgress | None = None,
) -> EnteredModel:
    """Fit a new model and enter it into the register of its platform.

    Args:
        bundles_dir: the folder of all bundles.
        inputs: what it is fitted to.
        promote: whether it is put in use, unless it predicts the frozen set worse.
        on_progress: called with each stage, and how far it is.

    Raises:
        UsageError, BundleError, StoreError: as `fit_bundle` and `enter_model`.
    """
    with unnumbered_bundle(bundles_dir, inputs.platform) as path:
        fit_bundle(inputs, path, on_progress, bundles_dir)
        kept = numbered(path)
    return enter_model(kept, promote=promote)
