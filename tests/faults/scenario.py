"""What one run does: a small farm, a small campaign and its faults, drawn from a seed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

RACK, AGENTS = "rack", "agents"
"""The boards of a run: one process that is several boards, or one agent process for each board."""

CONTROLLER_KILLED = "controller killed"
SHARD_KILLED = "shard killed"
RAYLET_KILLED = "raylet killed"
GCS_KILLED = "GCS killed"
BUILDER_KILLED = "builder killed"
AGENT_KILLED = "agent killed"
WORKER_KILLED = "worker killed"
CUT_BEFORE_REQUEST = "cut before the request"
CUT_BEFORE_ANSWER = "cut before the answer"
CUT_DURING_ANSWER = "cut during the answer"
SILENCE = "silence"
HANGS = "board hangs"
REBOOTS = "board reboots"
ANSWERS_TWICE = "board answers twice"
ANSWERS_LATE = "board answers late"
LIES = "board lies about a hash"
FULL_DISK = "disk full"
THROTTLES = "board throttles"
DRIFTS = "board drifts"
CLOCK_JUMPS = "clock jumps"

RAY_KILLS = (SHARD_KILLED, RAYLET_KILLED, GCS_KILLED, BUILDER_KILLED)
"""Faults of a farm whose controller is the real `latfarm serve` on Ray."""

CUTS = (CUT_BEFORE_REQUEST, CUT_BEFORE_ANSWER, CUT_DURING_ANSWER)
"""Faults of the link to one board that cut its connections at a certain moment."""

LINK_FAULTS = (*CUTS, SILENCE)
"""Faults of the link to one board."""

BOARD_FAULTS = (HANGS, REBOOTS, ANSWERS_TWICE, ANSWERS_LATE, LIES, THROTTLES, DRIFTS)
"""Faults that one board of a rack has from the start."""

OTHER_VALUES = (THROTTLES, DRIFTS)
"""Faults that change what their board measures."""

EVERYWHERE = (CONTROLLER_KILLED, AGENT_KILLED, *LINK_FAULTS, CLOCK_JUMPS)
"""Faults that every farm can have."""

AGENT_FAULTS = (WORKER_KILLED, FULL_DISK)
"""Faults of one process that is one board; a rack would have them on all boards at once."""

CLOCK_STEPS_S = (-3600.0, -30.0, 45.0, 7200.0)
"""A clock of the controller or of the boards jumps by one of these, in seconds."""


@dataclass(frozen=True)
class Fault:
    """One fault of a run.

    Attributes:
        kind: one of the names above.
        board: the place of the board that has it, from 0; meaningless for a fault of no board.
        after: it happens once so many measurements have ended; 0 for a fault from the start.
        seconds: how long it lasts, or by how much the clock jumps.
        where: whose clock jumps: `controller` or `boards`.
    """

    kind: str
    board: int = 0
    after: int = 0
    seconds: float = 0.0
    where: str = ""


@dataclass(frozen=True)
class Scenario:
    """One run.

    Attributes:
        seed: from which it was drawn.
        ray: whether the controller is the real `latfarm serve` on Ray, not one without Ray.
        boards: `RACK` or `AGENTS`.
        count: number of boards.
        requests: number of requests of the campaign.
        measure_ms: real time that a measurement takes, in milliseconds.
        lease_ms: how long a lease lasts, in milliseconds.
        faults: what goes wrong, in the order in which it happens.
    """

    seed: int
    ray: bool
    boards: str
    count: int
    requests: int
    measure_ms: int
    lease_ms: int
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of its faults."""
        return tuple(fault.kind for fault in self.faults)

    @property
    def far_shards(self) -> bool:
        """Whether boards are in shards of their own processes, so that one can be killed."""
        return SHARD_KILLED in self.kinds

    def to_json(self) -> dict[str, Any]:
        """The scenario in one line of a report."""
        return {
            "seed": self.seed,
            "ray": self.ray,
            "boards": f"{self.count} {self.boards}",
            "requests": self.requests,
            "faults": list(self.kinds),
        }


