"""All sessions of one request, and what follows them: runs for energy, and times of kernels."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from statistics import median

from latfarm_agent.runtimes.base import Job, LayerTime, Prepared, Runtime
from latfarm_agent.worker.channel import Message
from latfarm_agent.worker.measure import LoopWatch, SessionTimes, measure_session, profile
from latfarm_agent.worker.measure_energy import run_for_energy
from latfarm_agent.worker.rules import TimingSettings


def measure_request(
    runtime: Runtime, request: Message, settings: TimingSettings, watch: LoopWatch
) -> Message:
    """Measure a model in fresh sessions, and with `profile` its kernels too.

    Args:
        runtime: loads and runs the model.
        request: what the bench asks, with the folder in which the model may write.
        settings: how to measure.
        watch: told how the loop goes.

    Returns:
        `sessions`, `layers` and `energy` of the answer, as plain JSON types.

    Raises:
        RuntimeFailure: the runtime says that it cannot run the model.
    """
    sessions: list[SessionTimes] = []
    energy: Message = {}
    fastest_us = float(request["fastest_us"])
    last = settings.sessions - 1

    def run_longer(prepared: Prepared) -> None:
        # It would be useless if neither a rail of the board nor the runtime tells the energy.
        if settings.energy_ms and (request.get("rail") or prepared.energy is not None):
            energy.update(run_for_energy(runtime, prepared, last, settings, watch))

    for index in range(settings.sessions):
        job = _job(request, index)
        longer = run_longer if index == last else None
        sessions.append(measure_session(runtime, job, settings, watch, fastest_us, longer))
        fastest_us = sessions[-1].fastest_us
    layers: list[LayerTime] = []
    if request["profile"]:
        run_ms = median(run for session in sessions for run in session.runs_ms)
        layers = profile(runtime, _job(request, 0), run_ms, settings, watch)
    return {
        "sessions": [session.to_json() for session in sessions],
        "layers": [asdict(layer) for layer in layers],
        "energy": energy,
    }


def _job(request: Message, session: int) -> Job:
    return Job(
        model_path=Path(request["model_path"]),
        settings=request["platform_settings"],
        dtype=request["dtype"],
        scratch_dir=Path(request["scratch_dir"]),
        request_id=request["request_id"],
        session=session,
        sequence=request["sequence"],
        companions=tuple(request["companions"]),
    )
