"""The facts of a platform's report, read from the store and the bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latfarm_predictors.errors import BundleError
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.campaigns.cover import CoverCampaign
from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.campaigns.kinds import TRAINED
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.reports.facts.platform_record import (
    PlatformRecord,
    by_purpose,
    networks_of,
    newest_campaign,
    newest_fusion_run,
    refused_networks,
    seen_hashes,
    unseen_networks,
)
from latfarm_controller.reports.platform_report import platform_facts
from latfarm_controller.reports.report_cache import ReportCache
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training import bundles
from latfarm_controller.training.bundle_notes import BundleNotes
from latfarm_controller.training.gather import ALL_ROWS, RowChoice, bases, gather
from latfarm_controller.training.insight_trial import told_basis
from latfarm_controller.training.training_set import TrainingSet


def report(
    store: Store,
    bundles_dir: Path,
    platform: str,
    campaign: str = "",
    kept: ReportCache | None = None,
) -> dict[str, Any]:
    """All facts of a platform's report, as plain JSON types; see `reports.platform_report`.

    This blocks for seconds, because baselines are fitted without the networks that judge them.
    Facts that were reported before are used again as long as neither measurements nor bundle have
    changed.

    Args:
        store: holds the measurements.
        bundles_dir: the folder of all bundles.
        platform: the platform to report on.
        campaign: id or name of the campaign to report on; empty: the newest characterisation.
        kept: keeps facts that were reported before; None: they are not kept.

    Raises:
        UsageError: nothing is known about the platform, or it has no such campaign.
        StoreError: the measurements cannot be read.
    """
    inputs = ""
    if kept is not None:
        inputs = _inputs(store, bundles_dir, platform)
        told = kept.get(platform, campaign, inputs)
        if told is not None:
            return told
    facts = _facts(store, bundles_dir, platform, campaign)
    if kept is not None:
        # `inputs` was read before the facts: if something has changed meanwhile, the next report
        # gathers its facts again.
        kept.put(platform, campaign, inputs, facts)
    return facts


def _inputs(store: Store, bundles_dir: Path, platform: str) -> str:
    """A text that changes whenever the measurements or the bundle of the platform change."""
    path = bundles.promoted(bundles_dir).get(platform)
    bundle = "" if path is None else f"{path.name} {bundles.digest(path)}"
    return f"{store.revision(platform)} {bundle}"


def _facts(store: Store, bundles_dir: Path, platform: str, campaign: str) -> dict[str, Any]:
    # A platform that is not known is refused before anything is loaded or fitted.
    found = record(store, bundles_dir, platform, campaign)
    # There are many small fits: more threads would wait for each other on a busy host.
    # Both libraries are imported first, because the limit only reaches libraries that are loaded.
    import lightgbm  # noqa: F401
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):
        return platform_facts(found)


def record(store: Store, bundles_dir: Path, platform: str, campaign: str = "") -> PlatformRecord:
    """What the store and the bundles hold about a platform.

    A bundle that cannot be read, or a campaign that gives nothing to learn from, is not an error:
    the report says so.

    Raises:
        UsageError: nothing is known about the platform, or it has no such campaign.
        StoreError: the measurements cannot be read.
    """
    told: list[str] = []
    path = bundles.promoted(bundles_dir).get(platform)
    predictor, provenance = _bundle(path, told)
    chain = _chain(store, platform, campaign, str(provenance.get("campaign", "")))
    if campaign and not chain:
        raise UsageError(
            f"there is no campaign {campaign!r} of {platform}; `latfarm campaign list` names "
            "them all"
        )
    if not chain and path is None:
        others = _known_platforms(store, bundles_dir)
        raise UsageError(
            f"nothing is known about platform {platform!r}; known platforms: "
            f"{', '.join(others) or 'none yet'}{hint(platform, others)}; latfarm platforms lists "
            "those that boards offer, and latfarm characterize measures one of them"
        )
    measured: dict[str, list[Measurement]] = {}
    for each in reversed(chain):
        for purpose, answers in by_purpose(store, each.campaign_id).items():
            measured.setdefault(purpose, []).extend(answers)
    data = _training(store, platform, chain, told, provenance)
    made_from = str(provenance.get("campaign", ""))
    if chain and made_from and made_from != chain[0].campaign_id:
        named = chain[0].name
        told.append(f"The bundle in use was made from campaign {made_from}, not from {named}.")
    slow_core = data.slow_core if data else SlowCore.from_json(provenance.get("slow_core"))
    notes = BundleNotes(slow_core, HostNoise.from_json(provenance.get("host_noise")))
    networks = [slow_core.settled(m) for m in measured.get("network", ())]
    calibration = networks_of(store, networks)
    fingerprint = str(provenance.get("fingerprint", "")) or (data.fingerprint if data else "")
    taught = {made_from, *map(str, provenance.get("campaigns", ()))} - {""}
    on_show = {each.campaign_id for each in chain if each.kind in TRAINED}
    seen = seen_hashes(store, sorted(taught | on_show), provenance)
    return PlatformRecord(
        platform=platform,
        campaign=chain[-1] if chain else None,
        predictor=predictor,
        provenance=provenance,
        rules=data.rules if data else getattr(predictor, "rules", None),
        fusion_run=newest_fusion_run(store, platform),
        kernels=data.kernels if data else (),
        calibration=calibration,
        unseen=unseen_networks(store, platform, seen, fingerprint, notes),
        refused=refused_networks(store, platform),
        measured=measured,
        call_overhead_ms=data.call_overhead_ms if data else 0.0,
        transfer_ms_per_mb=data.transfer_ms_per_mb if data else 0.0,
        left_out=data.left_out if data else {},
        told=told,
    )


def _known_platforms(store: Store, bundles_dir: Path) -> list[str]:
    """The platforms that have a campaign or a bundle, in alphabetical order."""
    measured = {campaign.platform for campaign in store.campaigns(brief=True)}
    return sorted(measured | set(bundles.newest(bundles_dir)))


def _chain(store: Store, platform: str, campaign: str, made_from: str) -> list[CampaignRecord]:
    """The campaign to report on and those that it adds to; the characterisation comes last.

    If no campaign is asked for, it is the one that the bundle was made from, else the newest
    characterisation.

    Args:
        store: holds the campaigns.
        platform: the platform to report on.
        campaign: id or name of the campaign that is asked for; empty: none.
        made_from: id of the campaign that the bundle in use was made from; empty: none.
    """
    known = newest_campaign(store, platform, campaign or made_from)
    if known is None and not campaign:
        known = newest_campaign(store, platform)
    if known is None:
        return []
    if known.state != "done" or known.kind != CoverCampaign.kind:
        return [known]
    found = [store.get_campaign(each) for each in bases(store, known.campaign_id)]
    return [each for each in found if each is not None]


def _training(
    store: Store,
    platform: str,
    chain: Sequence[CampaignRecord],
    told: list[str],
    provenance: Mapping[str, Any],
) -> TrainingSet | None:
    """What a predictor can learn from the campaigns; None, with a note in `told`, if nothing.

    The times of kernels are those that the bundle in use was fitted to, if it was made from these
    campaigns.
    """
    if not chain:
        told.append(
            "The store has no campaign of this platform, because the bundle was made elsewhere."
        )
        return None
    for each in chain:
        if each.state != "done":
            reason = f": {each.error}" if each.error else ""
            told.append(f"Campaign {each.name} is {each.state}{reason}.")
    try:
        campaign_id = chain[0].campaign_id
        rows = ALL_ROWS
        if provenance.get("campaign") == campaign_id:
            rows = RowChoice(tuple(map(str, provenance.get("campaigns", ()))))
        return gather(store, platform, campaign_id, told_basis(provenance, campaign_id), rows)
    except UsageError as error:
        told.append(str(error))
        return None


def _bundle(path: Path | None, told: list[str]) -> tuple[Any, dict[str, Any]]:
    """The predictor in use and its provenance; (None, {}), with a note in `told`, if none."""
    if path is None:
        told.append("There is no predictor yet, so the report only shows what was measured.")
        return None, {}
    from latfarm_predictors.bundle import read_provenance

    try:
        return bundles.load(path), read_provenance(path)
    except BundleError as error:
        told.append(f"The bundle in use cannot be read: {error}")
        return None, {}
