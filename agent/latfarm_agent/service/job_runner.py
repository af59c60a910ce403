"""The thread that runs measurements, one after another."""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import Callable

from latfarm_agent.bench.measuring import MeasuringBench
from latfarm_agent.bench.records import BenchResult, BenchStage
from latfarm_agent.service.jobs import LiveJob
from latfarm_agent.service.monitoring.metrics import AgentMetrics
from latfarm_agent.service.offer import BoardOffer
from latfarm_agent.service.verdicts import failure

logger = logging.getLogger(__name__)


class JobRunner:
    """Gives jobs to the bench. No connection can end its thread.

    Args:
        bench: measures.
        offer: what the board offers, for results that the agent itself makes.
        metrics: counts how long stages take.
        finish: called by the thread with a job, its result, and how long it took in seconds.
    """

    def __init__(
        self,
        bench: MeasuringBench,
        offer: BoardOffer,
        metrics: AgentMetrics,
        finish: Callable[[LiveJob, BenchResult, float], None],
    ) -> None:
        self._bench = bench
        self._offer = offer
        self._metrics = metrics
        self._finish = finish
        self._starts: queue.Queue[LiveJob | None] = queue.Queue()
        self._thread = threading.Thread(target=self._serve, name="board", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def run(self, live: LiveJob) -> None:
        """Run a job after those that were given before."""
        self._starts.put(live)

    def stop(self, grace_s: float) -> None:
        """End the thread after the jobs that it has; wait for it for at most `grace_s`."""
        self._starts.put(None)
        if self._thread.ident is not None:
            self._thread.join(grace_s)

    def _serve(self) -> None:
        while True:
            live = self._starts.get()
            if live is None:
                return
            self._run(live)

    def _run(self, live: LiveJob) -> None:
        started_s = time.monotonic()
        self._metrics.staged("queued", started_s - live.admitted_s)
        stage_name, stage_since_s = "waiting", started_s

        def on_stage(stage: BenchStage) -> None:
            nonlocal stage_name, stage_since_s
            now_s = time.monotonic()
            self._metrics.staged(stage_name, now_s - stage_since_s)
            stage_name, stage_since_s = stage.name, now_s
            live.publish(stage)

        try:
            result = self._bench.measure(
                live.asked.request,
                live.model_path,
                profile=live.asked.profile,
                on_stage=on_stage,
                cancelled=live.cancelled,
            )
        except Exception as error:
            logger.exception("the bench raised on %s", live.job.request_id)
            text = f"{type(error).__name__}: {error}"
            result = failure(live.asked.request, self._offer, "AGENT_FAULT", text)
        busy_s = time.monotonic() - started_s
        self._metrics.staged(stage_name, time.monotonic() - stage_since_s)
        self._finish(live, result, busy_s)
