"""What smart padding found about kernels: intervals, why some are rejected, training samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.pads.bounds import Interval

_MAD_OF_UNIFORM = 0.5
"""Median absolute deviation of a uniform distribution, as a share of its half width."""


@dataclass(frozen=True)
class PaddedTime:
    """What padding says about a kernel.

    Attributes:
        kernel: the kernel.
        interval: the interval of its time; None where there is none.
        rejected: why the interval is missing or not trusted; empty where it is good.
        separated: whether a separator stands between the pads and the kernel.
    """

    kernel: Kernel
    interval: Interval | None
    rejected: str = ""
    separated: bool = False

    def to_json(self) -> dict[str, Any]:
        """The time as plain JSON types."""
        row: dict[str, Any] = {"type": self.kernel.type, "rejected": self.rejected}
        if self.interval is not None:
            row |= {
                "latency_ms": self.interval.middle_ms,
                "lower_ms": self.interval.lower_ms,
                "upper_ms": self.interval.upper_ms,
                "noise_ms": self.interval.noise_ms,
                "separated": self.separated,
            }
        return row


def verdict(found: Interval, widest: float) -> str:
    """Why an interval cannot be trusted; empty where it can.

    Args:
        found: the interval, not clipped.
        widest: largest half width of the interval, as a share of its middle.
    """
    if found.upper_ms <= 0:
        return "faster than its pads alone"
    clipped = found.clipped()
    if clipped.half_ms > widest * clipped.middle_ms:
        return "interval too wide"
    return ""


def padded_sample(kernel: Kernel, limits: Interval) -> KernelSample:
    """A sample from an interval: its middle, and the deviation of a uniform distribution."""
    mad_ms = _MAD_OF_UNIFORM * limits.half_ms
    return KernelSample(kernel, limits.middle_ms, mad_ms, None, "padded")


def with_cold(sample: KernelSample, alone: KernelSample | None) -> KernelSample:
    """The sample with the extra time of cold caches that the kernel took alone, if known."""
    if alone is None or alone.cold_ms is None:
        return sample
    extra_ms = max(alone.cold_ms - alone.latency_ms, 0.0)
    return replace(sample, cold_ms=sample.latency_ms + extra_ms)


def padded_samples(
    outcome: Mapping[str, Any], graph_of: Callable[[str], Graph | None]
) -> list[KernelSample]:
    """The kernels of a campaign's outcome whose best time is that between pads, as samples.

    Args:
        outcome: the outcome of a `PaddingCampaign`, or one that contains it as "padding".
        graph_of: gives a stored graph by its hash; kernels whose graph is lost are left out.
    """
    found = []
    times = outcome.get("padding", outcome).get("times", {})
    for key, row in times.items():
        graph = graph_of(key)
        if graph is not None and row["insight"] == "padded":
            limits = Interval(row["lower_ms"], row["upper_ms"], row["noise_ms"])
            found.append(padded_sample(Kernel(graph), limits))
    return found
