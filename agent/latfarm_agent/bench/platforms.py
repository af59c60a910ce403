"""The platforms of a board: their names, their runtimes, and their fingerprints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from latfarm_agent.bench.board import MeasuredBoard
from latfarm_agent.bench.records import OfferedPlatform, OfferedRuntime
from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import fingerprint
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.worker.failure import WorkerFailure
from latfarm_agent.worker.pool import DiscoveredRuntime


@dataclass(frozen=True)
class Platform:
    """A platform that one version of a runtime offers, with a number of threads."""

    runtime: str
    version: str
    spec: PlatformSpec
    threads: int


class Platforms:
    """Names and fingerprints of a board's platforms.

    Args:
        hardware_name: the names of platforms begin with it, unless they are complete already.
        board: the board that offers them.
        seats: by number of threads, where workers measure.
    """

    def __init__(self, hardware_name: str, board: MeasuredBoard, seats: Mapping[int, Seat]) -> None:
        self._hardware_name = hardware_name
        self._board = board
        self._seats = seats

    def listed(self, found: Mapping[str, DiscoveredRuntime]) -> list[OfferedRuntime]:
        """Runtimes by name with their platforms; missing ones say why."""
        return [
            OfferedRuntime(
                name=name,
                available=not entry.missing,
                version=entry.version,
                missing=entry.missing or entry.lacking,
                platforms=tuple(
                    OfferedPlatform(
                        name=full_name,
                        model_format=platform.spec.model_format,
                        dtype=platform.spec.dtype,
                        settings=dict(platform.spec.settings),
                        fingerprint=self.fingerprint(platform),
                        real_time=platform.spec.real_time,
                    )
                    for full_name, platform in self._named(name, entry).items()
                ),
            )
            for name, entry in sorted(found.items())
        ]

    def find(self, wanted: str, found: Mapping[str, DiscoveredRuntime]) -> Platform:
        """A platform by its full name.

        Raises:
            WorkerFailure: RUNTIME_MISSING, with what is offered and why the rest is not.
        """
        named: dict[str, Platform] = {}
        for name, entry in found.items():
            named = {**self._named(name, entry), **named}
        if wanted in named:
            return named[wanted]
        told = {name: entry.missing or entry.lacking for name, entry in found.items()}
        lacking = [f"{name}: {reason}" for name, reason in told.items() if reason]
        raise WorkerFailure(
            "RUNTIME_MISSING",
            f"this board does not offer {wanted!r}; it offers: "
            + (", ".join(sorted(named)) or "nothing")
            + (f"; missing: {'; '.join(lacking)}" if lacking else ""),
        )

    def fingerprint(self, platform: Platform) -> str:
        """A digest of everything that makes latencies comparable, as it is at this moment."""
        spec = platform.spec
        parts: dict[str, object] = {
            "runtime": platform.runtime,
            "version": platform.version,
            "format": spec.model_format,
            "dtype": spec.dtype,
            "settings": dict(spec.settings),
            **self._board.fingerprint_parts(spec, self._seats[platform.threads]),
        }
        return fingerprint(parts)

    def _named(self, runtime: str, entry: DiscoveredRuntime) -> dict[str, Platform]:
        """The platforms of a runtime by their full names."""
        return {
            spec.name if spec.whole_name else f"{self._hardware_name}-{spec.name}": Platform(
                runtime, entry.version, spec, threads
            )
            for spec, threads in zip(entry.platforms, entry.threads)
        }
