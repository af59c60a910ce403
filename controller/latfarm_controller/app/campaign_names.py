"""Ids, states and scopes of campaigns, as far as they follow from a campaign's record alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from latfarm_controller.app.patient_run import INTERRUPTED, RUNNING, WAITING
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.campaigns.kinds import COMPARING
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.store.base import CampaignRecord

PAUSED = "paused"
REMOVED = "removed"
"""State of a campaign that a person took out of all lists."""
UNFINISHED = frozenset({RUNNING, WAITING, PAUSED, INTERRUPTED})
"""States of campaigns whose results boards keep, as they may ask for them again."""
HIDDEN = (QueryCampaign.kind, CheckCampaign.kind)
"""Kinds of campaigns that only answer one question, and are not listed."""


def campaign_id(kind: str, platform: str, config: Mapping[str, Any], name: str) -> str:
    """The id of a campaign; it is equal for equal kind, platform, configuration and name."""
    text = json.dumps([kind, platform, config, name], sort_keys=True)
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


def is_listed(record: CampaignRecord) -> bool:
    """Whether a campaign is in the list of all campaigns."""
    return record.kind not in HIDDEN and record.state != REMOVED


def scope_of(record: CampaignRecord) -> CampaignScope:
    """The platforms, and the board if only one counts, that a campaign measures on."""
    if record.kind not in COMPARING:
        return CampaignScope((record.platform,))
    names = tuple(found["name"] for found in record.config.get("offers", ()))
    return CampaignScope(names, record.config.get("board_id", ""))
