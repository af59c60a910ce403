"""The records of campaigns: as a process that runs them knows them now, and as they are stored."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

from latfarm_controller.app.campaigns import campaign_names
from latfarm_controller.errors import UsageError
from latfarm_controller.nearest_names import hint
from latfarm_controller.store.base import CampaignRecord, Store

MOST_NAMED = 8
"""Most campaigns that the message about an unknown one names."""


class CampaignRecords:
    """Finds records by id or name, and tells those who wait when one has changed.

    All its methods belong to one event loop: call them there alone.

    Args:
        store: holds the records that this process has not changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now: dict[str, CampaignRecord] = {}
        self._changed = asyncio.Condition()
        self._tellers: set[asyncio.Future[None]] = set()

    def now(self, campaign_id: str) -> CampaignRecord:
        """The record of a campaign that this process has shown."""
        return self._now[campaign_id]

    def show(self, record: CampaignRecord) -> None:
        """Make this the record of its campaign from now on, and wake those who wait for a change.

        It is not stored here.
        """
        self._now[record.campaign_id] = record
        task = asyncio.ensure_future(self._tell())
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    async def all(self) -> list[CampaignRecord]:
        """All campaigns, newest first, without those that only answer one question.

        Their configurations and outcomes are left empty; `get` gives them.
        """
        stored = await asyncio.to_thread(self._store.campaigns, brief=True)
        now = {name: replace(known, config={}, outcome={}) for name, known in self._now.items()}
        found = {record.campaign_id: record for record in stored} | now
        shown = [record for record in found.values() if campaign_names.is_listed(record)]
        return sorted(shown, key=lambda record: record.started_at_s, reverse=True)

    async def get(self, name: str) -> CampaignRecord:
        """One campaign by id or name.

        Raises:
            UsageError: there is none; the message names the newest ones.
        """
        record = self.find(name)
        if record is None or record.state == campaign_names.REMOVED:
            known = await self.all()
            some = ", ".join(r.campaign_id for r in known[:MOST_NAMED]) or "none yet"
            near = hint(name, [text for r in known for text in (r.name, r.campaign_id)])
            raise UsageError(f"there is no campaign {name!r}; the newest are: {some}{near}")
        return record

    def find(self, name: str) -> CampaignRecord | None:
        """One campaign by id or name, removed ones included; None if there is none.

        Where several have the name, it is the newest one, and one that was removed only if there
        is no other.
        """
        if name in self._now:
            return self._now[name]
        named = [record for record in self._now.values() if record.name == name]
        stored = self._store.get_campaign(name)
        if stored is not None:
            named.append(self._now.get(stored.campaign_id, stored))
        return max(
            named,
            key=lambda record: (record.state != campaign_names.REMOVED, record.started_at_s),
            default=None,
        )

    async def wait(self, longest_s: float, changed: Callable[[], bool]) -> None:
        """Wait until something is so, which is looked at when a record is shown.

        Args:
            longest_s: seconds after which it returns anyway.
            changed: whether it is so.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest_s), self._changed:
                await self._changed.wait_for(changed)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
