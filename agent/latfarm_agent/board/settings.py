"""Sets governors, clocks and power mode of a board as a file says, and reads them back.

```json
{
  "required": true,
  "files": [
    {"name": "governor", "paths": "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
     "value": "performance"},
    {"name": "lowest clock", "paths": "/sys/devices/system/cpu/cpufreq/policy*/scaling_min_freq",
     "value_of": "cpuinfo_max_freq"}
  ],
  "power_mode": 0,
  "jetson_clocks": true
}
```

A setting that the kernel or the board does not have is reported as `absent`; with "required" it
has failed. A kernel may accept a value and keep another one: only the value that is read back
counts.

The values from before the first change can be kept in a file and restored from it. It is a JSON
object: a path gives the value of that file, `power_mode` the number of the power mode, and
`jetson_clocks` the file in which jetson_clocks has stored the clocks.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Callable, Mapping

from latfarm_agent.errors import AgentUsageError
from latfarm_agent.files.folders import write_whole
from latfarm_agent.nvidia import tegra

_TOOL_S = 60.0
"""How long a vendor's tool may take."""

_MODE_KEY = "power_mode"
_CLOCKS_KEY = "jetson_clocks"
"""Keys of values from before that are no files; the paths of files begin with a slash."""

_KEYS = ("required", "files", "power_mode", "jetson_clocks")
_POWER_MODE = "power mode"
"""Name of this setting in outcomes."""

_NUMBER = re.compile(r"\((\d+)\)$")

ToolRunner = Callable[..., str]
Keep = Callable[[str, str], None]
"""Told the key of a setting and its value, before the setting is changed."""


def _forget(name: str, value: str) -> None:
    """Keep nothing of a setting that is changed."""


class Settled(str, Enum):
    """The state of a setting."""

    KEPT = "kept"
    CHANGED = "changed"
    DIFFERS = "differs"
    ABSENT = "absent"
    FAILED = "failed"


@dataclass(frozen=True)
class SettingOutcome:
    """One setting: the wanted value, and the values that were read before and after.

    `path`: the file of the setting, if it has one.
    """

    name: str
    wanted: str
    before: str
    found: str
    state: Settled
    path: str = ""
    detail: str = ""

    def __str__(self) -> str:
        where = f" ({self.path})" if self.path else ""
        why = f": {self.detail}" if self.detail else ""
        read = self.found or "nothing"
        return f"{self.name}{where}: {self.state.value}: wanted {self.wanted}, read {read}{why}"


@dataclass(frozen=True)
class FileSetting:
    """A value for all files that match a pattern.

    `value_of`: name of a file beside them that holds the value, instead of `value`.
    """

    name: str
    paths: str
    value: str = ""
    value_of: str = ""


@dataclass(frozen=True)
class Wanted:
    """The whole file of settings. `required`: a setting that is absent has failed."""

    required: bool = False
    files: tuple[FileSetting, ...] = ()
    power_mode: int | None = None
    jetson_clocks: bool = False


