"""The controller: campaigns run, questions answered, boards and platforms listed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

from latfarm_predictors.answer import Answer, EnergyAnswer
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph import Graph
from latfarm_predictors.measurement import (
    ENERGY_MS,
    NETWORK,
    PUBLISH,
    PUBLISH_ENERGY_MS,
    Measurement,
    Settings,
)
from latfarm_protos.v1 import controller_pb2 as pb

from latfarm_controller import bundles, comparison, reporting
from latfarm_controller.agents.fleet import LOCAL, BoardView, Fleet
from latfarm_controller.board_control import LOOK_S, BoardControl
from latfarm_controller.campaigns.check import CheckCampaign
from latfarm_controller.campaigns.query import QueryCampaign
from latfarm_controller.campaigns.registry import COMPARING, TRAINED, make_campaign
from latfarm_controller.config import Config
from latfarm_controller.errors import ControllerError, FarmError, UsageError
from latfarm_controller.farm.desk import BoardDesk
from latfarm_controller.farm.driver import CampaignStatus, Driver, Scope
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.messages import QUERY_PRIORITY
from latfarm_controller.farm.watch import Watch
from latfarm_controller.store.base import CampaignRecord, Store
from latfarm_controller.training import train

logger = logging.getLogger(__name__)
RUNNING = "running"
CANCELLED = "cancelled"
INTERRUPTED = "interrupted"
CONNECT_S = 60.0
"""How long a board that answers may take to join, beyond the lease that a dead controller left."""
CLOSE_S = 30.0


_Question = tuple[str, str, str, bool, bool]
"""Network, platform, tier, whether to measure anew, whether with its energy."""


class _StoppedError(ControllerError):
    """Training was told to stop."""


def campaign_id(kind: str, platform: str, config: Mapping[str, Any], name: str) -> str:
    """The same kind, platform, configuration and name are the same campaign."""
    text = json.dumps([kind, platform, config, name], sort_keys=True)
    return f"{kind}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"


class Controller:
    """Runs campaigns on boards, keeps what they find, answers questions. One event loop's."""

    def __init__(
        self, config: Config, store: Store, fleet: Fleet, farm: Farm, watch: Watch | None = None
    ) -> None:
        self._config = config
        self._store = store
        self._fleet = fleet
        self._farm = farm
        self._farm_starting = asyncio.Lock()
        self._farm_runs = False
        self._watch = watch or Watch()
        self._driver = Driver(store, farm, watch=self._watch)
        self._desk = BoardDesk(store, farm, shared=(LOCAL,) if config.local_agent else ())
        self.control = BoardControl(store, fleet, farm, self._driver, self._desk, self._open_pool)
        self._remaining_s: dict[str, float] = {}
        self._records: dict[str, CampaignRecord] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancels: dict[str, asyncio.Event] = {}
        self._queries: dict[_Question, asyncio.Task[tuple[Measurement, bool]]] = {}
        self._changed = asyncio.Condition()
        self._tellers: set[asyncio.Future[None]] = set()
        self._closing = False
        for record in store.campaigns():
            if record.state == RUNNING:  # its process is gone: we hold the lock
                store.put_campaign(replace(record, state=INTERRUPTED))

    # Boards and platforms

    async def boards(self) -> list[pb.BoardStatus]:
        """All boards of the inventory, reachable or not."""
        found = [_board_status(view) for view in await self._fleet.views()]
        for status in found:
            self.control.add_standing(status)
        return found

    async def platforms(self) -> list[pb.PlatformStatus]:
        """All platforms that the boards offer, then the runtimes that they lack."""
        known = bundles.newest(self._config.bundles_dir)
        found: dict[str, pb.PlatformStatus] = {}
        missing: list[pb.PlatformStatus] = []
        for view in await self._fleet.views():
            for runtime in view.info.runtimes if view.info else ():
                for platform in runtime.platforms if runtime.available else ():
                    status = found.setdefault(
                        platform.name,
                        pb.PlatformStatus(
                            name=platform.name,
                            runtime=runtime.name,
                            model_format=platform.model_format,
                            available=True,
                            bundle=known[platform.name].stem if platform.name in known else "",
                            fingerprint=platform.fingerprint,
                        ),
                    )
                    status.boards.append(view.entry.name)
                if runtime.missing:
                    missing.append(
                        pb.PlatformStatus(
                            runtime=runtime.name, boards=[view.entry.name], missing=runtime.missing
                        )
                    )
        for name, path in known.items():  # characterised once, its board is away
            if name not in found:
                found[name] = pb.PlatformStatus(
                    name=name, bundle=path.stem, missing="no board that is reachable offers it"
                )
        return [*(found[name] for name in sorted(found)), *missing]

    # Campaigns

    async def start_campaign(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str
    ) -> CampaignRecord:
        """Start a campaign, or go on with the same one; a finished one is returned as it is.

        Raises:
            UsageError: unknown kind or platform, or a wrong configuration.
        """
        await asyncio.to_thread(make_campaign, kind, platform, config)  # complains early
        key = campaign_id(kind, platform, config, name)
        if kind in COMPARING:
            config = comparison.compared(platform, config, await self._fleet.views())
        else:
            await self._fleet.offering(platform)
        known = self._known(key)
        if known is not None:
            return known if known.state == "done" else self._launch(known)
        record = CampaignRecord(
            campaign_id=key,
            name=name or key,
            kind=kind,
            platform=platform,
            config=dict(config),
            started_at_s=time.time(),
        )
        return self._launch(record)

    async def campaigns(self) -> list[CampaignRecord]:
        """All campaigns, newest first; questions are none."""
        stored = await asyncio.to_thread(self._store.campaigns)
        found = {record.campaign_id: record for record in stored} | self._records
        hidden = (QueryCampaign.kind, CheckCampaign.kind)
        shown = [record for record in found.values() if record.kind not in hidden]
        return sorted(shown, key=lambda record: record.started_at_s, reverse=True)

    async def campaign(self, name: str) -> CampaignRecord:
        """One campaign by id or name.

        Raises:
            UsageError: there is none; lists some.
        """
        record = self._known(name)
        if record is None:
            some = ", ".join(r.campaign_id for r in (await self.campaigns())[:8]) or "none yet"
            raise UsageError(f"no campaign {name!r}; the newest are: {some}")
        return record

    async def watch(self, name: str) -> AsyncIterator[CampaignRecord]:
        """The campaign now and at each change, until it ends.

        Raises:
            UsageError: there is none.
        """
        key = (await self.campaign(name)).campaign_id
        while True:
            # Both at one moment: what ends between them would be told as if it still ran.
            record, ended = await self.campaign(key), key not in self._tasks
            yield replace(record, config={})
            if ended:
                return
            await self._wait_for_change(record)

    async def _wait_for_change(self, seen: CampaignRecord) -> None:
        key = seen.campaign_id
        async with self._changed:
            await self._changed.wait_for(lambda: self._known(key) != seen or key not in self._tasks)

    async def resume(self, name: str) -> CampaignRecord:
        """Go on with a campaign that was stopped.

        Raises:
            UsageError: there is none, or its platform is not to be had.
        """
        record = await self.campaign(name)
        if record.state == "done":
            return record
        await self._boards_of(_scope(record))
        return self._launch(record)

    async def cancel(self, name: str) -> CampaignRecord:
        """Stop a campaign after the measurement that is running.

        Raises:
            UsageError: there is none.
        """
        record = await self.campaign(name)
        task = self._tasks.get(record.campaign_id)
        if task is not None:
            self._cancels[record.campaign_id].set()
            await asyncio.wait([task])
        elif record.state != "done":
            record = replace(record, state=CANCELLED)
            await asyncio.to_thread(self._store.put_campaign, record)
            self._show(record)
        return await self.campaign(record.campaign_id)

    def _known(self, name: str) -> CampaignRecord | None:
        if name in self._records:
            return self._records[name]
        named = [record for record in self._records.values() if record.name == name]
        stored = self._store.get_campaign(name)
        if stored is not None:
            named.append(self._records.get(stored.campaign_id, stored))
        return max(named, key=lambda record: record.started_at_s, default=None)

    def _launch(self, record: CampaignRecord) -> CampaignRecord:
        """Have a campaign run, once: nothing is awaited between the look and the start."""
        key = record.campaign_id
        if key in self._tasks:
            return self._records[key]
        if self._closing:
            raise ControllerError("the controller is stopping")
        record = replace(record, state=RUNNING, error="", finished_at_s=0.0)
        self._records[key] = record
        self._cancels[key] = asyncio.Event()
        self._tasks[key] = asyncio.create_task(self._run(record), name=key)
        return record

    async def _run(self, record: CampaignRecord) -> None:
        key = record.campaign_id
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
            record = await self._measure(record)
            if record.kind in TRAINED and record.state == "done":
                record = await self._train(record)
        except asyncio.CancelledError:
            record = replace(self._records[key], state=INTERRUPTED)
        except Exception as error:
            expected = isinstance(error, (ControllerError, PredictorsError, OSError))
            if not expected:
                logger.exception("campaign %s failed", key)
            state = CANCELLED if isinstance(error, _StoppedError) else "failed"
            text = str(error) or type(error).__name__
            record = replace(self._records[key], state=state, error=text)
        if self._closing and record.state == CANCELLED:
            record = replace(record, state=INTERRUPTED)
        record = replace(record, finished_at_s=time.time())
        try:
            await asyncio.to_thread(self._store.put_campaign, record)
        except ControllerError as error:  # whoever watches must hear of the end all the same
            record = replace(record, state="failed", error=record.error or str(error))
        del self._tasks[key]
        del self._cancels[key]
        self._remaining_s.pop(key, None)
        self._show(record)

    async def _measure(self, record: CampaignRecord) -> CampaignRecord:
        campaign = await asyncio.to_thread(
            make_campaign, record.kind, record.platform, record.config
        )
        key = record.campaign_id
        scope = _scope(record)
        await self._open_pool(scope, self._cancels[key])

        def progress(status: CampaignStatus) -> None:
            self._remaining_s[key] = status.remaining_s or 0.0
            self._show(
                replace(
                    self._records[key],
                    stage=status.progress.stage,
                    stage_done=status.progress.done,
                    stage_total=status.progress.total,
                    measurements=status.measurements,
                    failures=status.failures,
                )
            )

        return await self._driver.run(campaign, record, progress, self._cancels[key], scope=scope)

    async def _boards_of(self, scope: Scope) -> list[BoardView]:
        """The reachable boards of a campaign.

        Raises:
            UsageError: there is none.
        """
        if not scope.board_id:
            return self.control.working(
                scope.platforms[0], await self._fleet.offering(scope.platforms[0])
            )
        views = await self._fleet.views()
        found = [view for view in views if view.info and view.info.board_id == scope.board_id]
        if not found:
            raise UsageError(f"no reachable board has the id {scope.board_id}: latfarm boards")
        return found

    async def _open_pool(self, scope: Scope, cancel: asyncio.Event) -> None:
        """Have the farm connected to all boards of the scope, and one of them joined.

        A board may still be leased to a controller that was killed: its lease runs out.

        Raises:
            UsageError: no board offers the platform.
            FarmError: Ray cannot be started, or no board joined in time.
        """
        views = await self._boards_of(scope)
        async with self._farm_starting:
            if not self._farm_runs:
                await self._farm.start()
                self._farm_runs = True
        await self._farm.add_boards([view.entry for view in views])
        wait_s = CONNECT_S + self._config.lease_ms / 1000.0
        deadline_s = time.monotonic() + wait_s
        told = ""
        named = (
            scope.platforms[0] if len(scope.platforms) == 1 else f"{len(scope.platforms)} platforms"
        )
        while not self._joined(scope) and not cancel.is_set():
            self._farm.check()
            names = {view.entry.name for view in views}
            states = [status for status in self._farm.boards() if status.name in names]
            story = "; ".join(sorted({f"{s.name}: {s.reason}" for s in states if s.reason}))
            if time.monotonic() > deadline_s:
                raise FarmError(f"no board of {named} joined within {wait_s:.0f} s: {story}")
            if story != told:
                logger.info("waiting for a board of %s: %s", named, story)
                told = story
            await asyncio.sleep(LOOK_S)

    def _joined(self, scope: Scope) -> bool:
        return any(self._farm.pool(platform, scope.board_id) for platform in scope.platforms)

    def remaining_ms(self, campaign_id: str) -> float:
        """Estimate for the stage that a campaign is in; 0: unknown."""
        return 1000.0 * self._remaining_s.get(campaign_id, 0.0)

    async def _train(self, record: CampaignRecord) -> CampaignRecord:
        record = replace(record, state=RUNNING, stage="training", stage_done=0, stage_total=0)
        await asyncio.to_thread(self._store.put_campaign, record)
        self._show(record)
        loop = asyncio.get_running_loop()
        cancel = self._cancels[record.campaign_id]

        def progress(stage: str, done: int, total: int) -> None:
            if cancel.is_set():  # a thread cannot be cancelled, but it reports
                raise _StoppedError("stopped while training; what was measured is kept")
            changed = replace(
                record, stage=f"training: {stage}", stage_done=done, stage_total=total
            )
            loop.call_soon_threadsafe(self._show, changed)

        path = bundles.next_path(self._config.bundles_dir, record.platform)
        predictor = await asyncio.to_thread(
            train, self._store, record.platform, record.campaign_id, path, on_progress=progress
        )
        outcome = dict(record.outcome) | {"bundle": str(path), "accuracy": predictor.explain()}
        return replace(self._records[record.campaign_id], state="done", outcome=outcome)

    def _show(self, record: CampaignRecord) -> None:
        self._records[record.campaign_id] = record
        self._notify()

    def _notify(self) -> None:
        async def tell() -> None:
            async with self._changed:
                self._changed.notify_all()

        task = asyncio.ensure_future(tell())
        self._tellers.add(task)
        task.add_done_callback(self._tellers.discard)

    # Questions

    async def predict(
        self, graph: Graph, platform: str, coverage: float, energy: bool = False
    ) -> tuple[Answer, EnergyAnswer | None]:
        """From the newest bundle of the platform alone; with `energy` its millijoules too.

        Raises:
            UsageError: there is no bundle.
            NoEnergyError: it tells no energies.
        """

        def answer() -> tuple[Answer, EnergyAnswer | None]:
            predictor = bundles.open_bundle(self._config.bundles_dir, platform)
            costs = predictor.predict_energy(graph, coverage) if energy else None
            return predictor.predict(graph, coverage), costs

        try:
            found = await asyncio.to_thread(answer)
        except Exception:
            self._watch.predicted(platform, ok=False)
            raise
        self._watch.predicted(platform, ok=True)
        return found

    async def query(
        self, graph: Graph, platform: str, tier: str, refresh: bool, energy: bool = False
    ) -> AsyncIterator[str | tuple[Measurement, bool]]:
        """Progress as text, then the measurement and whether the store knew it.

        The same question asked twice at once is measured once. Exports of one network are one
        question: `graph_hash` of the measurement says which of them was measured. With `energy`
        only a measurement that tells what an inference costs is known; the new one may still lack
        it, and says why in its conditions.

        Raises:
            UsageError: an unknown tier or platform.
        """
        if tier not in {"", "survey", "publish"}:
            raise UsageError(f"unknown tier {tier!r}: survey or publish")
        settings = PUBLISH if tier == "publish" else NETWORK
        if energy:
            longer_ms = PUBLISH_ENERGY_MS if tier == "publish" else ENERGY_MS
            settings = replace(settings, energy_ms=longer_ms)
        key = (graph.network_hash, platform, settings.tier, refresh, energy)
        task = self._queries.get(key)
        if task is None:
            if self._closing:
                raise ControllerError("the controller is stopping")
            task = asyncio.create_task(self._find(graph, platform, settings, refresh))
            self._queries[key] = task
            task.add_done_callback(lambda ended: self._query_ended(key, ended))
        # At once where the store knows it; else say what takes its time.
        done, _ = await asyncio.wait({task}, timeout=LOOK_S)
        if not done:
            yield f"{graph.name}: measuring on {platform}"
        yield await asyncio.shield(task)

    def _query_ended(self, key: _Question, task: asyncio.Task[tuple[Measurement, bool]]) -> None:
        del self._queries[key]
        if not task.cancelled():
            task.exception()  # seen: whoever asked was told, or left

    async def _find(
        self, graph: Graph, platform: str, settings: Settings, refresh: bool
    ) -> tuple[Measurement, bool]:
        """Look into the store, then ask a board: one task, so that nobody asks in between."""
        if not refresh:
            known = await asyncio.to_thread(self._latest, graph, platform, settings)
            if known is not None:
                return known, True
        return await self._ask_board(QueryCampaign(graph, platform, settings)), False

    def _latest(self, graph: Graph, platform: str, settings: Settings) -> Measurement | None:
        # What was measured to be published answers the lesser question too.
        tier = settings.tier if settings.tier == PUBLISH.tier else ""
        found = [
            self._store.latest(
                graph.hash,
                platform,
                purpose,
                network_hash=graph.network_hash,
                tier=tier,
                energy=settings.energy_ms > 0,
            )
            for purpose in ("query", "network")
        ]
        return max(
            (m for m in found if m),
            key=lambda m: (not m.unstable, m.graph_hash == graph.hash, m.measured_at_s),
            default=None,
        )

    async def _ask_board(self, campaign: QueryCampaign) -> Measurement:
        await self._open_pool(Scope((campaign.platform,)), asyncio.Event())
        record = CampaignRecord(
            campaign_id=f"query-{campaign.nonce}",
            name="query",
            kind=campaign.kind,
            platform=campaign.platform,
            started_at_s=time.time(),
        )
        ended = await self._driver.run(campaign, record, priority=QUERY_PRIORITY)
        if campaign.answer is None:
            raise FarmError(ended.error or "the query ended without a measurement")
        return campaign.answer

    async def results(
        self, *, platform: str, campaign_id: str, purpose: str, limit: int
    ) -> AsyncIterator[Measurement]:
        """Stored measurements, newest first."""
        if campaign_id:
            campaign_id = (await self.campaign(campaign_id)).campaign_id

        def read() -> list[Measurement]:
            return list(
                self._store.measurements(
                    platform=platform, campaign_id=campaign_id, purpose=purpose, limit=limit
                )
            )

        for measurement in await asyncio.to_thread(read):
            yield measurement

    async def report(self, platform: str, campaign_id: str = "") -> dict[str, Any]:
        """All that is known of a platform, as plain JSON types.

        Raises:
            UsageError: nothing is known of it, or it has no such campaign.
        """
        folder = self._config.bundles_dir
        return await asyncio.to_thread(reporting.report, self._store, folder, platform, campaign_id)

    async def close(self) -> None:
        """Stop campaigns where they are, then the farm, then the local agent."""
        self._closing = True
        for event in self._cancels.values():
            event.set()
        for question in self._queries.values():
            question.cancel()
        tasks: list[asyncio.Task[Any]] = [*self._tasks.values(), *self._queries.values()]
        try:
            if tasks:
                _, late = await asyncio.wait(tasks, timeout=CLOSE_S)
                for task in late:
                    task.cancel()
                if late:
                    await asyncio.wait(late)
        finally:
            try:
                await self._desk.close()
                if self._farm_runs:
                    await self._farm.stop()
            finally:
                await self._fleet.close()


def _scope(record: CampaignRecord) -> Scope:
    """Where a campaign measures."""
    if record.kind not in COMPARING:
        return Scope((record.platform,))
    names = tuple(found["name"] for found in record.config["offers"])
    return Scope(names, record.config["board_id"])


def _board_status(view: BoardView) -> pb.BoardStatus:
    info = view.info
    if info is None:
        return pb.BoardStatus(
            name=view.entry.name,
            address=view.entry.address,
            state="unreachable",
            detail=view.error,
        )
    return pb.BoardStatus(
        board_id=info.board_id,
        name=view.entry.name,
        address=view.entry.address,
        state=info.state,
        platforms=[platform.name for platform in info.platforms],
        hardware=dict(info.hardware),
    )
