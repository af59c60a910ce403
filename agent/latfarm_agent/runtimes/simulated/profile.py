"""The profile of a simulated board: its speed, its fusion rules, its energy and its failures."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Mapping

from latfarm_agent.runtimes.simulated.built_in import BUILT_IN, built_in

MOST_STREAMS = 64
"""Largest number of streams of a board; real ones have a few."""


@dataclass(frozen=True)
class SimulatedTiles:
    """Sizes of the tiles in which the board computes: channels and width are rounded up to them."""

    out_channels: int = 1
    in_channels: int = 1
    width: int = 1


@dataclass(frozen=True)
class Throttle:
    """When the board throttles: the last `length` of each `every` measurements are slower.

    `every`: 0 for a board that never throttles. `factor`: by how much the latency grows.
    `reported`: the sensor of the board reports it, so that the measurement is rejected as
    THROTTLED; otherwise only a sentinel can notice it.
    """

    every: int = 0
    length: int = 0
    factor: float = 1.0
    reported: bool = True


@dataclass(frozen=True)
class SimulatedNeighbour:
    """Work of somebody else on the simulated core, which slows the core down.

    It runs beside the last `length` of each `every` measurements. `slowdown`: how many times longer
    the probe takes. `felt`: a model takes slowdown ** felt times as long.
    """

    every: int = 1
    length: int = 1
    slowdown: float = 2.0
    felt: float = 0.8


@dataclass(frozen=True)
class LowerClock:
    """When the simulated board runs at a lower clock: the last `length` of each `every` times.

    `factor`: how many times longer every model and the probe then take. `mhz`: the clock otherwise.
    """

    every: int = 1
    length: int = 1
    factor: float = 2.0
    mhz: float = 2000.0


@dataclass(frozen=True)
class Power:
    """The power and energy that a simulated board consumes.

    Attributes:
        idle_mw: milliwatts at rest.
        active_mw: additional milliwatts while a model runs, whatever the model does.
        mac_pj: picojoules of one multiply-add, counted in whole tiles.
        vector_pj: picojoules of one element-wise operation.
        byte_pj: picojoules of one moved byte.
        call_uj: microjoules of one call of a model.
        noise: standard deviation between sessions, as a share of the energy that work adds.
        step_uj: resolution of the energy counter in microjoules; 0: exact.
    """

    idle_mw: float = 1000.0
    active_mw: float = 0.0
    mac_pj: float = 0.0
    vector_pj: float = 0.0
    byte_pj: float = 0.0
    call_uj: float = 0.0
    noise: float = 0.0
    step_uj: float = 0.0


@dataclass(frozen=True)
class BoardProfile:
    """The profile of a simulated board.

    Attributes:
        platform: the whole name of the board's one platform.
        model_format: the format of the models that it accepts.
        dtype: the element type of its platform.
        peak_macs_per_ms: multiply-adds per millisecond.
        vector_ops_per_ms: element-wise operations per millisecond; 0: as many as multiply-adds.
        bandwidth_bytes_per_ms: bytes that kernels read and write per millisecond.
        overhead_ms: time that each kernel costs in addition.
        call_overhead_ms: time that each run costs in addition.
        io_bytes_per_ms: bytes of the model's inputs and outputs that are copied per millisecond; 0:
            they cost nothing.
        cache_bytes: size of a cache; what was last used more bytes ago must be read again.
        cache_bytes_per_ms: bytes per millisecond that are read again after they were evicted from
            the cache, besides what kernels cost; 0: a board without such a cache.
        cold_bytes_per_ms: bytes of weights that a cold run reads per millisecond; 0: they cost
            nothing.
        streams: number of kernels that can run at the same time, if none of them waits for another.
            With one, a model takes the sum of its kernels.
        sync_ms: time until a kernel on another stream sees the result of a kernel.
        overlap: share of what a kernel reads from the kernel right before it that costs no
            transfer, because it is still on the chip; 0: all of it is read.
        tiles: sizes to which work is rounded up.
        fused_pairs: pairs of (type of a kernel, op that joins it); the type of a kernel is its
            first op.
        fused_chains: ops that run as one kernel where they follow each other, see `chains`.
        multi_inbound: how an op with several operands is fused: 0 not at all, 1 with the first,
            2 with the last of them.
        multi_outbound: which reader of a tensor with several readers is fused: 0 none, 1 the first,
            2 the last.
        noise: standard deviation of a single run, as a share of its latency.
        session_noise: standard deviation of a whole session, as a share of its latency.
        drift: share by which the board is slower after each 1,000 measurements.
        throttle: when the board throttles.
        crash_ops: ops with which the process crashes.
        crash_rate: probability that the process crashes in a session, whatever the model.
        hang_ops: ops with which the process hangs.
        unsupported_ops: ops that are refused.
        measure_ms: real time that one measurement takes, in milliseconds.
        seed: random seed of the noise.
        power: the power that the board consumes; None: the board has no power rail.
        neighbour: what slows the core down; None: the core belongs to the board alone.
        lower_clock: when the clock is lower; None: the board always has the same clock, and does
            not tell it.
    """

    platform: str
    model_format: str = "graph-json"
    dtype: str = "fp32"
    peak_macs_per_ms: float = 1e6
    vector_ops_per_ms: float = 0.0
    bandwidth_bytes_per_ms: float = 1e6
    overhead_ms: float = 0.0
    call_overhead_ms: float = 0.0
    io_bytes_per_ms: float = 0.0
    cold_bytes_per_ms: float = 0.0
    cache_bytes: float = 0.0
    cache_bytes_per_ms: float = 0.0
    streams: int = 1
    sync_ms: float = 0.0
    overlap: float = 0.0
    tiles: SimulatedTiles = field(default_factory=SimulatedTiles)
    fused_pairs: frozenset[tuple[str, str]] = frozenset()
    fused_chains: tuple[tuple[str, ...], ...] = ()
    multi_inbound: int = 0
    multi_outbound: int = 0
    noise: float = 0.0
    session_noise: float = 0.0
    drift: float = 0.0
    throttle: Throttle = field(default_factory=Throttle)
    crash_ops: frozenset[str] = frozenset()
    crash_rate: float = 0.0
    hang_ops: frozenset[str] = frozenset()
    unsupported_ops: frozenset[str] = frozenset()
    measure_ms: float = 0.0
    seed: int = 0
    power: Power | None = None
    neighbour: SimulatedNeighbour | None = None
    lower_clock: LowerClock | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BoardProfile:
        """Make a profile from the content of its JSON file.

        Raises:
            ValueError: a key is unknown or missing, or a value is not allowed; the message names
                the key.
        """
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - the content of a file is wrong
        known = {item.name for item in fields(BoardProfile)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
        values: dict[str, Any] = dict(data)
        try:
            if "tiles" in values:
                values["tiles"] = SimulatedTiles(**values["tiles"])
            if "throttle" in values:
                values["throttle"] = Throttle(**values["throttle"])
            for name, kind in (("neighbour", SimulatedNeighbour), ("lower_clock", LowerClock)):
                if values.get(name) is not None:
                    values[name] = kind(**values[name])
            if values.get("power") is not None:
                values["power"] = _power(values["power"])
            pairs = [tuple(pair) for pair in values.get("fused_pairs", ())]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError("fused_pairs: each pair must be two ops")
            values["fused_pairs"] = frozenset(pairs)
            chains = [tuple(ops) for ops in values.get("fused_chains", ())]
            values["fused_chains"] = tuple(sorted(chains, key=len, reverse=True))
            for name in ("crash_ops", "hang_ops", "unsupported_ops"):
                values[name] = frozenset(values.get(name, ()))
            profile = BoardProfile(**values)
        except TypeError as error:
            raise ValueError(f"not a profile of a simulated board: {error}") from error
        if not isinstance(profile.platform, str) or not profile.platform:
            raise ValueError("platform: a name is needed")
        for name in ("peak_macs_per_ms", "bandwidth_bytes_per_ms"):
            if not getattr(profile, name) > 0:
                raise ValueError(f"{name}: must be above 0")
        for name in (
            "overhead_ms",
            "call_overhead_ms",
            "noise",
            "session_noise",
            "measure_ms",
            "cache_bytes",
            "cache_bytes_per_ms",
            "sync_ms",
        ):
            if not getattr(profile, name) >= 0:
                raise ValueError(f"{name}: must not be negative")
        if min(profile.tiles.out_channels, profile.tiles.in_channels, profile.tiles.width) < 1:
            raise ValueError("tiles: must be at least 1")
        _check_together(profile)
        _check_core(profile)
        for name in ("multi_inbound", "multi_outbound"):
            if getattr(profile, name) not in (0, 1, 2):
                raise ValueError(f"{name}: must be 0, 1 or 2")
        return profile

    @staticmethod
    def read(path: Path) -> BoardProfile:
        """Read the file of a profile, or take a built-in one that has this name.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not a profile; the message names the file.
        """
        if str(path) in BUILT_IN and not path.exists():
            return BoardProfile.from_json(built_in(str(path)))
        try:
            content = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path}: is not JSON: {error}") from error
        try:
            return BoardProfile.from_json(content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @staticmethod
    def asked_for(path: Path) -> tuple[Path, BoardProfile]:
        """The profile that somebody named on a command line, and where it is.

        Args:
            path: a file, or the name of a built-in profile.

        Returns:
            The absolute path, or the name of the built-in profile, and the profile.

        Raises:
            ValueError: there is no such profile; the message says in one line why.
        """
        found = path if str(path) in BUILT_IN and not path.exists() else path.absolute()
        try:
            return found, BoardProfile.read(found)
        except FileNotFoundError as error:
            raise ValueError(
                f"there is no file {path}, and no built-in board of that name; built in are: "
                f"{', '.join(BUILT_IN)}"
            ) from error
        except OSError as error:
            raise ValueError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_together(profile: BoardProfile) -> None:
    """Raise a ValueError if kernels could not run together like that."""
    if isinstance(profile.streams, bool) or profile.streams not in range(1, MOST_STREAMS + 1):
        raise ValueError(f"streams: must be a whole number from 1 to {MOST_STREAMS}")
    if not 0 <= profile.overlap <= 1:
        raise ValueError("overlap: must be from 0 to 1")


def _check_core(profile: BoardProfile) -> None:
    """Raise a ValueError if what slows the core down would make it faster."""
    if profile.neighbour is not None and not profile.neighbour.slowdown >= 1:
        raise ValueError("neighbour: slowdown must be at least 1")
    if profile.lower_clock is not None and not profile.lower_clock.factor >= 1:
        raise ValueError("lower_clock: factor must be at least 1")


def _power(data: Any) -> Power:
    if not isinstance(data, dict):
        raise ValueError("power: must be an object")  # noqa: TRY004 - the content of a file is wrong
    power = Power(**data)
    for name, value in power.__dict__.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ValueError(f"power: {name} must be a number that is not negative")
    return power
