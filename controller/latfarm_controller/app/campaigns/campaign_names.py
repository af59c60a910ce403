"""Ids, states and scopes of campaigns, as far as they follow from a campaign's record alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from latfarm_controller.app.campaigns.patient_run import INTERRUPTED, RUNNING, WAITING
from latfarm_controller.board_profile import checked_tags
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.campaigns.kinds import COMPARING, STARTED_BY, TAGS
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.errors import UsageError
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.partitions import BoardChoice
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
    """The platforms, the board if only one counts, and the boards that a campaign may use."""
    choice = choice_of(record.config)
    if record.kind not in COMPARING:
        return CampaignScope((record.platform,), choice=choice)
    names = tuple(found["name"] for found in record.config.get("offers", ()))
    return CampaignScope(names, record.config.get("board_id", ""), choice)


def choice_of(config: Mapping[str, Any]) -> BoardChoice:
    """The boards that a stored campaign may use.

    Nobody knows who started a campaign of an earlier version, so it uses no board of a group.
    """
    return BoardChoice(tuple(config.get(TAGS, ())), str(config.get(STARTED_BY, "")))


def asked_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration that was asked for, with its tags in order.

    Raises:
        UsageError: the tags are malformed, or it says who starts the campaign.
    """
    if STARTED_BY in config:
        raise UsageError(f"{STARTED_BY} cannot be chosen: the controller knows who calls")
    tags = config.get(TAGS, [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise UsageError(f"{TAGS} must be a list of tags")
    rest = {key: value for key, value in config.items() if key != TAGS}
    return {**rest, TAGS: list(checked_tags(tags))} if tags else rest
