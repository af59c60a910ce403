"""What the scheduler is told (events) and what it answers (instructions): plain frozen values.

Times are seconds on any clock that never goes back; the caller passes them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from latfarm_predictors.measurement import Measurement, Settings

CAMPAIGN_PRIORITY = 0
QUERY_PRIORITY = 10
"""Higher goes first among queued work; a running measurement is never interrupted."""


CHECK = "check"
"""Purpose of a sentinel by which a board that is held proves itself."""


class Standing(StrEnum):
    """What people, or the watch over sentinels, decided about a board; outlives restarts."""

    WORKING = "working"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What is built once and measured as often as asked: a graph in a model format and dtype."""

    graph_hash: str
    model_format: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Work:
    """A request as the scheduler sees it. `size_bytes` is an estimate of the built model's size.

    `board`: the only board that may run it; empty: any of the platform's.
    """

    request_id: str
    platform: str
    model: ModelSpec
    purpose: str = ""
    size_bytes: int = 0
    settings: Settings = field(default_factory=Settings)
    board: str = ""


# Events


@dataclass(frozen=True, slots=True)
class BoardJoined:
    """A board is connected and leased. `quiet`: it times for real on the controller's own host."""

    board_id: str
    platforms: tuple[str, ...]
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class BoardLost:
    """A board went away; `running` is the request it was measuring, if any."""

    board_id: str
    running: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The board is there, but no longer ours; `running` is what it was measuring, if anything."""

    board_id: str
    running: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RequestsQueued:
    """A campaign wants these measured. The same request of two campaigns is measured once."""

    campaign_id: str
    works: tuple[Work, ...]
    priority: int = CAMPAIGN_PRIORITY


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """A board answered, for better or worse; it was busy with it for `busy_ms`."""

    board_id: str
    measurement: Measurement
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A board's queue gave a request back without having started it."""

    board_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class BuildReady:
    """A model's bytes can be uploaded."""

    model: ModelSpec
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """A model could not be built; `retryable` when the builder died rather than refused."""

    model: ModelSpec
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """Whether a quarantined board answered its probe well; if not, `reason` may say why."""

    board_id: str
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CampaignCancelled:
    """Nobody waits for this campaign's requests any more."""

    campaign_id: str


@dataclass(frozen=True, slots=True)
class BoardHeld:
    """Somebody decided over a board: it works, drains, or is quarantined until told otherwise.

    A draining board finishes what it runs, a quarantined one is stopped. `checking`: it may run
    requests of the purpose `CHECK` that name it, by which its sentinel is looked at.
    """

    board_id: str
    standing: Standing
    checking: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed."""


Event = (
    BoardJoined
    | BoardLost
    | LeaseExpired
    | RequestsQueued
    | ResultReceived
    | Withdrawn
    | BuildReady
    | BuildFailed
    | ProbeAnswered
    | CampaignCancelled
    | BoardHeld
    | Tick
)


# Instructions


@dataclass(frozen=True, slots=True)
class Build:
    """Build these models in one task; each is answered by BuildReady or BuildFailed."""

    models: tuple[ModelSpec, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Put a request into a board's own queue; the highest priority there runs next."""

    board_id: str
    request_id: str
    model: ModelSpec
    priority: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take a request back if it has not started; with `abort`, stop it even if it has.

    Answered by Withdrawn, or by the result when it was too late.
    """

    board_id: str
    request_id: str
    abort: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """A campaign's answer; exactly one for each request and campaign. No board: it never ran."""

    campaign_id: str
    measurement: Measurement
    board_id: str = ""


@dataclass(frozen=True, slots=True)
class Discard:
    """A result nobody keeps: the board may forget it, so that a retry measures afresh."""

    board_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """A request failed for a reason that is not its own and comes again at `at_s`."""

    request_id: str
    at_s: float
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A board failed too often and gets no work before it was probed at `until_s`."""

    board_id: str
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a quarantined board whether it is well; answered by ProbeAnswered or BoardLost."""

    board_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """No request needs this model's bytes any more."""

    model: ModelSpec


Instruction = (
    Build | Dispatch | Withdraw | Deliver | Discard | RetryAfter | Quarantine | Probe | Release
)
