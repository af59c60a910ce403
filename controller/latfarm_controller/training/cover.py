"""Training from several campaigns: one that characterised a platform, and what added to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_controller.campaigns.cover import CoverCampaign
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import Store
from latfarm_controller.training.bundles import choose, next_path

if TYPE_CHECKING:
    from latfarm_controller.training.training import OnProgress
    from latfarm_controller.training.training_set import TrainingSet


def gather(store: Store, platform: str, campaign_id: str) -> TrainingSet:
    """What a campaign measured and, where it adds to an earlier one, what that one did.

    Rules, overhead and networks are the earliest's. A kernel that several measured has the samples
    of all: what lies between them tells how far the board drifted. Kernels measured under another
    fingerprint than the earliest's add nothing: they are of another platform.

    Raises:
        UsageError: no such campaign, or one of another platform or without rules.
    """
    from latfarm_controller.training.training_set import collect

    chain = bases(store, campaign_id)
    result = collect(store, platform, chain[-1])
    left_out = Counter(result.left_out)
    boards = set(result.board_ids)
    for added in reversed(chain[:-1]):
        more = collect(store, platform, added)
        left_out.update(more.left_out)
        if more.fingerprint != result.fingerprint:
            left_out["fingerprint"] += len(more.kernels)
            continue
        result.kernels += more.kernels
        boards |= set(more.board_ids)
    return replace(
        result,
        campaign_id=chain[0],
        board_ids=tuple(sorted(boards)),
        left_out=dict(sorted(left_out.items())),
    )


def bases(store: Store, campaign_id: str) -> list[str]:
    """A campaign, the one that it adds to, and so on; the last adds to none.

    Raises:
        UsageError: one of them is not in the store, or they go round in a circle.
    """
    chain = [campaign_id]
    while True:
        record = store.get_campaign(chain[-1])
        if record is None:
            raise UsageError(f"no campaign {chain[-1]!r}; `latfarm campaign list` names them")
        chain[-1] = record.campaign_id
        if record.kind != CoverCampaign.kind:
            return chain
        base = str(record.config["base"])
        if base in chain:
            raise UsageError(f"campaign {campaign_id!r} adds to itself")
        chain.append(base)


def retrain(
    config: ControllerConfig, store: Store, platform: str, *, on_progress: OnProgress | None = None
) -> Path:
    """Make a platform's bundle anew from the measurements that its newest was made from.

    Returns:
        The new bundle.

    Raises:
        UsageError: there is no bundle, or its measurements are not in this store.
        BundleError: it is damaged.
    """
    from latfarm_predictors.bundle import read_provenance

    from latfarm_controller.training.training import train

    told = read_provenance(choose(config.bundles_dir, platform))
    path = next_path(config.bundles_dir, platform)
    campaign = str(told.get("campaign", ""))
    if store.get_campaign(campaign) is None:
        raise UsageError(
            f"the newest bundle of {platform} was made elsewhere: its campaign "
            f"{campaign or '(not told)'} is not in {config.store_file}; "
            f"latfarm characterize --platform {platform} makes one here"
        )
    train(store, platform, campaign, path, seed=int(told.get("seed", 0)), on_progress=on_progress)
    return path
