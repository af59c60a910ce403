"""The runtime of a simulated board: known latencies, reproducible noise, and every way to fail.

The noise is drawn from a hash of the request and the session, so that the same request on the same
board always gives the same result.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from latfarm_agent.runtimes.base import (
    Description,
    Job,
    LayerTime,
    PlatformSpec,
    Prepared,
    RuntimeFailure,
)
from latfarm_agent.runtimes.simulated.cost import (
    exact_cold_ms,
    exact_latency_ms,
    exact_layers,
    exact_work_uj,
)
from latfarm_agent.runtimes.simulated.profile import BoardProfile, Power

VERSION = "1.0"
"""Version of the simulation, as the runtime reports it."""


PROBE_US = 20.0
"""Time of the probe on the undisturbed simulated core, in microseconds."""


class _CoreState(NamedTuple):
    """The core during one measurement.

    Attributes:
        felt: how many times longer models take.
        probe_us: time of the probe in microseconds; None: there is no probe.
        clock_mhz: its clock; 0: the board does not tell it.
    """

    felt: float
    probe_us: float | None
    clock_mhz: float


class SimulatedAccount:
    """The power rail of a simulated board: counts time and energy while it rests or runs."""

    source = "simulated"
    lag_ms = 0.0

    def __init__(self, power: Power) -> None:
        self._power = power
        self._passed_ms = 0.0
        self._taken_uj = 0.0
        self._run_uj = 0.0
        self._factor = 1.0

    @property
    def step_mj(self) -> float:
        """Resolution of the counter in millijoules."""
        return self._power.step_uj / 1e3

    def now_s(self) -> float:
        """Simulated time in seconds."""
        return self._passed_ms / 1e3

    def energy_mj(self) -> float:
        """All energy so far in millijoules, rounded down to whole steps of the counter."""
        step_uj = self._power.step_uj
        taken_uj = self._taken_uj
        return (math.floor(taken_uj / step_uj) * step_uj if step_uj else taken_uj) / 1e3

    def rest(self, rest_ms: float) -> None:
        """Let `rest_ms` milliseconds of simulated time pass at rest."""
        self._passed_ms += rest_ms
        self._taken_uj += self._power.idle_mw * rest_ms

    def load(self, work_uj: float, factor: float) -> None:
        """Set the energy of one run's work, and the factor of this session's noise."""
        self._run_uj, self._factor = work_uj + self._power.call_uj, factor

    def ran(self, latency_ms: float) -> None:
        """Count a run that took `latency_ms` milliseconds."""
        self._passed_ms += latency_ms
        added_uj = self._power.active_mw * latency_ms + self._run_uj
        self._taken_uj += self._power.idle_mw * latency_ms + added_uj * self._factor


class SimulatedRuntime:
    """The runtime of a simulated board; `profile` is its profile, or the path of the file."""

    def __init__(self, threads: int = 1, profile: str | BoardProfile | None = None) -> None:
        del threads
        if not profile:
            raise RuntimeFailure(
                "RUNTIME_MISSING", "no board is simulated; start the agent with --simulate npu"
            )
        if isinstance(profile, BoardProfile):
            self._profile = profile
        else:
            try:
                self._profile = BoardProfile.read(Path(profile))
            except (OSError, ValueError) as error:
                raise RuntimeFailure("RUNTIME_MISSING", f"profile {error}") from error
        self._draw = random.Random(0)
        self._warm_ms = 0.0
        self._cold_ms = 0.0
        self._cold_next = False
        self._digest = b""
        self._graph: dict[str, Any] = {}
        self._exact_ms = 0.0
        self._exact_cold_ms = 0.0
        self._work_uj = 0.0
        power = self._profile.power
        self._account = None if power is None else SimulatedAccount(power)

    def describe(self) -> Description:
        """Offer the one platform that the profile names."""
        made = self._profile
        spec = PlatformSpec(
            made.platform, made.model_format, made.dtype, {}, real_time=False, whole_name=True
        )
        return Description(VERSION, (spec,))

    def prepare(self, job: Job) -> Prepared:
        """Read the graph; crash, hang, throttle and drift as the profile says."""
        profile = self._profile
        graph = self._load(job.model_path)
        self._misbehave(graph, job)
        factor = 1.0 + profile.drift * job.sequence / 1000
        throttle = profile.throttle
        if _in_turn(job.sequence, throttle.every, throttle.length):
            if throttle.reported:
                raise RuntimeFailure("THROTTLED", "the simulated board throttles")
            factor *= throttle.factor
        core = self._core(job.sequence)
        factor *= core.felt
        if job.session == 0 and profile.measure_ms:
            self.pass_time(profile.measure_ms)  # the real time of all sessions together
        self._draw = random.Random(_seed(profile.seed, job.request_id, job.session))
        factor *= math.exp(self._draw.gauss(0.0, profile.session_noise))
        self._warm_ms = factor * self._exact_ms
        self._cold_ms = factor * self._exact_cold_ms
        self._cold_next = False
        if self._account is not None and profile.power is not None:
            spread = math.exp(self._draw.gauss(0.0, profile.power.noise))
            self._account.load(self._work_uj, spread)
        return Prepared(
            cpu_clock="none",
            flush=self._flush,
            settles=False,
            probe_us=None if core.probe_us is None else partial(float, core.probe_us),
            clock_mhz=core.clock_mhz,
            energy=self._account,
        )

    def _core(self, sequence: int) -> _CoreState:
        """What slows the core down during a measurement."""
        neighbour, clock = self._profile.neighbour, self._profile.lower_clock
        if neighbour is None and clock is None:
            return _CoreState(1.0, None, 0.0)
        slowdown = felt = 1.0
        clock_mhz = 0.0
        if neighbour is not None and _in_turn(sequence, neighbour.every, neighbour.length):
            slowdown = neighbour.slowdown
            felt = slowdown**neighbour.felt
        if clock is not None:
            times = clock.factor if _in_turn(sequence, clock.every, clock.length) else 1.0
            slowdown, felt, clock_mhz = slowdown * times, felt * times, clock.mhz / times
        return _CoreState(felt, PROBE_US * slowdown, clock_mhz)

    def run(self) -> float | None:
        """Return the latency of one run in simulated milliseconds."""
        latency_ms = self._cold_ms if self._cold_next else self._warm_ms
        self._cold_next = False
        if self._profile.noise:
            latency_ms *= math.exp(self._draw.gauss(0.0, self._profile.noise))
        if self._account is not None:
            self._account.ran(latency_ms)
        return latency_ms

    def profile(self, job: Job, runs: int) -> Sequence[LayerTime]:
        """Return the true time of each kernel."""
        del runs
        graph = self._load(job.model_path)
        self._misbehave(graph, job)
        layers: list[LayerTime] = exact_layers(graph, self._profile)
        return layers

    def pass_time(self, wait_ms: float) -> None:
        """Let `wait_ms` milliseconds of real time pass."""
        time.sleep(wait_ms / 1e3)

    def crash(self) -> None:
        """End this process as a faulty driver does."""
        os.kill(os.getpid(), signal.SIGSEGV)

    def hang(self) -> None:
        """Do nothing; the caller calls again when this returns."""
        signal.pause()

    def _load(self, path: Path) -> dict[str, Any]:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise RuntimeFailure("MODEL_INVALID", f"the model cannot be read: {error}") from error
        digest = hashlib.sha256(text).digest()
        if digest != self._digest:  # the sessions of one request all load the same model
            graph = _parse(text)
            self._exact_ms = exact_latency_ms(graph, self._profile)
            self._exact_cold_ms = exact_cold_ms(graph, self._profile)
            self._work_uj = exact_work_uj(graph, self._profile)
            self._graph, self._digest = graph, digest
        return self._graph

    def _flush(self) -> None:
        self._cold_next = True

    def _misbehave(self, graph: dict[str, Any], job: Job) -> None:
        profile = self._profile
        for node in graph["nodes"]:
            where = f"node {node['name']!r} ({node['op']})"
            if node["op"] in profile.unsupported_ops:
                raise RuntimeFailure("MODEL_UNSUPPORTED", f"{where}: no such op on this board")
            if node["op"] in profile.crash_ops:
                self.crash()
            while node["op"] in profile.hang_ops:
                self.hang()
        if profile.crash_rate:
            chance = random.Random(_seed(profile.seed, "crash", job.request_id, job.session))
            if chance.random() < profile.crash_rate:
                self.crash()


def _in_turn(sequence: int, every: int, length: int) -> bool:
    """Whether a measurement is one of the last `length` of each `every`; never if that is 0."""
    return bool(every) and sequence % every >= every - length


def _parse(text: bytes) -> dict[str, Any]:
    try:
        graph = json.loads(text)
    except ValueError as error:
        raise RuntimeFailure("MODEL_INVALID", f"the model is not JSON: {error}") from error
    parts = {"inputs": list, "outputs": list, "nodes": list, "weights": dict, "types": dict}
    if not isinstance(graph, dict) or any(
        not isinstance(graph.get(name), kind) for name, kind in parts.items()
    ):
        raise RuntimeFailure("MODEL_INVALID", "the model is not a graph")
    for node in graph["nodes"]:
        if not isinstance(node, dict) or not {"name", "op", "inputs", "outputs"} <= set(node):
            raise RuntimeFailure(
                "MODEL_INVALID", "the model holds a node without name, op or tensors"
            )
    return graph


def _seed(*parts: object) -> int:
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
