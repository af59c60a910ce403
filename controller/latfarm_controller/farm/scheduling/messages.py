"""What the scheduler is told (events) and what it answers (instructions), as frozen dataclasses.

Times are seconds on any clock that never goes back; the caller passes them in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from latfarm_predictors.measurement import Measurement, Settings

CAMPAIGN_PRIORITY = 0
"""Priority of a campaign's requests."""
CALIBRATION_PRIORITY = 5
"""Priority of the networks that calibrate a characterisation; its bundle waits for them."""
QUERY_PRIORITY = 10
"""Priority of a query, for which somebody waits.

Of queued requests, those with a higher priority go first; a running measurement is not interrupted.
"""
CHECK = "check"
"""Purpose of a sentinel measurement by which a drained or quarantined board shows that it works."""
HEALTH = "health"
"""Purpose of the measurements of a health check, by which an unproven board shows that it works."""
CHECKS = (CHECK, HEALTH)
"""Purposes of requests that a board may run although it does not work."""


class Standing(StrEnum):
    """What was decided about a board, by people or because its sentinel drifted.

    A drained board finishes what it runs and gets no more; a quarantined board is stopped at once.
    The decision is stored, and holds after a restart. `UNPROVEN` is no decision and is not stored:
    the board works once it has passed its health check.
    """

    WORKING = "working"
    UNPROVEN = "unproven"
    DRAINING = "draining"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Names a model: a graph in a model format and a data type. It is built once for all uses."""

    graph_hash: str
    model_format: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Work:
    """A request as the scheduler sees it.

    `size_bytes` estimates the size of the built model. `board` is the id of the only board that may
    run the request; empty: any board that offers the platform. `partition` names the boards that
    may run it; empty: all boards.
    """

    request_id: str
    platform: str
    model: ModelSpec
    purpose: str = ""
    size_bytes: int = 0
    settings: Settings = field(default_factory=Settings)
    board: str = ""
    partition: str = ""

    @property
    def queue(self) -> str:
        """The name of the queue in which the request waits, and which its boards serve."""
        return queue_of(self.platform, self.partition)


def queue_of(platform: str, partition: str = "") -> str:
    """The name of the queue of a platform's requests for one partition, or for all boards."""
    # No platform's name has a line break.
    return f"{platform}\n{partition}" if partition else platform


# Events


@dataclass(frozen=True, slots=True)
class BoardJoined:
    """A board is connected and leased.

    `quiet`: it measures real time on the controller's own host, which must be idle meanwhile.
    `partitions`: names of the sets of boards to which it belongs. `connection` names this
    connection; no other one has that name.
    """

    board_id: str
    platforms: tuple[str, ...]
    quiet: bool = False
    partitions: tuple[str, ...] = ()
    connection: str = ""


@dataclass(frozen=True, slots=True)
class BoardPartitioned:
    """From now on, a board belongs to these partitions, and to no others."""

    board_id: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BoardLost:
    """The connection to a board was lost while it measured the request `running`, if any.

    `leased_s`: for how many seconds at most the board stays leased, and measures what it has.
    `busy_ms`: how long the board had been busy with that request when the loss was noticed.
    """

    board_id: str
    running: str = ""
    reason: str = ""
    leased_s: float = 0.0
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """A board is no longer leased to this farm, or its shard died.

    Unlike BoardLost, this is not counted as a failure of the board. `running` is the request that
    the board was measuring, if any, and `busy_ms` how long it had been busy with it. `leased_s`:
    for how many seconds at most the lease lasts all the same, because nobody could give it back.
    """

    board_id: str
    running: str = ""
    reason: str = ""
    leased_s: float = 0.0
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestsQueued:
    """A campaign submits requests. A request that two campaigns submit is measured once."""

    campaign_id: str
    works: tuple[Work, ...]
    priority: int = CAMPAIGN_PRIORITY


