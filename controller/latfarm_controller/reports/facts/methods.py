"""How kernel times were obtained (insight), and how kernels were chosen (sampling)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import log
from statistics import median
from typing import Any

from latfarm_predictors.judging import binomial_interval
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import corrected_layers

from latfarm_controller.campaigns.profiles.insight import Insight
from latfarm_controller.campaigns.profiles.profiled_networks import LAYOUT_OPS
from latfarm_controller.campaigns.sampling.stopping import JudgedShare
from latfarm_controller.reports.facts.platform_record import PlatformRecord

INSIGHTS: tuple[Insight, ...] = ("profile", "padded", "single")
_LEAST_PAIRS = 3
"""Fewest kernels over which two ways of timing are compared."""


def insight(record: PlatformRecord) -> dict[str, Any]:
    """The insight and its reason, the number of kernels of each, and each beside the profiler."""
    told: Mapping[str, Any] = record.outcome.get("insight", {})
    counts = Counter({s.kernel.kernel_id: s.insight for s in record.kernels}.values())
    return {
        "asked": told.get("asked", ""),
        "chosen": told.get("chosen", ""),
        "reason": told.get("reason", ""),
        "counts": {name: counts[name] for name in INSIGHTS if counts[name]},
        "in_networks": _in_networks(record),
        "beside_profile": beside_profile(record),
    }


def _in_networks(record: PlatformRecord) -> int:
    """Number of kernels that are only known from profiled networks."""
    alone = {m.graph_hash for m in record.measured.get("kernel", ())}
    return len({s.kernel.kernel_id for s in record.kernels} - alone)


def profile_ms(measurement: Measurement) -> float:
    """Sum of a model's own layers in its profile, in milliseconds; 0 without a profile.

    It is corrected for the slowdown of the core like the latency that it is compared with.
    """
    layers = corrected_layers(measurement)
    return sum(each.latency_ms for each in layers if each.op not in LAYOUT_OPS)


def beside_profile(record: PlatformRecord) -> list[dict[str, Any]]:
    """Times of kernels alone and between pads, compared with the profiler's times.

    Pearson's correlation is the measure of Fig. 8 of the smart padding paper. The median ratio
    shows a constant factor, which a correlation hides.
    """
    profiles: dict[str, list[float]] = {}
    singles: dict[str, list[float]] = {}
    for m in record.measured.get("kernel", ()):
        if m.ok and m.latency_ms is not None:
            singles.setdefault(m.graph_hash, []).append(m.latency_ms - record.call_overhead_ms)
            if (shown := profile_ms(m)) > 0:
                profiles.setdefault(m.graph_hash, []).append(shown)
    outcome = record.outcome
    times: Mapping[str, Mapping[str, Any]] = outcome.get("padding", outcome).get("times", {})
    padded = {key: [row["latency_ms"]] for key, row in times.items() if "latency_ms" in row}
    found = []
    for name, times_ms in (("padded", padded), ("single", singles)):
        pairs = [
            (median(times_ms[key]), median(shown))
            for key, shown in profiles.items()
            if key in times_ms and median(times_ms[key]) > 0
        ]
        if len(pairs) >= _LEAST_PAIRS:
            ours, theirs = [p[0] for p in pairs], [p[1] for p in pairs]
            found.append(
                {
                    "insight": name,
                    "kernels": len(pairs),
                    "pearson": pearson(ours, theirs),
                    "pearson_log": pearson([log(v) for v in ours], [log(v) for v in theirs]),
                    "median_ratio": median(a / b for a, b in pairs),
                }
            )
    return found


def pearson(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's correlation; None if one of the two is constant."""
    mean_a, mean_b = sum(first) / len(first), sum(second) / len(second)
    both = sum((a - mean_a) * (b - mean_b) for a, b in zip(first, second, strict=True))
    a_square = sum((a - mean_a) ** 2 for a in first)
    b_square = sum((b - mean_b) ** 2 for b in second)
    return float(both / (a_square * b_square) ** 0.5) if a_square > 0 and b_square > 0 else None


def sampling(record: PlatformRecord) -> dict[str, Any]:
    """The sampler, its kernels and rounds, the bundle that it started from, and why it ended."""
    config = {} if record.campaign is None else record.campaign.config
    kernels: Mapping[str, Any] = record.outcome.get("kernels", {})
    target = config.get("target")
    accuracy, judged = kernels.get("accuracy"), kernels.get("judged", 0)
    in_budget = "spent" in record.outcome
    return {
        "sampler": config.get("sampler", "latfarm" if in_budget else "prior"),
        "budget": config.get("budget"),
        "all_stages": record.outcome.get("spent", {}).get("most_measurements"),
        "board_minutes": config.get("board_minutes"),
        "guide": config.get("guide", ""),
        "from_bundle": _bundle_name(config.get("started_from")),
        "target": target,
        "accuracy": accuracy,
        "judged": judged,
        "accuracy_interval": _interval(accuracy, judged),
        "target_met": _is_met(target, accuracy, judged),
        "stopped": kernels.get("stopped", ""),
        "drawn": kernels.get("drawn"),
        "measured": kernels.get("kernels"),
        "excluded": kernels.get("excluded"),
        "rounds": rounds(record.measured.get("kernel", ())),
        "types": dict(kernels.get("types", {})),
    }


def _interval(share: float | None, count: int) -> list[float] | None:
    """The binomial 95 % interval of a share among so many kernels; None where either is missing."""
    return None if share is None or not count else list(binomial_interval(share, count))


def _is_met(target: float | None, share: float | None, count: int) -> bool | None:
    """Whether a survey met its target; None if it had none, or judged no kernel.

    Surveys of older versions do not tell how many kernels judged, and stopped at the bare share.
    """
    if target is None or share is None:
        return None
    if not count:
        return share >= target
    return JudgedShare(round(share * count), count).shows(target)


def _bundle_name(started_from: Any) -> str:
    """Name of the sibling platform's bundle that was started from; empty if there was none."""
    return str(started_from.get("bundle", "")) if isinstance(started_from, Mapping) else ""


def rounds(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The rounds of the sampler, derived from the order of measurements.

    All passes of a round are measured before the next round is drawn. So a new kernel after a
    second pass begins a round. If there was only one pass, everything is one round.

    Args:
        measurements: the measurements of kernels, oldest first.
    """
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    repeated = True
    for m in measurements:
        new = m.graph_hash not in seen
        if new and repeated:
            found.append({"kernels": 0, "measurements": 0, "failed": 0, "board_ms": 0.0})
        repeated = not new
        seen.add(m.graph_hash)
        found[-1]["kernels"] += new
        found[-1]["measurements"] += 1
        found[-1]["failed"] += not m.ok
        found[-1]["board_ms"] += m.board_ms
    return found
