"""What a kernel takes inside a network: from its own model, or from a profiled network.

Alone, a kernel pays for converting its input into the layout in which the runtime computes, and its
output back; inside a network its neighbours use that layout already. onnxruntime on x86, for one,
spends up to half of a small convolution's time on such reorders. Where the runtime's profiler shows
them they are taken off (`insight="profile"`).

A profiled network tells the same of all its kernels at once (`profiled_networks`).

Without a profile that accounts for the calls, kernels are measured between pads (`padding`) where
moving a tensor in and out costs much of a call, as fusion detection found; elsewhere alone, which
takes a fraction of the time. What was chosen is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.learned.network_correction import boundary_mb
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.samples import KernelSample

from latfarm_controller.campaigns.profiles.profiled_networks import (
    LAYOUT_OPS,
    LEAST_SHARE,
    UNTOLD_SHARE,
    own_layers,
)

Insight = Literal["profile", "padded", "single"]
Asked = Literal["auto", "profile", "padded", "single"]
ORDER: tuple[Insight, ...] = ("profile", "padded", "single")
"""Best first."""

UNSEEN_SHARE = 0.2
"""Where the layers show less than the rest of a call, the difference went into its transfers."""
COSTLY_SHARE = 0.25
"""Of an op's call, without the empty model's: caches alone may save as much between two layers."""
LEAST_MODELS = 3
MOST_SHARE = 0.95
"""More than this cannot be told from a kernel that takes no time."""


def layout_share(
    measurements: Sequence[Measurement], overhead_ms: float | None = None
) -> float | None:
    """Share of a model's time that is none of its kernel's; None without a profile.

    That is what layout conversions took of the layers' time. Given the latency of an empty model,
    it is also what the layers leave unexplained, if that is much: a board that moves inputs and
    outputs to its accelerator and back does so between networks, not between kernels.
    """
    shares = []
    for measurement in measurements:
        layers = own_layers(measurement)
        total_ms = sum(layer.latency_ms for layer in layers)
        if total_ms > 0:
            layout_ms = sum(layer.latency_ms for layer in layers if layer.op in LAYOUT_OPS)
            whole_ms = total_ms
            if overhead_ms is not None:
                alone_ms = (measurement.latency_ms or 0.0) - overhead_ms
                if total_ms < (1.0 - UNSEEN_SHARE) * alone_ms:
                    whole_ms = alone_ms
            shares.append(1.0 - (total_ms - layout_ms) / whole_ms)
    return min(median(shares), MOST_SHARE) if shares else None


def transfer_ms_per_mb(
    measured: Sequence[tuple[Graph, Sequence[Measurement]]], overhead_ms: float
) -> float:
    """What a board takes to move a megabyte of a model's inputs or outputs; 0 if next to nothing.

    It is the median of what profiles of single kernels leave unexplained over the bytes that were
    moved, and counts only where it is a large part of the typical call.

    Args:
        measured: single kernels with all their measurements.
        overhead_ms: latency of an empty model.
    """
    paces: list[float] = []
    parts: list[float] = []
    for graph, measurements in measured:
        moved_mb = boundary_mb(graph)
        for measurement in measurements:
            shown_ms = sum(layer.latency_ms for layer in own_layers(measurement))
            alone_ms = (measurement.latency_ms or 0.0) - overhead_ms
            if shown_ms > 0 and alone_ms > 0 and moved_mb:
                paces.append(max(alone_ms - shown_ms, 0.0) / moved_mb)
                parts.append(1.0 - shown_ms / alone_ms)
    return median(paces) if parts and median(parts) > UNSEEN_SHARE else 0.0


def sample_of(
    kernel: Kernel, measurement: Measurement, overhead_ms: float, share: float | None
) -> KernelSample:
    """A measurement as a training sample, its layout conversions taken off.

    A profiled sample holds no call overhead: the overhead is no part of what is shared out.

    Args:
        kernel: what was measured.
        measurement: a good one, with a latency.
        overhead_ms: latency of an empty model.
        share: of what is not the kernel's own (`layout_share`); None where no profile tells.
    """
    sample = KernelSample(
        kernel, measurement.latency_ms or 0.0, measurement.mad_ms or 0.0, measurement.cold_ms
    )
    if share is None:
        return sample

    def inside(alone_ms: float) -> float:
        return max(alone_ms - overhead_ms, LEAST_SHARE * alone_ms) * (1.0 - share)

    return replace(
        sample,
        latency_ms=inside(sample.latency_ms),
        cold_ms=None if sample.cold_ms is None else inside(sample.cold_ms),
        insight="profile",
    )


@dataclass(frozen=True)
class InsightChoice:
    """How kernels are isolated on a platform, what was asked for, and why it is so."""

    asked: Asked
    chosen: Insight
    reason: str

    def to_json(self, kernels: Mapping[str, str]) -> dict[str, Any]:
        """For the campaign's outcome.

        Args:
            kernels: the insight that each kernel's time rests on, by its id.
        """
        counts = {name: sum(found == name for found in kernels.values()) for name in ORDER}
        return {
            "asked": self.asked,
            "chosen": self.chosen,
            "reason": self.reason,
            "counts": {name: count for name, count in counts.items() if count},
            "kernels": dict(kernels),
        }


def untold_share(measured: Sequence[tuple[Graph, Measurement]], overhead_ms: float) -> float | None:
    """Share of the typical call that profiled layers and transfers leave open, or show too much.

    Args:
        measured: profiled models and what was measured of each.
        overhead_ms: latency of an empty model.

    Returns:
        None for fewer than three models with layers and a time of their own.
    """
    pace = transfer_ms_per_mb([(graph, [m]) for graph, m in measured], overhead_ms)
    shares = []
    for graph, m in measured:
        shown_ms = sum(layer.latency_ms for layer in own_layers(m))
        alone_ms = (m.latency_ms or 0.0) - overhead_ms
        if shown_ms > 0 and alone_ms > 0:
            left_ms = alone_ms - shown_ms - pace * boundary_mb(graph)
            shares.append(abs(left_ms) / alone_ms)
    return median(shares) if len(shares) >= LEAST_MODELS else None


def choose(
    asked: Asked,
    profile: str,
    measured: Sequence[tuple[Graph, Measurement]],
    overhead_ms: float,
    boundary_share: float | None = None,
) -> InsightChoice:
    """The best insight that a platform offers, or the one that is asked for.

    Args:
        asked: "auto", or an insight; one that the platform does not offer gives the next best.
        profile: what fusion detection found of the runtime's profiler: yes, off, unavailable or
            opaque.
        measured: profiled models and what was measured of each.
        overhead_ms: latency of an empty model.
        boundary_share: what an op that nothing fuses pays, alone, for moving its tensors and
            changing their layouts, as a share of its call; None where that is not known.
    """
    if asked in ("single", "padded"):
        return InsightChoice(asked, asked, "asked for")
    if asked == "profile" and profile == "yes":
        return InsightChoice(asked, "profile", "asked for")
    if profile != "yes":
        said = {"opaque": "the profile hides single layers", "off": "no profile was asked for"}
        why = said.get(profile, "the runtime has no profile")
    else:
        share = untold_share(measured, overhead_ms)
        if share is None or share <= UNTOLD_SHARE:
            return InsightChoice(asked, "profile", "the profile accounts for the call")
        why = f"the profile leaves {share:.0%} of a call open"
    if boundary_share is None:
        return InsightChoice(asked, "padded", why)
    chosen: Insight = "padded" if boundary_share > COSTLY_SHARE else "single"
    cost = f"moving tensors costs {max(boundary_share, 0.0):.0%} of a call"
    return InsightChoice(asked, chosen, f"{why}, and {cost}")


def transfer_beside_pads(
    measured: Sequence[tuple[Graph, float, float]], overhead_ms: float
) -> float:
    """As `transfer_ms_per_mb`, from kernels measured both alone and between pads.

    Args:
        measured: each kernel with its latency alone and between pads.
        overhead_ms: latency of an empty model.
    """
    paces: list[float] = []
    parts: list[float] = []
    for graph, single_ms, padded_ms in measured:
        alone_ms, moved_mb = single_ms - overhead_ms, boundary_mb(graph)
        if alone_ms > 0 and moved_mb:
            paces.append(max(alone_ms - padded_ms, 0.0) / moved_mb)
            parts.append(1.0 - padded_ms / alone_ms)
    return median(paces) if parts and median(parts) > UNSEEN_SHARE else 0.0


def chosen_insight(outcome: Mapping[str, Any]) -> Insight | None:
    """The insight that a campaign's outcome names; None where it names none, as older ones."""
    found = outcome.get("insight", {}).get("chosen")
    return found if found in ORDER else None


def insight_story(outcome: Mapping[str, Any], samples: Sequence[KernelSample]) -> dict[str, Any]:
    """For a bundle's provenance: what was chosen, why, and how many distinct kernels rest on what.

    Args:
        outcome: of the campaign.
        samples: what is trained on, kernels of profiled networks included.
    """
    best: dict[str, Insight] = {}
    for sample in samples:
        known = best.get(sample.kernel.kernel_id, "single")
        best[sample.kernel.kernel_id] = min(known, sample.insight, key=ORDER.index)
    counts = {name: sum(found == name for found in best.values()) for name in ORDER}
    recorded = outcome.get("insight", {})
    return {
        **{name: recorded[name] for name in ("asked", "chosen", "reason") if name in recorded},
        "kernels": {name: count for name, count in counts.items() if count},
    }
