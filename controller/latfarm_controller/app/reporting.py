"""Store and bundles -> what a platform's report tells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latfarm_predictors.errors import BundleError
from latfarm_predictors.measurement import Measurement

from latfarm_controller.campaigns.cover import CoverCampaign
from latfarm_controller.campaigns.slow_core import SlowCore
from latfarm_controller.errors import UsageError
from latfarm_controller.reports.facts.platform_record import (
    PlatformRecord,
    by_purpose,
    networks_of,
    newest_campaign,
    unseen_networks,
)
from latfarm_controller.reports.platform_report import platform_facts
from latfarm_controller.reports.report_cache import ReportCache
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training import bundles
from latfarm_controller.training.gather import bases, gather
from latfarm_controller.training.training_set import TrainingSet


def report(
    store: Store,
    bundles_dir: Path,
    platform: str,
    campaign: str = "",
    kept: ReportCache | None = None,
) -> dict[str, Any]:
    """All facts of a platform's report, as plain JSON types; see `reports.platform_report`.

    Blocks for seconds: baselines are fitted anew, without what they are judged on. What was told
    before is told again where neither measurements nor bundle have changed since.

    Args:
        store: where measurements are.
        bundles_dir: where bundles are.
        platform: whose report.
        campaign: id or name of the campaign to tell of; the newest characterisation where empty.
        kept: where facts are kept; nowhere if None.

    Raises:
        UsageError: nothing at all is known of the platform, or it has no such campaign.
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
        # as of before they were gathered: what came meanwhile makes the next report a new one
        kept.put(platform, campaign, inputs, facts)
    return facts


def _inputs(store: Store, bundles_dir: Path, platform: str) -> str:
    """Changes with anything that the platform's report is made of."""
    path = bundles.newest(bundles_dir).get(platform)
    bundle = "" if path is None else f"{path.name} {bundles.digest(path)}"
    return f"{store.revision(platform)} {bundle}"


def _facts(store: Store, bundles_dir: Path, platform: str, campaign: str) -> dict[str, Any]:
    # Many small fits: a thread for every core of a busy host would only wait for the others.
    import lightgbm  # noqa: F401 - limits only reach libraries that are loaded
    import scipy.linalg  # noqa: F401
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    found = record(store, bundles_dir, platform, campaign)
    with threadpool_limits(1):
        return platform_facts(found)


def record(store: Store, bundles_dir: Path, platform: str, campaign: str = "") -> PlatformRecord:
    """What store and bundles hold of a platform; errors as `report`.

    A bundle that cannot be read, or a campaign that gives nothing to learn from, is told and not an
    error: a report of failures alone is a report.
    """
    told: list[str] = []
    path = bundles.newest(bundles_dir).get(platform)
    predictor, provenance = _bundle(path, told)
    chain = _chain(store, platform, campaign, str(provenance.get("campaign", "")))
    if campaign and not chain:
        raise UsageError(f"no campaign {campaign!r} of {platform}; `latfarm campaign list`")
    if not chain and path is None:
        others = sorted({c.platform for c in store.campaigns()} | set(bundles.newest(bundles_dir)))
        raise UsageError(
            f"nothing is known of platform {platform!r}; known: {', '.join(others) or 'none yet'}; "
            f"latfarm characterize --platform {platform} begins"
        )
    measured: dict[str, list[Measurement]] = {}
    for each in reversed(chain):
        for purpose, answers in by_purpose(store, each.campaign_id).items():
            measured.setdefault(purpose, []).extend(answers)
    data = _training(store, platform, chain, told)
    made_from = str(provenance.get("campaign", ""))
    if chain and made_from and made_from != chain[0].campaign_id:
        named = chain[0].name
        told.append(f"The newest bundle was made from campaign {made_from}, not from {named}.")
    slow_core = data.slow_core if data else SlowCore.from_json(provenance.get("slow_core"))
    networks = [slow_core.settled(m) for m in measured.get("network", ())]
    calibration = networks_of(store, networks)
    fingerprint = str(provenance.get("fingerprint", "")) or (data.fingerprint if data else "")
    return PlatformRecord(
        platform=platform,
        campaign=chain[-1] if chain else None,
        predictor=predictor,
        provenance=provenance,
        rules=data.rules if data else getattr(predictor, "rules", None),
        kernels=data.kernels if data else (),
        calibration=calibration,
        unseen=unseen_networks(store, platform, calibration, fingerprint, slow_core),
        measured=measured,
        call_overhead_ms=data.call_overhead_ms if data else 0.0,
        transfer_ms_per_mb=data.transfer_ms_per_mb if data else 0.0,
        left_out=data.left_out if data else {},
        told=told,
    )


def _chain(store: Store, platform: str, campaign: str, made_from: str) -> list[CampaignRecord]:
    """The campaign that is asked for, and those that it adds to; the characterisation is last.

    Without one asked for it is what the bundle was made from, else the newest characterisation.
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
    store: Store, platform: str, chain: Sequence[CampaignRecord], told: list[str]
) -> TrainingSet | None:
    """What the campaigns give to learn from; None, and a story, where that is nothing."""
    if not chain:
        told.append("No campaign of this platform is stored: the bundle came from elsewhere.")
        return None
    for each in chain:
        if each.state != "done":
            reason = f": {each.error}" if each.error else ""
            told.append(f"Campaign {each.name} is {each.state}{reason}")
    try:
        return gather(store, platform, chain[0].campaign_id)
    except UsageError as error:
        told.append(str(error))
        return None


def _bundle(path: Path | None, told: list[str]) -> tuple[Any, dict[str, Any]]:
    """The newest predictor and its provenance; (None, {}) and a story where there is none."""
    if path is None:
        told.append("There is no predictor yet: the report tells what was measured.")
        return None, {}
    from latfarm_predictors.bundle import read_provenance

    try:
        return bundles.load(path), read_provenance(path)
    except BundleError as error:
        told.append(f"The newest bundle cannot be read: {error}")
        return None, {}
