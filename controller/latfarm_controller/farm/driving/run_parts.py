"""What one run of a campaign is given, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from latfarm_controller.campaigns.base import Campaign, Progress
from latfarm_controller.errors import ControllerError
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.store.base import CampaignRecord, Store


@dataclass(frozen=True, slots=True)
class CampaignStatus:
    """How far a campaign is.

    `measurements` and `failures` count its answers; `remembered` of them came from the store, where
    an earlier run had left them. `remaining_s` estimates the seconds until the stage ends; it is
    None before there is enough to estimate from. `waiting_for` says why nothing can be measured
    now; it is empty while something can. `under_way` counts the requests without an answer.
    """

    campaign_id: str
    progress: Progress
    measurements: int
    failures: int
    remembered: int
    remaining_s: float | None
    waiting_for: str = ""
    under_way: int = 0


OnProgress = Callable[[CampaignStatus], None]


class CampaignStuckError(ControllerError):
    """A campaign asks for nothing and is not done, which is an error of the campaign itself."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run works with; see `Driver` for each."""

    store: Store
    farm: Farm
    observer: FarmObserver
    clock_s: Callable[[], float]
    patience_s: float


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What is to be run; see `Driver.run` for each."""

    campaign: Campaign
    record: CampaignRecord
    scope: CampaignScope
    priority: int
    lasting: bool
    on_progress: OnProgress | None = None
    cancel: asyncio.Event = field(default_factory=asyncio.Event)
