"""The training set of several campaigns: one that characterised a platform, and its additions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.campaigns.cover import CoverCampaign
from latfarm_controller.campaigns.slow_core import felt
from latfarm_controller.errors import UsageError
from latfarm_controller.store.base import Store
from latfarm_controller.training.campaign_measurements import learned_from
from latfarm_controller.training.training_set import Basis, TrainingSet, collect


@dataclass(frozen=True)
class RowChoice:
    """Which rows a training set is made of, and how they are read.

    Attributes:
        chain: ids of the campaigns, the newest first; the last one characterised the platform.
            Empty: a campaign, and those that it adds to.
        barred: hashes of networks that are left out, because they judge models.
        slow_core: the correction for a slow core; None: it is learned from the rows.
    """

    chain: tuple[str, ...] = ()
    barred: frozenset[str] = frozenset()
    slow_core: SlowCore | None = None


ALL_ROWS = RowChoice()
"""All rows of a campaign and of those that it adds to."""


def gather(
    store: Store,
    platform: str,
    campaign_id: str,
    basis: Basis | None = None,
    rows: RowChoice = ALL_ROWS,
) -> TrainingSet:
    """The training set of a campaign and of the earlier campaigns that it adds to.

    Fusion rules, overhead and networks are those of the earliest campaign. A kernel that several
    campaigns measured has the samples of all: the differences between them show how far the board
    drifted. Kernels that were measured under another fingerprint than the earliest campaign's are
    left out, because they belong to another platform. The correction for a slow core is learned
    from all of them together, so that their latencies have one unit.

    Args:
        store: holds the measurements.
        platform: the platform that was measured.
        campaign_id: the campaign.
        basis: what the times of kernels rest on; None: what each campaign measured for.
        rows: which campaigns and networks are read.

    Raises:
        UsageError: there is no such campaign, it is of another platform, or it has no fusion rules.
    """
    chain = rows.chain or tuple(bases(store, campaign_id))
    slow_core = rows.slow_core
    if slow_core is None:
        slow_core = felt(m for name in chain for m in learned_from(store, name))
    result = collect(store, platform, chain[-1], basis, slow_core, rows.barred)
    left_out = Counter(result.left_out)
    boards = set(result.board_ids)
    for added in reversed(chain[:-1]):
        more = collect(store, platform, added, basis, slow_core, rows.barred)
        left_out.update(more.left_out)
        if more.fingerprint != result.fingerprint:
            left_out["fingerprint"] += len(more.kernels)
            continue
        result.kernels += more.kernels
        boards |= set(more.board_ids)
    return replace(
        result,
        campaign_id=chain[0],
        campaigns=tuple(chain),
        board_ids=tuple(sorted(boards)),
        left_out=dict(sorted(left_out.items())),
    )


def bases(store: Store, campaign_id: str) -> list[str]:
    """The ids of a campaign, of the one that it adds to, and so on; the last adds to none.

    Raises:
        UsageError: one of them is not in the store, or a campaign adds to itself.
    """
    chain = [campaign_id]
    while True:
        record = store.get_campaign(chain[-1])
        if record is None:
            raise UsageError(
                f"there is no campaign {chain[-1]!r}; `latfarm campaign list` names them all"
            )
        chain[-1] = record.campaign_id
        if record.kind != CoverCampaign.kind:
            return chain
        base = str(record.config["base"])
        if base in chain:
            raise UsageError(
                f"campaign {campaign_id!r} adds to itself, so nothing can be learned from it; "
                "name another campaign"
            )
        chain.append(base)


def family_of_campaign(store: Store, platform: str, campaign_id: str) -> tuple[str, ...]:
    """A campaign's root and all finished campaigns that add to it, the newest first.

    Args:
        store: holds the campaigns.
        platform: the platform.
        campaign_id: any of these campaigns.

    Raises:
        UsageError: as `bases`.
    """
    root = bases(store, campaign_id)[-1]
    found: list[str] = []
    for record in store.campaigns(brief=True):
        added = record.kind == CoverCampaign.kind and record.platform == platform
        if added and record.state == "done" and _adds_to(store, record.campaign_id, root):
            found.append(record.campaign_id)
    return (*found, root)


def _adds_to(store: Store, campaign_id: str, root: str) -> bool:
    """Whether a campaign adds to another one, directly or not."""
    try:
        return bases(store, campaign_id)[-1] == root
    except UsageError:  # what it adds to is gone
        return False


def finished_before(store: Store, chain: Sequence[str], time_s: float) -> tuple[str, ...]:
    """Those of some campaigns that were finished before a Unix time in seconds, in their order."""
    records = {name: store.get_campaign(name) for name in chain}
    return tuple(
        name
        for name, record in records.items()
        if record is not None and (record.finished_at_s or record.started_at_s) < time_s
    )
