"""The driver: asks a campaign, has the farm measure, stores the answers, and tells the campaign.

One driver runs any campaign on any farm. The store is the only lasting record: if the store has an
answer to what a campaign asks, the campaign is told that answer, and no board measures it again.
That is all there is to resuming. A board is told to forget an answer only after it was stored, so
that every answer is always in at least one of the two places.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from latfarm_controller.campaigns.base import Campaign
from latfarm_controller.farm.driving.campaign_run import CampaignRun
from latfarm_controller.farm.driving.run_parts import OnProgress, RunContext, RunRequest
from latfarm_controller.farm.driving.scope import CampaignScope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.scheduling.messages import CAMPAIGN_PRIORITY
from latfarm_controller.store.base import CampaignRecord, Store

PATIENCE_S = 600.0
"""Seconds that a campaign waits for a working board of its platform before it is interrupted.

A campaign of `latfarm serve` waits without end.
"""


class Driver:
    """Runs campaigns on a farm, several at once if asked to.

    Args:
        store: where answers and records are kept.
        farm: runs the measurements.
        clock_s: any clock that never goes back, in seconds.
        patience_s: how long a campaign that is not `lasting` waits for a working board.
        observer: told of campaigns that start, of what is stored, and of measured networks.
    """

    def __init__(
        self,
        store: Store,
        farm: Farm,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        patience_s: float = PATIENCE_S,
        observer: FarmObserver | None = None,
    ) -> None:
        self._context = RunContext(store, farm, observer or FarmObserver(), clock_s, patience_s)

    async def run(
        self,
        campaign: Campaign,
        record: CampaignRecord,
        on_progress: OnProgress | None = None,
        cancel: asyncio.Event | None = None,
        *,
        priority: int = CAMPAIGN_PRIORITY,
        scope: CampaignScope | None = None,
        lasting: bool = False,
    ) -> CampaignRecord:
        """Run a campaign to its end; returns the record as it was stored last.

        The state in the record is then `done`, `cancelled`, `failed` (the campaign raised an error,
        which the record tells), or `interrupted`: the farm could not go on, or the store's disk is
        full, and farm and boards keep what could not be stored. To resume, run the same record
        again with a new campaign of the same configuration. A cancelled coroutine also leaves an
        `interrupted` record.

        Args:
            campaign: what asks and is told.
            record: names the campaign; its answers in the store are used.
            on_progress: called with the status whenever it changes.
            cancel: set it to end the campaign early.
            priority: requests with a higher priority are measured first.
            scope: where to measure; by default, the record's platform on all boards. A request for
                one of several platforms fails alone if no board offers its platform.
            lasting: whether it waits without end for boards that work.

        Raises:
            StoreError: the store cannot be read, or written for another reason than a full disk.
        """
        self._context.observer.campaign_started(record.campaign_id, record.name)
        request = RunRequest(
            campaign,
            record,
            scope or CampaignScope((record.platform,)),
            priority,
            lasting,
            on_progress,
            cancel or asyncio.Event(),
        )
        return await CampaignRun(self._context, request).go()