def read_wanted(path: Path) -> Wanted:
    """Read a file of settings.

    Raises:
        AgentUsageError: it cannot be read, or is not such a file.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AgentUsageError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise AgentUsageError(f"{path}: is not JSON: {error}") from error
    if not isinstance(data, dict) or set(data) - set(_KEYS):
        raise AgentUsageError(f"{path}: must be an object with the keys {', '.join(_KEYS)}")
    mode = data.get("power_mode")
    if mode is not None and (isinstance(mode, bool) or not isinstance(mode, int)):
        raise AgentUsageError(f"{path}: power_mode must be a number, as nvpmodel counts")
    try:
        files = tuple(FileSetting(**_checked(entry)) for entry in data.get("files", []))
    except (TypeError, ValueError) as error:
        text = f"{path}: files need name, paths and either value or value_of: {error}"
        raise AgentUsageError(text) from error
    flags = bool(data.get("required", False)), bool(data.get("jetson_clocks", False))
    return Wanted(flags[0], files, mode, flags[1])


def apply(
    wanted: Wanted,
    before: Path | None = None,
    *,
    change: str = "set",
    root: Path = Path("/"),
    run: ToolRunner | None = None,
) -> list[SettingOutcome]:
    """Set a board up; gives one outcome for each file and tool.

    Args:
        wanted: the wanted settings.
        before: file that keeps the values from before the first change.
        change: "set", "check" (change nothing) or "undo" (restore the values in `before`).
        root: folder below which the files are found.
        run: runs a tool and gives what it prints; raises OSError if that fails.
    """
    run = run or _run
    kept = _kept(before)

    def keep(name: str, value: str) -> None:
        """Store a value from before the first change; done before the change, which may be cut."""
        if before is not None and change == "set" and value and name not in kept:
            kept[name] = value
            write_whole(before, json.dumps(kept, indent=1, sort_keys=True) + "\n")

    if change == "undo":
        outcomes = _undo(wanted, kept, root, run)
        return [_strict(outcome) for outcome in outcomes] if wanted.required else outcomes
    outcomes = []
    for setting in wanted.files:
        outcomes += _files(setting, kept, change, root, keep)
    if wanted.jetson_clocks and change == "set" and before is not None and _CLOCKS_KEY not in kept:
        # Before the power mode changes: the bounds of clocks belong to the mode.
        stored = _store_clocks(before.with_name(f"{before.stem}-clocks.conf"), run)
        keep(_CLOCKS_KEY, str(stored or ""))
    if wanted.power_mode is not None:
        outcomes.append(_power_mode(wanted.power_mode, change, run, keep))
    if wanted.jetson_clocks:
        outcomes.append(_jetson_clocks(change, run))
    if not wanted.required:
        return outcomes
    return [_strict(outcome) for outcome in outcomes]


def _undo(
    wanted: Wanted, kept: Mapping[str, str], root: Path, run: ToolRunner
) -> list[SettingOutcome]:
    """Restore everything in `kept`, also what is not wanted any more."""
    outcomes: list[SettingOutcome] = []
    for setting in wanted.files:
        outcomes += _files(setting, kept, "undo", root)
    done = {outcome.path for outcome in outcomes}
    for path in sorted(path for path in kept if path.startswith("/") and path not in done):
        outcomes += _files(FileSetting(path, path, kept[path]), kept, "undo", root)
    if kept.get(_MODE_KEY, "").isdecimal():
        outcomes.append(_power_mode(int(kept[_MODE_KEY]), "undo", run))
    if _CLOCKS_KEY in kept:
        outcomes.append(_restore_clocks(Path(kept[_CLOCKS_KEY]), run))
    return outcomes


def _files(
    setting: FileSetting, kept: Mapping[str, str], change: str, root: Path, keep: Keep = _forget
) -> list[SettingOutcome]:
    paths = sorted(root.glob(setting.paths.lstrip("/")))
    if not paths:
        detail = f"there is no {setting.paths}"
        told = setting.value or setting.value_of
        return [SettingOutcome(setting.name, told, "", "", Settled.ABSENT, setting.paths, detail)]
    found: list[SettingOutcome] = []
    for path in paths:
        shown = "/" + str(path.relative_to(root))
        value = setting.value
        try:
            before = _text(path)
            if setting.value_of:
                value = _text(path.parent / setting.value_of)
            if change == "undo":
                if shown not in kept:
                    continue
                value = kept[shown]
            if before != value and change != "check":
                keep(shown, before)
                path.write_text(value)
            after = _text(path)
        except OSError as error:
            detail = error.strerror or str(error)
            with contextlib.suppress(OSError):
                before = _text(path)
            found.append(
                SettingOutcome(setting.name, value, before, before, Settled.FAILED, shown, detail)
            )
            continue
        state = _state(before, after, value, change)
        found.append(SettingOutcome(setting.name, value, before, after, state, shown))
    return found


def _power_mode(number: int, change: str, run: ToolRunner, keep: Keep = _forget) -> SettingOutcome:
    """Source: NVIDIA, "Jetson Linux Developer Guide", chapter "Platform Power and Performance"."""

    def read() -> str:
        match = _NUMBER.search(tegra.read_mode(run(["nvpmodel", "-q"])) or "")
        return match[1] if match else ""

    try:
        before = read()
        if before != str(number) and change != "check":
            keep(_MODE_KEY, before)
            # For some modes the tool asks for a reboot, which only the operator may decide.
            run(["nvpmodel", "-m", str(number)], "no\n")
        after = read()
    except FileNotFoundError:
        return _no_tool(_POWER_MODE, str(number), "nvpmodel")
    except OSError as error:
        return SettingOutcome(_POWER_MODE, str(number), "", "", Settled.FAILED, detail=str(error))
    detail = "" if after == str(number) or change == "check" else "it may need a reboot"
    state = _state(before, after, str(number), change)
    return SettingOutcome(_POWER_MODE, str(number), before, after, state, detail=detail)


def _read_clocks(run: ToolRunner) -> str:
    """Whether clocks stay at their highest value: "locked" or "free"; empty: not told."""
    clocks = tegra.read_clocks(run(["jetson_clocks", "--show"]))
    if not clocks:
        return ""
    return "locked" if all(each.locked for each in clocks.values()) else "free"


def _store_clocks(place: Path, run: ToolRunner) -> Path | None:
    """Let jetson_clocks store the clocks while they are free; None: it has not stored them."""
    with contextlib.suppress(OSError):
        if _read_clocks(run) == "free":
            with contextlib.suppress(FileNotFoundError):
                place.unlink()  # the tool would ask whether it may overwrite the file
            run(["jetson_clocks", "--store", str(place)])
            return place
    return None


def _restore_clocks(place: Path, run: ToolRunner) -> SettingOutcome:
    """Source: NVIDIA, "Jetson Linux Developer Guide", section "Maximizing Jetson Performance"."""
    try:
        before = _read_clocks(run)
        run(["jetson_clocks", "--restore", str(place)])
        after = _read_clocks(run)
    except FileNotFoundError:
        return _no_tool("clocks", "free", "jetson_clocks")
    except OSError as error:
        return SettingOutcome("clocks", "free", "", "", Settled.FAILED, detail=str(error))
    return SettingOutcome("clocks", "free", before, after, _state(before, after, "free", "undo"))


def _jetson_clocks(change: str, run: ToolRunner) -> SettingOutcome:
    try:
        before = _read_clocks(run)
        if before != "locked" and change == "set":
            run(["jetson_clocks"])
        after = _read_clocks(run)
    except FileNotFoundError:
        return _no_tool("clocks", "locked", "jetson_clocks")
    except OSError as error:
        return SettingOutcome("clocks", "locked", "", "", Settled.FAILED, detail=str(error))
    return SettingOutcome(
        "clocks", "locked", before, after, _state(before, after, "locked", change)
    )


def _state(before: str, after: str, value: str, change: str) -> Settled:
    if after == value:
        return Settled.KEPT if before == value else Settled.CHANGED
    return Settled.DIFFERS if change == "check" else Settled.FAILED


def _strict(outcome: SettingOutcome) -> SettingOutcome:
    if outcome.state is not Settled.ABSENT:
        return outcome
    fields = (outcome.name, outcome.wanted, outcome.before, outcome.found)
    return SettingOutcome(*fields, Settled.FAILED, outcome.path, outcome.detail)


def _no_tool(name: str, value: str, tool: str) -> SettingOutcome:
    return SettingOutcome(name, value, "", "", Settled.ABSENT, detail=f"there is no {tool}")


def _run(arguments: list[str], data: str = "") -> str:
    if shutil.which(arguments[0]) is None:
        raise FileNotFoundError(arguments[0])
    try:
        done = subprocess.run(
            arguments,
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TOOL_S,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{arguments[0]} did not end within {_TOOL_S:.0f} s") from error
    if done.returncode:
        said = " | ".join(done.stdout.strip().splitlines()[-3:])
        raise OSError(f"{' '.join(arguments)}: exit status {done.returncode}: {said}")
    return done.stdout


def _kept(path: Path | None) -> dict[str, str]:
    if path is not None:
        with contextlib.suppress(OSError, ValueError):
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict):
                return {str(name): str(value) for name, value in data.items()}
    return {}


def _checked(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise ValueError("each is an object of texts")
    if bool(entry.get("value")) == bool(entry.get("value_of")):
        raise ValueError(f"{entry.get('name')!r} has both of them, or neither")
    if not str(entry.get("paths", "")).startswith("/"):
        raise ValueError(f"{entry.get('name')!r} has no absolute paths")
    return entry


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip()
