"""The board and the platforms that a campaign compares, chosen when the campaign starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from latfarm_controller.agents.board import BoardInfo
from latfarm_controller.agents.fleet import BoardView, unknown_platform
from latfarm_controller.campaigns.engines.campaign import EngineOptions
from latfarm_controller.campaigns.engines.platforms import ComparedPlatform, choose, offer
from latfarm_controller.campaigns.kinds import STARTED_BY, TAGS
from latfarm_controller.campaigns.options import read_options
from latfarm_controller.errors import UsageError

SIMULATED = "simulated"
"""The runtime of simulated boards. A real board need not have it."""


def offers_of(info: BoardInfo) -> Iterator[ComparedPlatform]:
    """All platforms that a board offers."""
    for runtime in info.runtimes:
        for platform in runtime.platforms if runtime.available else ():
            yield offer(
                platform.name,
                runtime=runtime.name,
                version=runtime.version,
                model_format=platform.model_format,
                dtype=platform.dtype,
                real_time=platform.real_time,
                fingerprint=platform.fingerprint,
                settings=platform.settings,
            )


def compared(pattern: str, config: Mapping[str, Any], views: Sequence[BoardView]) -> dict[str, Any]:
    """Add the board and its present platforms to the configuration of a comparing campaign.

    Args:
        pattern: shell pattern of platforms' names, for example "*" or "local-*-fp32-*".
        config: the configuration, see `EngineOptions`.
        views: the boards of the inventory.

    Raises:
        UsageError: no board offers such platforms, or several do and the configuration names none.
    """
    own = {key: value for key, value in config.items() if key not in (TAGS, STARTED_BY)}
    options = read_options(EngineOptions, "engines", own)
    found: list[tuple[BoardView, BoardInfo, list[ComparedPlatform]]] = []
    for view in views:
        if view.info is None or options.board not in ("", view.entry.name, view.info.board_id):
            continue
        offers = choose(
            offers_of(view.info),
            pattern=pattern,
            threads=options.threads,
            dtypes=options.dtypes,
            simulated=options.simulated,
        )
        if offers:
            found.append((view, view.info, offers))
    if not found:
        raise UsageError(f"there is nothing to compare: {unknown_platform(pattern, views)}")
    if len(found) > 1:
        names = ", ".join(view.entry.name for view, *_ in found)
        raise UsageError(
            f"several boards offer {pattern!r}: {names}; choose one of them with board"
        )
    view, info, offers = found[0]
    return {
        **config,
        "board": view.entry.name,
        "board_id": info.board_id,
        "hardware": dict(info.hardware),
        "offers": [chosen.model_dump() for chosen in offers],
        "missing": {
            runtime.name: runtime.missing
            for runtime in info.runtimes
            if not runtime.available and (options.simulated or runtime.name != SIMULATED)
        },
    }
