"""What the controller tells about boards, platforms and campaigns, as plain data.

The application makes these summaries, `latfarm_controller.api` carries them over the wire, and the
command line shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from latfarm_controller.board_profile import BoardProfile
from latfarm_controller.store.base import CampaignRecord


@dataclass(frozen=True, slots=True)
class BoardSummary:
    """One board of the inventory: what it is, and whether it may work.

    Attributes:
        board_id: identity of the device; empty where the board was never reached.
        name: the board's name in the inventory.
        address: `host:port` of its agent.
        state: the state that its agent reports, or `unreachable`.
        detail: why the board cannot be reached.
        platforms: names of the platforms that it offers.
        hardware: facts about the device, by name.
        standing: `working`, `draining`, `drained`, `reserved`, `maintenance` or `quarantined`.
        standing_reason: why the board does not work, and the remedy.
        standing_since_s: Unix time of that decision in seconds; 0 where there was none.
        under_way: number of requests that the board has now.
        protection: what the kernel keeps from the board's workers, by name; each text begins with
            "on" or "off".
        tags: words by which campaigns and listings choose the board.
        location: where it is.
        owner: whom to ask about it.
        note: what people should know about it.
        access: the group of those whose campaigns may measure on it; empty: everybody's.
        maintenance: when it is drained by itself, for people.
    """

    board_id: str = ""
    name: str = ""
    address: str = ""
    state: str = ""
    detail: str = ""
    platforms: tuple[str, ...] = ()
    hardware: Mapping[str, str] = field(default_factory=dict)
    standing: str = ""
    standing_reason: str = ""
    standing_since_s: float = 0.0
    under_way: int = 0
    protection: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    location: str = ""
    owner: str = ""
    note: str = ""
    access: str = ""
    maintenance: tuple[str, ...] = ()

    @property
    def lacking(self) -> tuple[str, ...]:
        """Names of the protections that are off."""
        return tuple(name for name, told in self.protection.items() if not told.startswith("on"))

    def noted(self, profile: BoardProfile) -> BoardSummary:
        """The same board with what people noted about it."""
        return replace(
            self,
            tags=profile.tags,
            location=profile.location,
            owner=profile.owner,
            note=profile.note,
            access=profile.access,
            maintenance=tuple(map(str, profile.maintenance)),
        )

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON types, with all its fields."""
        lists = {name: list(getattr(self, name)) for name in ("platforms", "tags", "maintenance")}
        return asdict(self) | lists


@dataclass(frozen=True, slots=True)
class PlatformSummary:
    """One platform and the boards that offer it, or a runtime that some boards lack.

    Attributes:
        name: the platform's name; empty for a runtime that is missing.
        runtime: the name of its runtime.
        model_format: the format of the models that it loads.
        boards: names of the boards that offer the platform, or that lack the runtime.
        available: whether a reachable board offers it.
        missing: why nothing offers it, and the remedy.
        bundle: number of its bundle in use; empty where it has none.
        fingerprint: the fingerprint of its settings and versions.
    """

    name: str = ""
    runtime: str = ""
    model_format: str = ""
    boards: tuple[str, ...] = ()
    available: bool = False
    missing: str = ""
    bundle: str = ""
    fingerprint: str = ""

    def to_json(self) -> dict[str, Any]:
        """The summary as plain JSON types, with all its fields."""
        return asdict(self) | {"boards": list(self.boards)}


@dataclass(frozen=True)
class CampaignSummary(CampaignRecord):
    """A campaign's record, and how it goes now, as far as that is watched.

    Attributes:
        remaining_ms: how long its present stage still takes, as an estimate; 0: not known.
        boards: the number of its boards in each state of `observer.BOARD_STATES`.
        measurements_per_s: how many answers came each second lately.
        queue: how many of its requests have no answer yet.
    """

    remaining_ms: float = 0.0
    boards: Mapping[str, int] = field(default_factory=dict)
    measurements_per_s: float = 0.0
    queue: int = 0


@dataclass(frozen=True, slots=True)
class CampaignFigures:
    """How a campaign goes now; see `CampaignSummary` for each."""

    remaining_ms: float = 0.0
    boards: Mapping[str, int] = field(default_factory=dict)
    measurements_per_s: float = 0.0
    queue: int = 0
