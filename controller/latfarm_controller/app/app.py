"""The controller: runs campaigns, answers questions, and lists boards and platforms."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import Answer, EnergyAnswer

from latfarm_controller.access_groups import AccessGroups
from latfarm_controller.agents.fleet import LOCAL, BoardView, Fleet
from latfarm_controller.app import reporting
from latfarm_controller.app.board_control import BoardCare, BoardControl
from latfarm_controller.app.campaigns.campaign_runs import CampaignRuns
from latfarm_controller.app.estimating import Estimating
from latfarm_controller.app.left_spools import LeftSpools
from latfarm_controller.app.pools import Pools
from latfarm_controller.app.questions import Questions
from latfarm_controller.app.result_details import ResultDetails, check_filters, find_graph
from latfarm_controller.app.stored_answers import StoredAnswers
from latfarm_controller.app.summaries import BoardSummary, PlatformSummary
from latfarm_controller.app.unused_boards import UnusedBoards
from latfarm_controller.audit import unix_user
from latfarm_controller.bulk.evaluation import Evaluation
from latfarm_controller.bulk.lender import IDLE_S, WorkerLender, worker_count
from latfarm_controller.bulk.open_bundles import OpenBundles
from latfarm_controller.config import ControllerConfig
from latfarm_controller.farm.driving.driver import Driver
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.observer import FarmObserver
from latfarm_controller.farm.supervision.board_supervisor import BoardSupervisor
from latfarm_controller.farm.supervision.maintenance import MaintenanceKeeper
from latfarm_controller.farm.supervision.power_switch import PowerSwitch
from latfarm_controller.farm.supervision.recovery_crew import RecoveryCrew
from latfarm_controller.farm.supervision.reservations import Reservations
from latfarm_controller.farm.supervision.spool_keeper import SpoolKeeper
from latfarm_controller.reports.report_cache import KEPT, ReportCache
from latfarm_controller.store.base import Store
from latfarm_controller.training import bundles
from latfarm_controller.training.bundle_notes import NewestNotes
from latfarm_controller.training.fit_child import NICENESS

UNREACHABLE = "unreachable"
"""State of a board whose agent does not answer."""


class Controller:
    """Runs campaigns on boards, keeps what they find, and answers questions.

    All its methods belong to one event loop: call them there alone.

    Args:
        config: the settings, which name the folders of bundles and reports.
        store: what was measured and decided before.
        fleet: the boards of the inventory.
        farm: runs requests on boards; it is started when a board is first needed.
        watch: is told what happens, for metrics; None: nobody is told.
        cares: whether boards are checked before their first work and recovered by themselves, as
            `latfarm serve` does it. A command that hosts its controller for itself does neither:
            its user looks on, and the check would delay an answer.
    """

    def __init__(
        self,
        config: ControllerConfig,
        store: Store,
        fleet: Fleet,
        farm: Farm,
        watch: FarmObserver | None = None,
        *,
        cares: bool = False,
    ) -> None:
        self._bundles_dir = config.bundles_dir
        self._open_bundles = OpenBundles()
        self._kept_reports = ReportCache(config.reports_dir / KEPT)
        self._store = store
        self._fleet = fleet
        self._watch = watch or FarmObserver()
        shared = (LOCAL,) if config.local_agent else ()
        self._desk = BoardSupervisor(store, farm, shared=shared)
        fleet.listen(self._desk.identities)
        groups = AccessGroups(config.access_groups, owner=unix_user(os.getuid()))
        farm.partitions.describe({}, groups)
        self.unused_boards = UnusedBoards(fleet, farm, self._desk)
        self._spools = SpoolKeeper(store, farm, self._desk.standing)
        self._left_spools = LeftSpools(fleet, farm, self._spools)
        self._pools = Pools(fleet, farm, self._desk, config.lease_ms)
        driver = Driver(store, farm, observer=self._watch)
        self.campaigns = CampaignRuns(
            store, fleet, driver, self._pools, self._spools, config.bundles_dir, self._watch
        )
        power = PowerSwitch(self._desk, fleet.hooks)
        self._crew = (
            RecoveryCrew(store, farm, self._desk, fleet.hooks, power, shared=shared)
            if cares
            else None
        )
        self._reservations = Reservations(self._desk)
        self._maintenance = MaintenanceKeeper(self._desk, fleet.profiles)
        care = BoardCare(power, self._reservations, self._crew)
        self.control = BoardControl(store, fleet, farm, driver, self._desk, self._pools, care)
        self._notes = NewestNotes(config.bundles_dir)
        self._stored = stored = StoredAnswers(store, self._notes)
        self._workers = WorkerLender(
            worker_count(config.prediction_workers, spared_cores=int(config.local_agent)),
            NICENESS,
            IDLE_S,
        )
        self.questions = Questions(
            stored, driver, self._pools, lambda: tuple(bundles.newest(config.bundles_dir))
        )

    def keep_windows(self) -> None:
        """Begin and end the maintenance of boards at its times from now on."""
        self._maintenance.start()

    def empty_spools(self) -> None:
        """Take, once, what killed controllers left with boards that no campaign needs now."""
        self._left_spools.start()

    async def boards(self) -> list[BoardSummary]:
        """All boards of the inventory, reachable or not."""
        views = await self._fleet.views()
        return [self.control.with_standing(_board_summary(view)) for view in views]

    async def platforms(self, tags: Sequence[str] = ()) -> list[PlatformSummary]:
        """All platforms that the boards offer, then the runtimes that they lack.

        Args:
            tags: only the boards that have all of these tags count. Platforms that are only known
                by their bundles are then left out.
        """
        known = bundles.promoted(self._bundles_dir)
        views = [view for view in await self._fleet.views() if view.entry.profile.has(tags)]
        if tags:
            offered = {p.name for view in views if view.info for p in view.info.platforms}
            known = {name: path for name, path in known.items() if name in offered}
        return _platform_summaries(views, known)

    async def predict(
        self, graph: Graph, platform: str, coverage: float, energy: bool = False
    ) -> tuple[Answer, EnergyAnswer | None]:
        """Predict a latency from the bundle in use of a platform.

        Args:
            graph: the network.
            platform: the platform.
            coverage: share of cases in which the corrected latency shall lie in the interval.
            energy: whether to predict the energy, too.

        Returns:
            The latency, and the energy if it is asked for.

        Raises:
            UsageError: there is no bundle.
            NoEnergyError: the bundle predicts no energies.
        """

        def answer() -> tuple[Answer, EnergyAnswer | None]:
            predictor = self._open_bundles.get(bundles.choose(self._bundles_dir, platform))
            costs = predictor.predict_energy(graph, coverage) if energy else None
            return predictor.predict(graph, coverage), costs

        try:
            found = await asyncio.to_thread(answer)
        except Exception:
            self._watch.predicted(platform, ok=False)
            raise
        self._watch.predicted(platform, ok=True)
        return found

    def estimating(self) -> Estimating:
        """What answers one stream of candidates, from the store and the bundles in use."""
        evaluation = Evaluation(self._bundles_dir, self._workers)
        return Estimating(
            self._stored, evaluation, lambda: tuple(bundles.newest(self._bundles_dir))
        )

    def predicted(self, platform: str) -> None:
        """Count a latency that was predicted for a platform."""
        self._watch.predicted(platform, ok=True)

    async def results(
        self,
        *,
        platform: str,
        campaign_id: str,
        purpose: str,
        limit: int,
        details: bool = False,
        foreign: bool = False,
    ) -> AsyncIterator[tuple[Measurement, dict[str, Any] | None]]:
        """Stored measurements, newest first; an empty filter selects all, a limit of 0 too.

        Beside each stands what the bundle in use of its platform says of it (`bundle_notes`), and,
        if `details` are asked for, what else the store knows of it (`result_details`). Measurements
        of other farms are listed only if `foreign` is set.

        Raises:
            UsageError: there is no such campaign, or nothing was measured on such a platform or
                for such a purpose.
        """
        if campaign_id:
            campaign_id = (await self.campaigns.get(campaign_id)).campaign_id

        def read() -> list[tuple[Measurement, dict[str, Any] | None]]:
            stored = self._store.measurements(
                platform=platform,
                campaign_id=campaign_id,
                purpose=purpose,
                limit=limit,
                foreign=foreign,
            )
            found = self._notes.noted(stored)
            if not found:
                check_filters(self._store, platform, purpose, foreign=foreign)
            if not details:
                return [(measurement, None) for measurement in found]
            return list(zip(found, ResultDetails(self._store).of(found, campaign_id), strict=True))

        for measurement in await asyncio.to_thread(read):
            yield measurement

    async def graph(self, graph_hash: str) -> tuple[str, Graph]:
        """The exact hash and the network that a hash stands for; see `result_details.find_graph`.

        Raises:
            UsageError: the store has no such network, or several.
        """
        return await asyncio.to_thread(find_graph, self._store, graph_hash)

    async def report(self, platform: str, campaign_id: str = "") -> dict[str, Any]:
        """All facts of a platform's report, as plain JSON types.

        Args:
            platform: the platform.
            campaign_id: id or name of the campaign to report on; empty: the newest one.

        Raises:
            UsageError: nothing is known about the platform, or it has no such campaign.
        """
        return await asyncio.to_thread(
            reporting.report,
            self._store,
            self._bundles_dir,
            platform,
            campaign_id,
            self._kept_reports,
        )

    async def close(self) -> None:
        """Stop all campaigns where they are, then the farm, then the local agent."""
        try:
            await asyncio.gather(self.campaigns.close(), self.questions.close())
        finally:
            try:
                if self._crew is not None:
                    await self._crew.close()
                await self._left_spools.stop()
                await self._maintenance.close()
                await self._reservations.close()
                await self._desk.close()
                await self._pools.stop()
                await self._spools.close()
                await asyncio.to_thread(self._workers.close)
            finally:
                await self._fleet.close()


def _board_summary(view: BoardView) -> BoardSummary:
    info = view.info
    if info is None:
        found = BoardSummary(
            name=view.entry.name,
            address=view.entry.where,
            state=UNREACHABLE,
            detail=view.error,
        )
    else:
        found = BoardSummary(
            board_id=info.board_id,
            name=view.entry.name,
            address=view.entry.where,
            state=info.state,
            platforms=tuple(platform.name for platform in info.platforms),
            hardware=dict(info.hardware),
            protection=dict(info.protection),
        )
    return found.noted(view.entry.profile)


def _platform_summaries(
    views: Sequence[BoardView], known: Mapping[str, Path]
) -> list[PlatformSummary]:
    """The platforms by name, then the runtimes that boards lack.

    Args:
        views: all boards.
        known: the bundle in use of each platform. A platform whose boards are all away is told
            too, if it has a bundle.
    """
    found: dict[str, PlatformSummary] = {}
    missing: list[PlatformSummary] = []
    for view in views:
        board = view.entry.name
        for runtime in view.info.runtimes if view.info else ():
            for platform in runtime.platforms if runtime.available else ():
                summary = found.get(platform.name) or PlatformSummary(
                    name=platform.name,
                    runtime=runtime.name,
                    model_format=platform.model_format,
                    available=True,
                    bundle=known[platform.name].stem if platform.name in known else "",
                    fingerprint=platform.fingerprint,
                )
                found[platform.name] = replace(summary, boards=(*summary.boards, board))
            if runtime.missing:
                missing.append(
                    PlatformSummary(runtime=runtime.name, boards=(board,), missing=runtime.missing)
                )
    for name, path in known.items():
        if name not in found:
            found[name] = PlatformSummary(
                name=name, bundle=path.stem, missing="no board that is reachable offers it"
            )
    return [*(found[name] for name in sorted(found)), *missing]
