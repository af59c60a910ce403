"""What goes wrong on single boards of a rack, although all boards look alike.

```json
{
  "*": {"late_rate": 0.01, "late_ms": 2000},
  "rack-0003": {"drift": 0.5},
  "rack-0004": {"hang_rate": 0.1, "restart_every": 50, "restart_ms": 3000}
}
```

The keys are names of boards; "*" stands for all boards, and a board's own entry is added to it. A
fault changes no fingerprint: whoever asks a board cannot see that it is faulty.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Mapping

from latfarm_agent.errors import AgentUsageError
from latfarm_agent.runtimes.simulated.profile import BoardProfile

ALL_BOARDS = "*"
"""The key of the entry that holds for all boards."""

PROFILE_FAULTS = (
    "noise",
    "session_noise",
    "drift",
    "throttle",
    "crash_ops",
    "crash_rate",
    "hang_ops",
    "unsupported_ops",
    "neighbour",
    "lower_clock",
)
"""Keys of a board's profile that a fault may replace; see `BoardProfile`."""


@dataclass(frozen=True)
class BoardFaults:
    """The faults of one board. Shares are probabilities from 0 to 1.

    Which measurements are hit follows from the board's name and the id of the request alone, so
    that a run can be repeated.

    Attributes:
        profile: keys of the board's profile with other values than the profile has.
        hang_rate: share of the measurements that give no answer before their time limit.
        late_rate: share of the measurements that take `late_ms` longer.
        late_ms: how much longer they take, in milliseconds.
        restart_every: the board restarts during each measurement whose number is a multiple of
            this; 0: it never does.
        restart_ms: how long it is away then, in milliseconds.
    """

    profile: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    hang_rate: float = 0.0
    late_rate: float = 0.0
    late_ms: float = 0.0
    restart_every: int = 0
    restart_ms: float = 0.0

    def hangs(self, board: str, request_id: str) -> bool:
        """Whether the measurement of a request gives no answer."""
        return _drawn("hang", board, request_id) < self.hang_rate

    def extra_ms(self, board: str, request_id: str) -> float:
        """How much longer the measurement of a request takes, in milliseconds."""
        return self.late_ms if _drawn("late", board, request_id) < self.late_rate else 0.0


_OWN_FAULTS = tuple(item.name for item in dataclasses.fields(BoardFaults) if item.name != "profile")


def read_faults(path: Path, boards: Collection[str]) -> dict[str, BoardFaults]:
    """Read the faults of the boards that have some, by the name of the board.

    Args:
        path: the file.
        boards: the names of all boards.

    Raises:
        AgentUsageError: the file cannot be read, or names a board or a fault that does not exist,
            or a value is not allowed.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentUsageError(
            f"--faults {path}: cannot be read: {error.strerror or error}"
        ) from error
    except ValueError as error:
        raise AgentUsageError(f"--faults {path}: is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise AgentUsageError(f"--faults {path}: must be an object, name of a board to its faults")
    for name, entry in data.items():
        if name != ALL_BOARDS and name not in boards:
            near = difflib.get_close_matches(name, sorted(boards), n=1)
            hint = f"did you mean {near[0]}?" if near else f"the first board is {min(boards)}"
            raise AgentUsageError(f"--faults {path}: there is no board {name!r}; {hint}")
        if not isinstance(entry, dict):
            raise AgentUsageError(f"--faults {path}: {name}: must be an object")
    common = data.pop(ALL_BOARDS, {})
    names = boards if common else data
    return {
        name: _board_faults(f"--faults {path}: {name}", {**common, **data.get(name, {})})
        for name in names
    }


def with_faults(profile: BoardProfile, faults: BoardFaults) -> BoardProfile:
    """The profile as the faulty board really behaves."""
    return dataclasses.replace(profile, **faults.profile)


def _board_faults(where: str, entry: Mapping[str, Any]) -> BoardFaults:
    known = (*_OWN_FAULTS, *PROFILE_FAULTS)
    for key in entry:
        if key not in known:
            raise AgentUsageError(f"{where}: unknown fault {key!r}; known: {', '.join(known)}")
    own = {key: value for key, value in entry.items() if key in _OWN_FAULTS}
    for key, value in own.items():
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0
        if not right or (key.endswith("_rate") and value > 1):
            bounds = "from 0 to 1" if key.endswith("_rate") else "of 0 or more"
            raise AgentUsageError(f"{where}: {key} must be a number {bounds}")
        if key == "restart_every" and not isinstance(value, int):
            raise AgentUsageError(f"{where}: {key} must be a whole number")
    wanted = {key: value for key, value in entry.items() if key in PROFILE_FAULTS}
    try:
        made = BoardProfile.from_json({"platform": "any", **wanted})
    except ValueError as error:
        raise AgentUsageError(f"{where}: {error}") from error
    return BoardFaults(profile={key: getattr(made, key) for key in wanted}, **own)


def _drawn(kind: str, board: str, request_id: str) -> float:
    """A number from 0 to 1 that follows from the texts alone."""
    text = json.dumps([kind, board, request_id]).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return random.Random(seed).random()
