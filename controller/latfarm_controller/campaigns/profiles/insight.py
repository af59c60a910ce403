"""How the time that a kernel takes inside a network is obtained: the insight of a platform.

A kernel that runs alone pays for converting its input into the layout in which the runtime
computes, and its output back. Inside a network its neighbours use that layout already. For example,
onnxruntime on x86 spends up to half of a small convolution's time on such conversions. Where the
runtime's profiler shows them, they are subtracted (`insight="profile"`). A profiled network gives
the times of all its kernels at once, see `profiled_networks`.

Some platforms have no profile that accounts for the latency of calls. There, kernels are measured
between pads (`insight="padded"`) if moving a tensor in and out costs much of a call, which fusion
detection finds out. Otherwise they are measured alone (`insight="single"`), which takes a fraction
of the time. The campaign's outcome records what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.learned.network_figures import boundary_mb
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.samples import KernelSample
from latfarm_predictors.slow_core import corrected_cold_ms, corrected_layers

from latfarm_controller.campaigns.profiles.profiled_networks import (
    LAYOUT_OPS,
    LEAST_SHARE,
    UNTOLD_SHARE,
)

Insight = Literal["profile", "padded", "single"]
"""How kernel times are obtained: from a profile, between pads, or as single layers."""
Asked = Literal["auto", "profile", "padded", "single"]
"""What a user may ask for; `auto`: the best that the platform offers."""
ORDER: tuple[Insight, ...] = ("profile", "padded", "single")
"""All insights, the best one first."""

UNSEEN_SHARE = 0.2
"""Share of a call that layers must leave unexplained to count as the cost of its transfers."""
COSTLY_SHARE = 0.25
"""Share of an op's call, without the empty model's, from which moving tensors is costly. Caches
alone may save as much between two layers."""
LEAST_MODELS = 3
"""Number of profiled models from which a profile is judged."""
MOST_SHARE = 0.95
"""Largest share of a call that may be subtracted: more looks like a kernel that takes no time."""


def layout_share(
    measurements: Sequence[Measurement], overhead_ms: float | None = None
) -> float | None:
    """Share of a model's time that does not belong to its kernel; None without a profile.

    This is the share of layout conversions in the time of all layers. With `overhead_ms` it
    includes the time that no layer explains, if that is much: boards move inputs and outputs to an
    accelerator and back once per network, not once per kernel.

    Args:
        measurements: good measurements of the model.
        overhead_ms: latency of an empty model.
    """
    shares = []
    for measurement in measurements:
        layers = corrected_layers(measurement)
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
    """The time in ms to move a megabyte of a model's inputs or outputs; 0 if it is negligible.

    It is the median of the time that profiles of single kernels leave unexplained, per megabyte
    moved. It counts only where it is a large part of the typical call.

    Args:
        measured: single kernels with all their measurements.
        overhead_ms: latency of an empty model.
    """
    paces: list[float] = []
    parts: list[float] = []
    for graph, measurements in measured:
        moved_mb = boundary_mb(graph)
        for measurement in measurements:
            shown_ms = sum(layer.latency_ms for layer in corrected_layers(measurement))
            alone_ms = (measurement.latency_ms or 0.0) - overhead_ms
            if shown_ms > 0 and alone_ms > 0 and moved_mb:
                paces.append(max(alone_ms - shown_ms, 0.0) / moved_mb)
                parts.append(1.0 - shown_ms / alone_ms)
    return median(paces) if parts and median(parts) > UNSEEN_SHARE else 0.0


def sample_of(
    kernel: Kernel, measurement: Measurement, overhead_ms: float, share: float | None
) -> KernelSample:
    """A measurement as a training sample, without its layout conversions.

    A sample with a profile does not include the overhead of the call either; one without does. The
    deviation of the whole is shared by the kernel and what is not its own, as the time is.

    Args:
        kernel: what was measured.
        measurement: a good measurement with a latency.
        overhead_ms: latency of an empty model.
        share: share of the time that is not the kernel's own (`layout_share`); None without a
            profile.
    """
    sample = KernelSample(
        kernel,
        measurement.latency_ms or 0.0,
        measurement.mad_ms or 0.0,
        corrected_cold_ms(measurement),
    )
    if share is None:
        return sample

    def inside(alone_ms: float) -> float:
        return max(alone_ms - overhead_ms, LEAST_SHARE * alone_ms) * (1.0 - share)

    return replace(
        sample,
        latency_ms=inside(sample.latency_ms),
        mad_ms=sample.mad_ms * (1.0 - share),
        cold_ms=None if sample.cold_ms is None else inside(sample.cold_ms),
        insight="profile",
    )


@dataclass(frozen=True)
class InsightChoice:
    """The insight that was chosen for a platform, what was asked for, and the reason."""

    asked: Asked
    chosen: Insight
    reason: str

    def to_json(self, kernels: Mapping[str, str]) -> dict[str, Any]:
        """The choice as plain JSON types, for the campaign's outcome.

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
    """Share of the typical call that layers and transfers leave unexplained, or show in excess.

    Args:
        measured: profiled models with their measurements.
        overhead_ms: latency of an empty model.

    Returns:
        The share; None for fewer than three models with layers and a time of their own.
    """
    pace = transfer_ms_per_mb([(graph, [m]) for graph, m in measured], overhead_ms)
    shares = []
    for graph, m in measured:
        shown_ms = sum(layer.latency_ms for layer in corrected_layers(m))
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
        asked: "auto", or an insight; if the platform does not offer it, the next best is chosen.
        profile: what the runtime's profiler shows: yes, off, unavailable or opaque (see
            `fusion.profile.Profiler`).
        measured: profiled models with their measurements.
        overhead_ms: latency of an empty model.
        boundary_share: what an op that is never fused pays for moving its tensors and changing
            their layouts when it runs alone, as a share of its call; None where it is not known.
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
    """The pace of `transfer_ms_per_mb`, from kernels measured both alone and between pads.

    Args:
        measured: each kernel with its latencies in ms: that of its own model, which includes the
            call, and that between pads, which does not.
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
    """The insight in a campaign's outcome; None in outcomes from before it was recorded."""
    found = outcome.get("insight", {}).get("chosen")
    return found if found in ORDER else None


def insight_story(outcome: Mapping[str, Any], samples: Sequence[KernelSample]) -> dict[str, Any]:
    """The choice, its reason, and the number of kernels by insight, for a bundle's provenance.

    Args:
        outcome: the campaign's outcome.
        samples: the samples that are trained on, including kernels of profiled networks.
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
