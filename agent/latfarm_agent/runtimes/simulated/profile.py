"""The profile of a simulated board: how fast it is, what it fuses, what it takes, how it fails."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Mapping


@dataclass(frozen=True)
class SimulatedTiles:
    """Work is done in whole tiles: channels and width are rounded up to these."""

    out_channels: int = 1
    in_channels: int = 1
    width: int = 1


@dataclass(frozen=True)
class Throttle:
    """Of each `every` measurements the last `length` run slower by `factor`.

    `reported`: the board's sensor tells, so that the measurement is rejected as THROTTLED; else
    only a sentinel can find out. `every` 0: never.
    """

    every: int = 0
    length: int = 0
    factor: float = 1.0
    reported: bool = True


@dataclass(frozen=True)
class Power:
    """What a simulated board takes: rest, and what work adds to it.

    `idle_mw`: at rest. `active_mw`: more of it while a model runs, whatever it does. `mac_pj`,
    `vector_pj`, `byte_pj`: picojoules of a multiply-add in whole tiles, of an element-wise
    operation, of a byte moved. `call_uj`: microjoules of a call. `noise`: standard deviation of a
    whole session, as a share of what work adds. `step_uj`: resolution of the board's counter.
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
    """A simulated board. Rates are per millisecond; `noise` and `drift` are shares.

    `fused_pairs`: (type of the kernel, op that joins it), the kernel's type being that of its first
    op. `multi_inbound` and `multi_outbound`: 0 no fusion, 1 with the first, 2 with the last branch.
    `overhead_ms` is paid by each kernel, `call_overhead_ms` once a run. `io_bytes_per_ms` 0: the
    model's inputs and outputs cost nothing extra; `cold_bytes_per_ms` likewise for weights that a
    cold run reads. `noise`: standard deviation of a single run; `session_noise`: of a whole
    session; `drift`: how much slower after each 1,000 measurements. `crash_ops` and `hang_ops` end
    or stop the process when a model holds one, `crash_rate` ends it by chance, `unsupported_ops`
    are refused. `measure_ms`: real time that one measurement takes. `power`: None: a board that has
    no rail.
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
    tiles: SimulatedTiles = field(default_factory=SimulatedTiles)
    fused_pairs: frozenset[tuple[str, str]] = frozenset()
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

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> BoardProfile:
        """Read a profile.

        Raises:
            ValueError: an unknown or missing key, or a value that makes no sense; says which.
        """
        if not isinstance(data, dict):
            raise ValueError("not a JSON object")  # noqa: TRY004 - a file's content, not a caller's
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
            if values.get("power") is not None:
                values["power"] = _power(values["power"])
            pairs = [tuple(pair) for pair in values.get("fused_pairs", ())]
            if any(len(pair) != 2 for pair in pairs):
                raise ValueError("fused_pairs: each must be two ops")
            values["fused_pairs"] = frozenset(pairs)
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
        for name in ("overhead_ms", "call_overhead_ms", "noise", "session_noise", "measure_ms"):
            if not getattr(profile, name) >= 0:
                raise ValueError(f"{name}: must not be negative")
        if min(profile.tiles.out_channels, profile.tiles.in_channels, profile.tiles.width) < 1:
            raise ValueError("tiles: must be at least 1")
        for name in ("multi_inbound", "multi_outbound"):
            if getattr(profile, name) not in (0, 1, 2):
                raise ValueError(f"{name}: must be 0, 1 or 2")
        return profile

    @staticmethod
    def read(path: Path) -> BoardProfile:
        """Read a profile file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no profile; names the file.
        """
        try:
            return BoardProfile.from_json(json.loads(path.read_text()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def _power(data: Any) -> Power:
    if not isinstance(data, dict):
        raise ValueError("power: must be an object")  # noqa: TRY004 - a file's content
    power = Power(**data)
    for name, value in power.__dict__.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise ValueError(f"power: {name} must be a number that is not negative")
    return power
