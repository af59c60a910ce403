"""The health check of a board: one real operator and its sentinel, before it gets any work.

The operator shows that the runtime, the driver and the device do something at all. The sentinel
shows that the board is as fast as it used to be, where enough sentinels of it are known.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement, Settings

from latfarm_controller.agents.board import DISK_FULL, BoardInfo
from latfarm_controller.campaigns.base import MeasurementRequest
from latfarm_controller.campaigns.sentinels import sentinel_kernel
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.open_requests import Delivery
from latfarm_controller.farm.scheduling.messages import HEALTH, QUERY_PRIORITY
from latfarm_controller.farm.supervision.sentinel_history import SentinelReference
from latfarm_controller.store.base import Store

HEALTH_SETTINGS = Settings(
    sessions=1,
    warmup_runs=2,
    warmup_ms=0.0,
    min_runs=3,
    max_runs=20,
    max_ms=50.0,
    compile_timeout_ms=300_000.0,
    run_timeout_ms=30_000.0,
)
"""Settings of measurements whose latency is compared with nothing; they take about 0.1 s."""
CONFIRMATIONS = 2
"""Further measurements of a sentinel that is off, so that one outlier condemns no board."""
UNDECIDED = ("BUILD_FAILED", "BUILD_CRASHED", "MODEL_UNSUPPORTED", "MODEL_INVALID")
"""Error codes that tell about the model or its builder, and nothing about the board."""
RESTS = (DISK_FULL, "THROTTLED", "NOT_READY")
"""Error codes of conditions that pass by themselves: a full disk, heat, and other work."""
_REPEATS = 1 << 30
"""The repetition is a random number below this one, so that no spool and no store answers."""


def operator_kernel() -> Graph:
    """The operator: a convolution of 8 channels, which every runtime has; 9,216 multiply-adds."""
    b = GraphBuilder("operator")
    return b.build([b.conv(b.input((1, 8, 12, 12)), 8, 1)])


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """How a health check ended.

    Attributes:
        well: whether the board may work.
        told: why, in one line.
        rests: whether it failed for a reason that passes by itself and that no recovery step
            changes: it was too hot, too busy, or its disk was full.
    """

    well: bool
    told: str
    rests: bool = False


@dataclass(frozen=True, slots=True)
class CheckedBoard:
    """A board that is to be checked.

    `shared`: it shares its machine with other work, so that its sentinel may be slow for no fault
    of the board.
    """

    name: str
    info: BoardInfo
    shared: bool = False


class HealthChecks:
    """Runs health checks. Use it from one event loop; it reads the store in threads.

    Args:
        farm: runs the measurements, with the priority of a query.
        store: has the networks of the sentinels.
        draw: a random number below its argument.
    """

    def __init__(
        self, farm: Farm, store: Store, draw: Callable[[int], int] = secrets.randbelow
    ) -> None:
        self._farm = farm
        self._store = store
        self._draw = draw

    async def check(
        self, board: CheckedBoard, references: list[SentinelReference]
    ) -> HealthVerdict:
        """Check a board that has joined. It waits as long as the board is away or rests.

        Args:
            board: the board, which the farm lets run its check alone.
            references: what its sentinels normally take, the newest first.

        Raises:
            FarmError: the farm broke.
        """
        offered = board.info.platforms
        if not offered:
            return HealthVerdict(False, "it offers no platform")
        known = [r for r in references if _comparable(r, board.info)]
        reference = known[0] if known else None
        platform = reference.platform if reference is not None else offered[0].name
        tried = await self._measure(board, operator_kernel(), platform, HEALTH_SETTINGS)
        failed = _failure(tried, f"it could not run one operator on {platform}")
        if failed is not None:
            return failed
        graph, settings = sentinel_kernel(), HEALTH_SETTINGS
        if reference is not None:
            stored = await asyncio.to_thread(self._store.get_graph, reference.graph_hash)
            if stored is None:
                reference = None
            else:
                graph, settings = stored, reference.settings
        measured = await self._measure(board, graph, platform, settings)
        failed = _failure(measured, f"it could not measure its sentinel on {platform}")
        if failed is not None:
            return failed
        if reference is None or measured.latency_ms is None:
            return HealthVerdict(True, f"it ran an operator and its sentinel on {platform}")
        return await self._compared(board, graph, reference, measured.latency_ms)

    async def _compared(
        self, board: CheckedBoard, graph: Graph, reference: SentinelReference, latency_ms: float
    ) -> HealthVerdict:
        """Compare the sentinel with its reference; one that is off is measured again."""
        taken = [latency_ms]
        while not reference.accepts(median(taken)) and len(taken) <= CONFIRMATIONS:
            again = await self._measure(board, graph, reference.platform, reference.settings)
            if again.latency_ms is None:
                break
            taken.append(again.latency_ms)
        told = f"its sentinel takes {reference.tell(median(taken))}"
        return HealthVerdict(board.shared or reference.accepts(median(taken)), told)

    async def _measure(
        self, board: CheckedBoard, graph: Graph, platform: str, settings: Settings
    ) -> Measurement:
        """Have the board measure a network."""
        repeat = self._draw(_REPEATS)
        request = MeasurementRequest(
            graph,
            platform,
            HEALTH,
            settings,
            repeat=repeat,
            label="health",
            board=board.info.board_id,
        )
        campaign_id = f"{HEALTH}-{board.name}-{repeat}"
        inbox = self._farm.listen(campaign_id)
        try:
            self._farm.submit(campaign_id, [request], QUERY_PRIORITY)
            while True:
                answer = await inbox.get()
                if isinstance(answer, Delivery):
                    self._farm.acknowledge([answer])
                    return answer.measurement
        finally:
            if not self._farm.stopped:
                self._farm.cancel(campaign_id)
                self._farm.forget_campaign(campaign_id)


def _comparable(reference: SentinelReference, info: BoardInfo) -> bool:
    """Whether the board offers the platform of a reference, unchanged."""
    offered = info.platform(reference.platform)
    return offered is not None and offered.fingerprint == reference.fingerprint


def _failure(measurement: Measurement, what: str) -> HealthVerdict | None:
    """The verdict about a measurement that failed; None for one that did not."""
    if measurement.ok:
        return None
    told = f"{what}: {measurement.error_code} {measurement.error_message}".strip()
    if measurement.error_code in UNDECIDED:
        return HealthVerdict(True, f"{told}; that says nothing about the board")
    return HealthVerdict(False, told, rests=measurement.error_code in RESTS)
