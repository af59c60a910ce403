"""Which platform, element type and network to choose, and what unsupported ops cost.

NNLQP (section 9) names four decisions that latencies of a few candidates settle before a network is
designed: the ops to avoid, the backbone, the hardware, and whether a narrower element type is worth
its loss of accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from latfarm_controller.platform_name import PlatformName

WIDTH_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "int8": 8}
"""Bits of each element type; a comparison goes from the wider to the narrower one."""
SMALL_GAIN = 0.05
"""A narrower type that saves less than this share is not worth its loss of accuracy; NNLQP (section
9) keeps FP32 for vision transformers, for which INT8 saves less than 5 %."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The latency of one network on one platform.

    Attributes:
        model: the network.
        platform: the platform.
        latency_ms: its latency in milliseconds.
        source: `measured` or `predicted`.
        unsupported: for each op that the platform cannot run or no regressor knows, a text.
        unsupported_ms: predicted time of these ops in milliseconds; part of the latency.
    """

    model: str
    platform: str
    latency_ms: float
    source: str
    unsupported: tuple[str, ...] = ()
    unsupported_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Ranked:
    """One of several choices, and how many times slower it is than the best one."""

    name: str
    latency_ms: float
    times_best: float


@dataclass(frozen=True, slots=True)
class TypeGain:
    """What a narrower element type gains for one network.

    Attributes:
        model: the network.
        wide: platform with the wider type.
        narrow: platform that differs in its type alone.
        saved: saved share of the latency; negative where the narrower type is slower.
        worth_it: whether it saves more than `SMALL_GAIN`.
    """

    model: str
    wide: str
    narrow: str
    saved: float
    worth_it: bool


@dataclass(frozen=True, slots=True)
class OpCost:
    """What ops cost that a platform does not support.

    Attributes:
        model: the network.
        platform: the platform.
        ops: for each of them, a text with its node, its op and the reason.
        latency_ms: their predicted time in milliseconds.
        share: their share of the predicted latency.
    """

    model: str
    platform: str
    ops: tuple[str, ...]
    latency_ms: float
    share: float


@dataclass(frozen=True)
class Choices:
    """All decisions that the candidates settle.

    Attributes:
        platforms: for each network that several platforms run, these from the fastest on.
        types: for each network and each two platforms that differ in their element type alone.
        models: for each platform that runs several networks, these from the fastest on.
        unsupported: for each network and platform with unsupported ops.
    """

    platforms: dict[str, list[Ranked]]
    types: list[TypeGain]
    models: dict[str, list[Ranked]]
    unsupported: list[OpCost]

    def to_json(self) -> dict[str, Any]:
        """The decisions as plain JSON types."""
        return asdict(self)


def choices(candidates: Sequence[Candidate]) -> Choices:
    """The decisions that latencies of networks on platforms settle."""
    by_model: dict[str, dict[str, float]] = {}
    by_platform: dict[str, dict[str, float]] = {}
    for each in candidates:
        by_model.setdefault(each.model, {})[each.platform] = each.latency_ms
        by_platform.setdefault(each.platform, {})[each.model] = each.latency_ms
    return Choices(
        {model: _ranked(found) for model, found in by_model.items() if len(found) > 1},
        [gain for model, found in by_model.items() for gain in _gains(model, found)],
        {platform: _ranked(found) for platform, found in by_platform.items() if len(found) > 1},
        [
            OpCost(
                each.model,
                each.platform,
                each.unsupported,
                each.unsupported_ms,
                each.unsupported_ms / each.latency_ms if each.latency_ms > 0 else 0.0,
            )
            for each in candidates
            if each.unsupported
        ],
    )


def _ranked(latencies_ms: Mapping[str, float]) -> list[Ranked]:
    """Names from the fastest on."""
    order = sorted(latencies_ms.items(), key=lambda item: (item[1], item[0]))
    best = order[0][1]
    return [Ranked(name, value, value / best if best > 0 else 1.0) for name, value in order]


def _gains(model: str, latencies_ms: Mapping[str, float]) -> list[TypeGain]:
    """What narrower types gain for one network."""
    found = []
    for pair in combinations(sorted(latencies_ms), 2):
        wide, narrow = sorted(pair, key=_bits, reverse=True)
        if _bits(wide) == _bits(narrow) or _without_type(wide) != _without_type(narrow):
            continue
        saved = 1.0 - latencies_ms[narrow] / latencies_ms[wide]
        found.append(TypeGain(model, wide, narrow, saved, saved > SMALL_GAIN))
    return found


def _bits(platform: str) -> int:
    """Bits of a platform's element type; 0 where its name does not tell."""
    return WIDTH_BITS.get(PlatformName.parse(platform).dtype, 0)


def _without_type(platform: str) -> tuple[object, ...]:
    """All parts of a platform's name but its element type; different where it has none."""
    parts = PlatformName.parse(platform)
    return (parts.words, parts.threads) if parts.dtype else (platform,)
