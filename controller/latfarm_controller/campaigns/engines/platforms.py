"""The platforms of one board that a campaign compares with each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from pydantic import Field

from latfarm_controller.campaigns.options import CampaignOptions
from latfarm_controller.platform_name import PlatformName


class ComparedPlatform(CampaignOptions):
    """A platform of the compared board.

    Attributes:
        name: the platform.
        engine: its name in tables, for example "mnn3.6" or "openvino2026.4-gpu".
        dtype: the element type that it computes with.
        threads: the number of threads; None for accelerators, where threads do not count.
        runtime: the runtime's name.
        version: the runtime's version.
        model_format: the format of the models that it loads.
        real_time: False where latencies are simulated or computed (Vela's cycles).
        fingerprint: identifies the board's hardware and software.
        settings: the platform's own settings.
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
    """A platform as a board offers it; its engine and its threads are read from its name.

    A name that does not have the usual form (see `platform_name`) is its own engine.

    Args:
        name: the platform.
        runtime: the runtime's name.
        version: the runtime's version.
        model_format: the format of the models that it loads.
        dtype: the element type, for names that do not say it.
        real_time: False where latencies are simulated or computed instead of measured.
        fingerprint: identifies the board's hardware and software.
        settings: the platform's own settings.
    """
    parts = PlatformName.parse(name)
    return ComparedPlatform(
        name=name,
        engine=parts.engine(version),
        dtype=parts.dtype or dtype,
        threads=parts.threads,
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
    """The platforms that a comparison takes, sorted by element type, engine, threads and name.

    Args:
        offers: all platforms of one board.
        pattern: shell pattern that the names must match.
        threads: numbers of threads to keep; empty keeps all. Accelerators are always kept.
        dtypes: element types to keep; empty keeps all.
        simulated: also take platforms whose latencies are simulated or computed (Vela's cycles).
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
