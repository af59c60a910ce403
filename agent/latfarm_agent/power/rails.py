"""The power rails of a board, the choice among them, and a thread that samples them.

Rails are read below one root folder, so that tests can make a board of their own from files. The
rail that covers most of the board is used, unless the configuration names others.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping, Protocol, Sequence

from latfarm_agent.errors import AgentUsageError
from latfarm_agent.power.gpu import NvmlPower, find_nvml
from latfarm_agent.power.hwmon import find_hwmon, whole_of
from latfarm_agent.power.integration import COUNTER, Record
from latfarm_agent.power.rapl import find_rapl
from latfarm_agent.power.supply import find_power_supplies

AUTO = "auto"
"""Configured name that stands for the rail that covers most of the board."""

NONE = "none"
"""Configured name that switches energy off."""

LEAST_HZ, MOST_HZ = 5.0, 1000.0
"""Bounds of the configured sampling rate."""

_BUSY = "busy"
_GPU_WORDS = ("cuda", "tensorrt", "nvidia")
"""Words in the settings of platforms that compute on an NVIDIA GPU."""


class Rail(Protocol):
    """A power rail: a counter in mJ or a power in mW; `kind` as in `integration.Record`.

    `step` is its resolution, 0 if that is not known. `read` is called from one thread at a time and
    never raises.
    """

    name: str
    kind: str
    step: float

    def read(self) -> float | None:
        """The value now; None: it cannot be read at this moment."""
        ...

    def obstacle(self) -> str:
        """Why the rail cannot be used now, and what to do; empty: it can be used."""
        ...


@dataclass(frozen=True)
class PowerConfig:
    """Which rails are read, and how often.

    Attributes:
        rails: names as `latfarm-agent describe` shows them; their energies are added. "auto": the
            rail that covers most of the board. "none": no energy is measured.
        hz: samples per second.
    """

    rails: tuple[str, ...] = (AUTO,)
    hz: float = 50.0

    @staticmethod
    def from_json(data: object) -> PowerConfig:
        """The settings from the entry "power" of an agent's configuration.

        Raises:
            AgentUsageError: a key or value is wrong; the message says what belongs there.
        """
        if not isinstance(data, Mapping):
            raise AgentUsageError(
                'power must be an object, as {"rails": ["rapl:package-0"], "hz": 50}'
            )
        for key in data:
            if key not in ("rails", "hz"):
                raise AgentUsageError(f"power has an unknown key {key!r}; known: rails, hz")
        rails, hz = data.get("rails", [AUTO]), data.get("hz", 50.0)
        if isinstance(rails, str):
            rails = [rails]
        good = isinstance(rails, list) and rails and all(isinstance(n, str) and n for n in rails)
        if not good:
            raise AgentUsageError('power.rails must be a list of names, or "auto" or "none"')
        if len(rails) > 1 and (AUTO in rails or NONE in rails):
            raise AgentUsageError(f'power.rails: "{AUTO}" and "{NONE}" stand alone')
        if isinstance(hz, bool) or not isinstance(hz, (int, float)):
            raise AgentUsageError("power.hz must be a number of samples a second")
        if not LEAST_HZ <= hz <= MOST_HZ:
            raise AgentUsageError(f"power.hz must be from {LEAST_HZ:.0f} to {MOST_HZ:.0f}")
        return PowerConfig(tuple(rails), float(hz))


class Rails:
    """The rails of a board.

    Args:
        root: folder below which /sys is found.
        config: which of them to use.
        nvml: opens NVML; gives None if there is none.
    """

    def __init__(
        self,
        root: Path,
        config: PowerConfig | None = None,
        nvml: Callable[[], NvmlPower | None] = lambda: None,
    ) -> None:
        self._root = root
        self.config = config or PowerConfig()
        self._open_nvml = nvml
        self._nvml: NvmlPower | None = None
        self._nvml_opened = False

    def found(self) -> dict[str, Rail]:
        """All rails that a configuration could name, by their names."""
        rails: list[Rail] = [*find_rapl(self._root), *find_hwmon(self._root)]
        rails += find_nvml(self._gpu())
        rails += find_power_supplies(self._root)
        return {rail.name: rail for rail in rails}

    def chosen(self, settings: Mapping[str, str]) -> tuple[list[Rail], str]:
        """The rails that measure a platform, and why there are none.

        A rail of the whole board is preferred to the counter of a package, and that one to the
        gauge of a battery. The rail of a GPU is added if the platform uses the GPU and no other
        rail covers it.

        Args:
            settings: settings of the platform, which name the device that it computes on.
        """
        names = self.config.rails
        if names == (NONE,):
            return [], "the agent's configuration switches energy off"
        if names == (AUTO,):
            rails, why = self._automatic(settings)
        else:
            rails, why = self._named(names)
        for rail in rails:
            obstacle = rail.obstacle()
            if obstacle:
                return [], obstacle
        return rails, why

    def _named(self, names: Sequence[str]) -> tuple[list[Rail], str]:
        found = self.found()
        rails: list[Rail] = []
        for name in names:
            # The name of a kind of rail ("rapl") stands for its first rail, which covers most.
            first = next((known for known in found if known.startswith(f"{name}:")), "")
            if name not in found and not first:
                known = ", ".join(found) or "none"
                return [], f"this board has no rail {name!r}; it has: {known}"
            rails.append(found[name if name in found else first])
        return rails, ""

    def _automatic(self, settings: Mapping[str, str]) -> tuple[list[Rail], str]:
        board = whole_of(find_hwmon(self._root))
        if board is not None:
            return [board], ""
        rails: list[Rail] = list(find_rapl(self._root)[:1])
        told = " ".join([*settings, *settings.values()]).lower()
        if any(word in told for word in _GPU_WORDS):
            gpus = find_nvml(self._gpu())
            if not gpus:
                return [], "the platform computes on a GPU whose power NVML does not tell"
            rails += gpus[:1]
        if rails:
            return rails, ""
        supplies = find_power_supplies(self._root)
        if supplies:
            return [supplies[0]], ""
        return [], (
            "this board has no power rail that Linux shows: neither hwmon, RAPL, NVML nor a "
            "battery's gauge"
        )

    def _gpu(self) -> NvmlPower | None:
        if not self._nvml_opened:
            self._nvml, self._nvml_opened = self._open_nvml(), True
        return self._nvml


class Recorder:
    """Samples rails, and the CPU time of all cores, until it is stopped.

    Args:
        rails: the rails to read.
        busy_s: gives the CPU seconds of all cores since some start; None: not known.
        hz: samples per second.
        avoid: cores on which the sampling thread must not run, if there are others.
    """

    def __init__(
        self,
        rails: Sequence[Rail],
        busy_s: Callable[[], float | None],
        hz: float,
        avoid: Sequence[int] = (),
    ) -> None:
        self._rails = list(rails)
        self._busy_s = busy_s
        self._period_s = 1.0 / hz
        self._avoid = frozenset(avoid)
        self._samples: list[list[tuple[float, float]]] = [[] for _ in self._rails]
        self._busy: list[tuple[float, float]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="power-rails", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[list[Record], Record | None]:
        """Stop sampling; gives what was read of each rail, and of the cores. Idempotent."""
        self._ended.set()
        self._thread.join()
        records = [
            Record(
                rail.name,
                rail.kind,
                [moment for moment, _ in samples],
                [value for _, value in samples],
                step=rail.step,
            )
            for rail, samples in zip(self._rails, self._samples)
        ]
        busy = None
        if self._busy:
            busy = Record(_BUSY, COUNTER, [m for m, _ in self._busy], [v for _, v in self._busy])
        return records, busy

    def _sample(self) -> None:
        self._stand_aside()
        due = time.monotonic()
        last = False
        while True:
            for rail, samples in zip(self._rails, self._samples):
                begun = time.monotonic()
                value = rail.read()
                if value is not None:
                    samples.append(((begun + time.monotonic()) / 2, value))
            value = self._busy_s()
            if value is not None:
                self._busy.append((time.monotonic(), value))
            if last:
                return
            due = max(due + self._period_s, time.monotonic())
            # One sample more after the end, so that the end lies between two samples.
            last = self._ended.wait(max(0.0, due - time.monotonic()))

    def _stand_aside(self) -> None:
        if not hasattr(os, "sched_setaffinity"):
            return
        others = os.sched_getaffinity(0) - self._avoid
        if others:
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, others)  # of this thread alone
