"""How the board is, for Prometheus: read when asked, but never while a measurement runs.

What a sensor does not tell is left out, so that nobody takes a missing sensor for a cold board.
"""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Tuple

from latfarm_protos.trust.expiry import expires_at_s
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LOOK_AGAIN_S = 5.0
"""A scrape reads the sensors anew when the last look is older."""

Gauge = Tuple[str, str, float]
_HERTZ_A_MHZ = 1e6
_SENSORS: Mapping[str, Gauge] = {
    "temperature_c": ("temperature_celsius", "Of the board's hottest sensor.", 1.0),
    "clock_mhz": ("clock_hertz", "Of the measuring core, as last read back.", _HERTZ_A_MHZ),
    "throttling": (
        "throttle_level",
        "Throttle events since boot and throttle states, added up; rises when the board throttles.",
        1.0,
    ),
    "load_1m": ("load_average", "Of the board's host over one minute.", 1.0),
}


class ConditionsCollector(Collector):
    """Temperature, clock and throttling, as last seen.

    Args:
        clock_s: any clock that never goes back.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._look: Callable[[], Mapping[str, str] | None] = lambda: None
        self._looked_s = float("-inf")
        self._values: dict[str, float] = {}

    def set_source(self, look: Callable[[], Mapping[str, str] | None]) -> None:
        """`look` gives the conditions now, or None when the board must be left alone."""
        self._look = look

    def saw(self, conditions: Mapping[str, str]) -> None:
        """A board or a result told its conditions; "unknown" and what else is no number is not."""
        with self._lock:
            for name in _SENSORS:
                for told in (f"{name}_after", name):
                    try:
                        self._values[name] = float(conditions[told])
                        break
                    except (KeyError, ValueError):
                        continue

    def collect(self) -> Iterator[Metric]:
        """The gauges of which there is something to tell."""
        if self._clock_s() - self._looked_s >= LOOK_AGAIN_S:
            conditions = self._look()
            if conditions is not None:
                self._looked_s = self._clock_s()
                with self._lock:
                    self._values.clear()  # a sensor may have gone
                self.saw(conditions)
        with self._lock:
            values = dict(self._values)
        for name, value in values.items():
            suffix, text, factor = _SENSORS[name]
            yield GaugeMetricFamily(f"latfarm_agent_{suffix}", text, value=value * factor)


class DiskCollector(Collector):
    """The file system that models and results lie on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Its size and what is free for us."""
        try:
            usage = shutil.disk_usage(str(self._folder))
        except OSError:
            return
        yield GaugeMetricFamily(
            "latfarm_agent_disk_free_bytes",
            "Free for models and results on their file system.",
            value=usage.free,
        )
        yield GaugeMetricFamily(
            "latfarm_agent_disk_size_bytes",
            "Size of the file system of models and results.",
            value=usage.total,
        )


class AgentCertificateCollector(Collector):
    """When the agent's certificates end, read from their files: rotation shows at once."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        """One gauge for each file; none for one that cannot be read."""
        family = GaugeMetricFamily(
            "latfarm_agent_certificate_expiry_timestamp_seconds",
            "When a certificate of this agent ends: its own, or that of the authority.",
            labels=["certificate"],
        )
        for name, path in self._files.items():
            try:
                family.add_metric([name], expires_at_s(path))
            except (OSError, ValueError):
                continue
        yield family
