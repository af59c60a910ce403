"""What a board offers, as far as a campaign that compares platforms must know it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions

_TAIL = re.compile(r"^(?P<head>.+?)-(?P<dtype>fp32|fp16|bf16|int8)(?:-(?P<threads>\d+)t)?$")
_VERSIONED = re.compile(r"^[A-Za-z_]+(?P<version>\d[\d.]*)$")


class ComparedPlatform(CampaignOptions):
    """A platform of the compared board.

    `engine` is what people call it in a table ("mnn3.6", "openvino2026.4-gpu"), `threads` None
    where threads do not count (accelerators).
    """

    name: str
    engine: str
    dtype: str
    threads: int | None = Field(default=None, ge=1)
    runtime: str = ""
    version: str = ""
    model_format: str = ""
    real_time: bool = True
    fingerprint: str = ""
    settings: dict[str, str] = Field(default_factory=dict)


def offer(
    name: str,
    *,
    runtime: str,
    version: str,
    model_format: str,
    dtype: str,
    real_time: bool = True,
    fingerprint: str = "",
    settings: Mapping[str, str] | None = None,
) -> ComparedPlatform:
    """An offer from what a board says of a platform; engine and threads are in the name.

    Names are `{hardware}-{runtime}{version}-{device, if any}-{dtype}-{threads}t`, accelerators'
    without the threads. A name of another form is its own engine.
    """
    found = _TAIL.match(name)
    words = (found["head"] if found else name).split("-")
    starts = [
        index
        for index, word in enumerate(words)
        if (match := _VERSIONED.match(word)) and match["version"] in version
    ]
    engine = "-".join(words[starts[-1] :]) if starts else "-".join(words)
    return ComparedPlatform(
        name=name,
        engine=engine,
        dtype=found["dtype"] if found else dtype,
        threads=int(found["threads"]) if found and found["threads"] else None,
        runtime=runtime,
        version=version,
        model_format=model_format,
        real_time=real_time,
        fingerprint=fingerprint,
        settings=dict(settings or {}),
    )


def choose(
    offers: Iterable[ComparedPlatform],
    *,
    pattern: str = "*",
    threads: Iterable[int] = (),
    dtypes: Iterable[str] = (),
    simulated: bool = False,
) -> list[ComparedPlatform]:
    """The offers that a comparison takes, by name.

    Args:
        offers: of one board.
        pattern: shell pattern of names.
        threads: thread counts to keep; accelerators have none and stay; empty: all.
        dtypes: element types to keep; empty: all.
        simulated: take platforms whose time is simulated or computed (Vela's cycles) as well.
    """
    wanted, kept = set(threads), set(dtypes)
    return sorted(
        (
            found
            for found in offers
            if fnmatchcase(found.name, pattern)
            and (not wanted or found.threads is None or found.threads in wanted)
            and (not kept or found.dtype in kept)
            and (simulated or found.real_time)
        ),
        key=lambda found: (found.dtype, found.engine, found.threads or 0, found.name),
    )
