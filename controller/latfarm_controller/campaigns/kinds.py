"""The kinds of campaigns by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from latfarm_controller.campaigns.base import Campaign
from latfarm_controller.campaigns.characterize import CharacterizeCampaign, CharacterizeOptions
from latfarm_controller.campaigns.characterize_in_budget import CharacterizeInBudget
from latfarm_controller.campaigns.cover import CoverCampaign, CoverOptions
from latfarm_controller.campaigns.engines.campaign import EngineOptions, EnginesCampaign
from latfarm_controller.campaigns.fusion.campaign import FusionCampaign, FusionOptions
from latfarm_controller.campaigns.kernels.padding import PaddingCampaign, PaddingOptions
from latfarm_controller.campaigns.kernels.survey import KernelCampaign, KernelOptions
from latfarm_controller.campaigns.networks.campaign import NetworkCampaign, NetworkOptions
from latfarm_controller.campaigns.options import read_options
from latfarm_controller.errors import UsageError

Config = Mapping[str, Any]
"""A campaign's configuration as plain JSON types."""


def _fusion(platform: str, config: Config) -> Campaign:
    return FusionCampaign(platform, read_options(FusionOptions, "fusion", config))


def _kernels(platform: str, config: Config) -> Campaign:
    return KernelCampaign(platform, read_options(KernelOptions, "kernels", config))


def _networks(platform: str, config: Config) -> Campaign:
    return NetworkCampaign(platform, read_options(NetworkOptions, "networks", config))


def _padding(platform: str, config: Config) -> Campaign:
    return PaddingCampaign(platform, read_options(PaddingOptions, "padding", config))


def _characterize(platform: str, config: Config) -> Campaign:
    options = read_options(CharacterizeOptions, "characterize", config)
    if options.measurements is None and options.budget_minutes is None:
        return CharacterizeCampaign(platform, options)
    return CharacterizeInBudget(platform, options)


def _cover(platform: str, config: Config) -> Campaign:
    return CoverCampaign(platform, read_options(CoverOptions, "cover", config))


def _engines(pattern: str, config: Config) -> Campaign:
    return EnginesCampaign(pattern, read_options(EngineOptions, "engines", config))


KINDS: Mapping[str, Callable[[str, Config], Campaign]] = MappingProxyType(
    {
        "fusion": _fusion,
        "kernels": _kernels,
        "networks": _networks,
        "padding": _padding,
        "characterize": _characterize,
        "cover": _cover,
        "engines": _engines,
    }
)
"""Makes a campaign of each kind from a platform and a configuration."""

TRAINED = frozenset({"characterize", "cover"})
"""Kinds of campaigns whose results are trained into a bundle."""

COMPARING = frozenset({"engines"})
"""Kinds that compare several platforms of one board; their platform is a pattern of names."""


TAGS = "tags"
"""Key of every configuration: only boards that have all of these tags measure."""
STARTED_BY = "started_by"
"""Key of a stored configuration: who started the campaign, as the audit log names actors."""


def make_campaign(kind: str, platform: str, config: Config) -> Campaign:
    """A new campaign; with the same arguments and answers it asks the same questions.

    Raises:
        UsageError: the kind is unknown, or the configuration is wrong; the message names the key.
    """
    maker = KINDS.get(kind)
    if maker is None:
        raise UsageError(f"unknown kind of campaign {kind!r}; known: {', '.join(KINDS)}")
    # Where a campaign measures, and for whom, does not change what it asks.
    asked = {key: value for key, value in config.items() if key not in (TAGS, STARTED_BY)}
    return maker(platform, asked)
