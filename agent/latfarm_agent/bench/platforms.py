"""The platforms of a board: their names, whose they are, and what tells two of a name apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

from latfarm_protos.v1 import agent_pb2 as pb

from latfarm_agent.bench.seats import Seat
from latfarm_agent.board.conditions import fingerprint
from latfarm_agent.runtimes.base import PlatformSpec
from latfarm_agent.runtimes.simulated.cost import BoardProfile
from latfarm_agent.worker.pool import DiscoveredRuntime
from latfarm_agent.worker.worker import WorkerFailure


@dataclass(frozen=True)
class Platform:
    """A platform that a runtime of some version offers, with so many threads."""

    runtime: str
    version: str
    spec: PlatformSpec
    threads: int


class Platforms:
    """Names and fingerprints of a board's platforms.

    Args:
        hardware_name: names begin with it, unless they are whole already.
        hardware: what the board is.
        software: what it runs.
        seats: by number of threads, where they measure.
        profile: of a simulated board; None: it is real.
    """

    def __init__(
        self,
        hardware_name: str,
        hardware: Mapping[str, str],
        software: Mapping[str, str],
        seats: Mapping[int, Seat],
        profile: BoardProfile | None,
    ) -> None:
        self._hardware_name = hardware_name
        self._hardware = hardware
        self._software = software
        self._seats = seats
        self._profile = profile

    def listed(self, found: Mapping[str, DiscoveredRuntime]) -> list[pb.Runtime]:
        """Runtimes by name with their platforms; missing ones say why."""
        return [
            pb.Runtime(
                name=name,
                available=not entry.missing,
                version=entry.version,
                missing=entry.missing or entry.lacking,
                platforms=[
                    pb.Platform(
                        name=full_name,
                        model_format=platform.spec.model_format,
                        dtype=platform.spec.dtype,
                        settings=dict(platform.spec.settings),
                        fingerprint=self.fingerprint(platform),
                        real_time=platform.spec.real_time,
                    )
                    for full_name, platform in self._named(name, entry).items()
                ],
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
        """A digest of all that makes latencies comparable, as it is now."""
        spec, seat = platform.spec, self._seats[platform.threads]
        parts: dict[str, object] = {
            "runtime": platform.runtime,
            "version": platform.version,
            "format": spec.model_format,
            "dtype": spec.dtype,
            "settings": dict(spec.settings),
        }
        if self._profile is not None:
            parts["board"] = repr(sorted(_frozen(self._profile).items()))
        elif spec.real_time:
            parts["board"] = [self._hardware[name] for name in ("cpu", "arch", "model")]
            parts["software"] = self._software
            parts["policy"] = seat.sensors.policy()
            parts["core_mask"] = seat.core_mask
        return fingerprint(parts)

    def _named(self, runtime: str, entry: DiscoveredRuntime) -> dict[str, Platform]:
        """The platforms of a runtime by their full names."""
        return {
            spec.name if spec.whole_name else f"{self._hardware_name}-{spec.name}": Platform(
                runtime, entry.version, spec, threads
            )
            for spec, threads in zip(entry.platforms, entry.threads)
        }


def _frozen(profile: BoardProfile) -> dict[str, object]:
    """A profile with its sets in a fixed order, so that equal profiles hash alike."""
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in profile.__dict__.items()
        if value is not None  # what a board was not given is no part of it
    }
