"""Metrics that are read when Prometheus asks: the board's conditions, its disk, its certificates.

Sensors are never read while a measurement runs. A sensor that tells nothing has no metric, so that
a missing sensor does not look like a cold board.
"""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Tuple

from latfarm_protos.trust.expiry import expires_at_s
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

LOOK_AGAIN_S = 5.0
"""A scrape reads the sensors again if the last readings are older than this, in seconds."""

READERS_KEPT = 8
"""Most readers of the metrics whose certificates are told about; the oldest one is forgotten."""
READER_GONE_S = 3600.0
"""A reader that has not come for this long, in seconds, is not told about any more."""

Gauge = Tuple[str, str, float]
"""Name, help, and the factor from the condition's unit to that of the metric."""

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
    """Temperature, clock, throttling and load, as they were read last.

    Args:
        clock_s: a monotonic clock in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._look: Callable[[], Mapping[str, str] | None] = lambda: None
        self._looked_s = float("-inf")
        self._values: dict[str, float] = {}

    def set_source(self, look: Callable[[], Mapping[str, str] | None]) -> None:
        """Set the function that reads the conditions; it gives None while a measurement runs."""
        self._look = look

    def saw(self, conditions: Mapping[str, str]) -> None:
        """Take the conditions of a board or a result; values that are no number are left out."""
        with self._lock:
            for name in _SENSORS:
                for told in (f"{name}_after", name):
                    try:
                        self._values[name] = float(conditions[told])
                        break
                    except (KeyError, ValueError):
                        continue

    def collect(self) -> Iterator[Metric]:
        """The gauges whose values are known."""
        if self._clock_s() - self._looked_s >= LOOK_AGAIN_S:
            conditions = self._look()
            if conditions is not None:
                self._looked_s = self._clock_s()
                with self._lock:
                    self._values.clear()  # a sensor may have disappeared
                self.saw(conditions)
        with self._lock:
            values = dict(self._values)
        for name, value in values.items():
            suffix, text, factor = _SENSORS[name]
            yield GaugeMetricFamily(f"latfarm_agent_{suffix}", text, value=value * factor)


class DiskCollector(Collector):
    """The file system that holds models and results."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Return the size of the disk and the space that is free for the agent, in bytes."""
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
    """When the agent's certificates expire, read from their files at each scrape."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def collect(self) -> Iterator[Metric]:
        """One gauge for each file that can be read."""
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


class ReaderCertificateCollector(Collector):
    """When the certificates of those who read the metrics expire, above all that of Prometheus.

    Prometheus does not tell of the certificate that it shows to boards, so the boards do.

    Args:
        clock_s: a monotonic clock in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._readers: dict[str, tuple[float, float]] = {}  # name: when it expires, when it came

    def saw(self, name: str, expires_s: float) -> None:
        """Note a reader that was let in, and the Unix time at which its certificate expires."""
        with self._lock:
            self._readers.pop(name, None)
            self._readers[name] = (expires_s, self._clock_s())
            if len(self._readers) > READERS_KEPT:
                del self._readers[next(iter(self._readers))]

    def collect(self) -> Iterator[Metric]:
        """One gauge for each reader of the last hour."""
        family = GaugeMetricFamily(
            "latfarm_agent_reader_certificate_expiry_timestamp_seconds",
            "When the certificate ends that a reader of these metrics showed last.",
            labels=["reader"],
        )
        with self._lock:
            readers = dict(self._readers)
        now_s = self._clock_s()
        for name, (expires_s, came_s) in readers.items():
            if now_s - came_s <= READER_GONE_S and math.isfinite(expires_s):
                family.add_metric([name], expires_s)
        yield family