@dataclass(frozen=True)
class Sizes:
    """How large the scenarios are.

    Attributes:
        boards: the smallest and the largest number of boards of a rack.
        agents: the number of boards that are agent processes.
        requests: the smallest and the largest number of requests.
        measure_ms: the shortest and the longest measurement, in milliseconds.
        leases_ms: the leases that are drawn from, in milliseconds.
        silence_s: how long a link is silent, in seconds.
        most_faults: the largest number of faults.
        agents_share: share of the scenarios whose boards are agent processes.
    """

    boards: tuple[int, int]
    agents: int
    requests: tuple[int, int]
    measure_ms: tuple[int, int]
    leases_ms: tuple[int, ...]
    silence_s: float
    most_faults: int
    agents_share: float


FULL = Sizes((3, 8), 2, (80, 140), (80, 250), (3_000, 30_000), 30.0, 4, 0.35)
"""The scenarios of `make test-faults`."""

QUICK = Sizes((2, 4), 2, (24, 40), (10, 30), (2_000,), 2.5, 2, 0.15)
"""The scenarios of `make test`, where nothing may take long."""


def drawn(seed: int, sizes: Sizes = FULL, *, ray: bool | None = None) -> Scenario:
    """The scenario of a seed; the same for the same arguments.

    The first fault is the next one of the list of all faults, so that few seeds show many faults;
    the others are drawn.

    Args:
        seed: any whole number.
        sizes: how large it is.
        ray: whether the controller is on Ray; None: each second seed is.
    """
    draw = Random(f"latfarm faults {seed}")
    on_ray = seed % 2 == 0 if ray is None else ray
    turn = seed // 2 if ray is None else seed
    everything = [*EVERYWHERE, *BOARD_FAULTS, *AGENT_FAULTS, *(RAY_KILLS if on_ray else ())]
    first = everything[turn % len(everything)]
    if first in AGENT_FAULTS:
        boards = AGENTS
    elif first in BOARD_FAULTS or draw.random() >= sizes.agents_share:
        boards = RACK
    else:
        boards = AGENTS
    scenario = Scenario(
        seed=seed,
        ray=on_ray,
        boards=boards,
        count=draw.randint(*sizes.boards) if boards == RACK else sizes.agents,
        requests=draw.randint(*sizes.requests),
        measure_ms=draw.randint(*sizes.measure_ms),
        lease_ms=draw.choice(sizes.leases_ms),
    )
    other = BOARD_FAULTS if boards == AGENTS else AGENT_FAULTS
    possible = [kind for kind in everything if kind not in other]
    kinds = [first]
    for _ in range(draw.randint(1, sizes.most_faults) - 1):
        kind = draw.choice(possible)
        if kind not in kinds or kind not in (*BOARD_FAULTS, SILENCE):
            kinds.append(kind)
    faults = [_fault(kind, draw, scenario, sizes) for kind in kinds]
    return replace(scenario, faults=tuple(sorted(faults, key=lambda fault: fault.after)))


def _fault(kind: str, draw: Random, scenario: Scenario, sizes: Sizes) -> Fault:
    """A fault of this kind: its board, its moment and its length."""
    # A board that is at fault from the start is never the first one, so that one board is sound.
    first = 1 if kind in BOARD_FAULTS else 0
    board = draw.randrange(first, scenario.count)
    after = 0 if kind in BOARD_FAULTS else draw.randint(2, max(3, scenario.requests * 6 // 10))
    seconds, where = 0.0, ""
    if kind == SILENCE:
        seconds = sizes.silence_s
    elif kind in (*CUTS, FULL_DISK):
        seconds = round(draw.uniform(0.2, 2.0), 2)
    elif kind in (CONTROLLER_KILLED, AGENT_KILLED):
        seconds = round(draw.uniform(0.0, 1.0), 2)
    elif kind == CLOCK_JUMPS:
        seconds, where = draw.choice(CLOCK_STEPS_S), draw.choice(("controller", "boards"))
    return Fault(kind, board, after, seconds, where)