@dataclass(frozen=True, slots=True)
class ResultReceived:
    """A board answered, with a latency or a failure; it was busy with the request for `busy_ms`."""

    board_id: str
    measurement: Measurement
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class AnswerFound:
    """The answer to a request was found where an earlier controller left it, in a board's spool."""

    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """A board gave a request back without a result: not started, or stopped as it was asked to.

    `busy_ms`: how long the board was busy with it until then.
    """

    board_id: str
    request_id: str
    busy_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class BuildReady:
    """A model was built, and can be uploaded to boards."""

    model: ModelSpec
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BuildFailed:
    """A model could not be built.

    `retryable`: the builder died, so that another try may succeed; otherwise it refused the model.
    `lost`: what all builders need went away, which says little about the model.
    """

    model: ModelSpec
    message: str
    retryable: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class BuildersChanged:
    """From now on, so many builds may run at once; 0: nothing can be built now.

    `starting`: what builders need is being started, which keeps this host busy like a build.
    """

    slots: int
    starting: bool = False


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """A quarantined board answered its probe; if it is not healthy, `reason` may say why."""

    board_id: str
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CampaignCancelled:
    """A campaign does not wait for its requests any more."""

    campaign_id: str


@dataclass(frozen=True, slots=True)
class BoardHeld:
    """A decision about a board, which holds until the next one.

    `checking`: although it is unproven, drained or quarantined, the board may run requests whose
    purpose is one of `CHECKS` and that name it: they are measured before the board works again.
    `stop`: a drained board is to give back what it runs as well.
    """

    board_id: str
    standing: Standing
    checking: bool = False
    stop: bool = False


@dataclass(frozen=True, slots=True)
class MeasurementsDiscarded:
    """A board was quarantined: what it measured after `since_s` is discarded.

    Campaigns that run ask for those measurements again. `since_s` is Unix time by the board's
    clock, `reason` says why the board was quarantined.

    As an event it comes back as an instruction, which tells all campaigns. So they are told after
    the answers that came before it, and store none of these as good.
    """

    board_id: str
    since_s: float
    reason: str

    def covers(self, measurement: Measurement) -> bool:
        """Whether a measurement is one of those that are discarded."""
        ours = measurement.ok and measurement.board_id == self.board_id
        return ours and measurement.told_at_s > self.since_s


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but that time passed."""


Event = (
    BoardJoined
    | BoardPartitioned
    | BoardLost
    | LeaseExpired
    | RequestsQueued
    | ResultReceived
    | AnswerFound
    | Withdrawn
    | BuildReady
    | BuildFailed
    | BuildersChanged
    | ProbeAnswered
    | CampaignCancelled
    | BoardHeld
    | MeasurementsDiscarded
    | Tick
)


# Instructions


@dataclass(frozen=True, slots=True)
class Build:
    """Build these models in one task; BuildReady or BuildFailed answers for each model."""

    models: tuple[ModelSpec, ...]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Put a request into the queue of a board; the request with the highest priority runs next.

    `connection` names the connection to the board that is meant.
    """

    board_id: str
    request_id: str
    model: ModelSpec
    priority: int
    connection: str = ""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take a request back if it has not started; with `abort`, stop it even if it has.

    The answer is Withdrawn, or ResultReceived when it was too late.
    """

    board_id: str
    request_id: str
    abort: bool = False


@dataclass(frozen=True, slots=True)
class Deliver:
    """Give a campaign its answer: exactly one for each request that the campaign submitted.

    `board_id` is empty if the request failed, so that no board keeps its result.
    """

    campaign_id: str
    measurement: Measurement
    board_id: str = ""


@dataclass(frozen=True, slots=True)
class ForgetResult:
    """Have a board forget a result that is not used, so that a retry is measured again."""

    board_id: str
    request_id: str


@dataclass(frozen=True, slots=True)
class RetryAfter:
    """Tells that a request failed by no fault of its own, and is tried again at `at_s`."""

    request_id: str
    at_s: float
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Tells that a board failed too often: it gets no work, and is probed at `until_s`."""

    board_id: str
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask a quarantined board whether it works; the answer is ProbeAnswered or BoardLost."""

    board_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Tells that no request needs this model any more."""

    model: ModelSpec


Instruction = (
    Build
    | Dispatch
    | Withdraw
    | Deliver
    | ForgetResult
    | RetryAfter
    | Quarantine
    | Probe
    | Release
    | MeasurementsDiscarded
)
