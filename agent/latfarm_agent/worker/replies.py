"""Checks the messages of a worker before the agent uses them. No I/O.

A runtime shares its process with our code. Whatever it overwrites, forges or miscalculates must
spoil only its own measurement. So numbers must be finite and in range, texts must be printable and
short, and each message must answer the current request.
"""

from __future__ import annotations

import math
from typing import Any, Mapping

from latfarm_agent.confinement.plan import MOST_PROTECTION_CHARS, PROTECTIONS
from latfarm_agent.worker.channel import Message

MESSAGE_CHARS = 2000
"""Longest error message that is kept."""

LONGEST_MS = 86_400_000.0
"""A day: the longest timeout that may be asked for, so no run can take longer."""

FAILURE_CODES = frozenset(
    {
        "MODEL_INVALID",
        "MODEL_UNSUPPORTED",
        "MODEL_FAILED",
        "OUT_OF_MEMORY",
        "PROFILE_UNAVAILABLE",
        "ENERGY_UNAVAILABLE",
        "RUNTIME_MISSING",
        "SETTINGS_INVALID",
        "THROTTLED",
        # From driven boards, where the model runs outside of the worker.
        "MODEL_CRASHED",
        "DEVICE_LOST",
        "DEVICE_FAILED",
        "DISK_FULL",
    }
)
"""Error codes that a runtime may give; all others are given by the agent."""

_NAME_CHARS = 200
_TEXT_CHARS = 10_000
_MOST_PLATFORMS = 500
_MOST_LAYERS = 100_000
_DEPTH = 8
_PLATFORM_TEXTS = ("name", "model_format", "dtype")
_SESSION_TIMES = ("load_ms", "compile_ms", "first_run_ms")


class ReplyError(ValueError):
    """A message that makes no sense; the text says which part of it."""


def printable(value: object, limit: int = MESSAGE_CHARS) -> str:
    """A text that can be stored, sent and shown: control and surrogate characters become "?"."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[:limit]}..."
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def failure_code(code: object) -> str:
    """The code of a runtime's error, if it may give that code; otherwise MODEL_FAILED."""
    return str(code) if code in FAILURE_CODES else "MODEL_FAILED"


def event(message: Message, expected: int) -> Message:
    """Check the kind of a message, and that it answers the request `expected`.

    Raises:
        ReplyError: it is another message.
    """
    kind = message.get("event")
    if kind not in ("stage", "beat", "done", "error"):
        raise ReplyError(f"a message of kind {printable(kind, 40)!r}")
    if message.get("to") != expected:
        raise ReplyError("an answer to no question of this request")
    if kind == "stage":
        name, session = message.get("name"), message.get("session")
        if not isinstance(name, str) or not (name.isidentifier() and len(name) <= 40):
            raise ReplyError(f"a stage named {printable(name, 40)!r}")
        if not isinstance(session, int) or not 0 <= session <= 1000:
            raise ReplyError(f"a stage of session {printable(session, 40)!r}")
        _number(message.get("patience_ms"), "patience_ms", 0.0, math.inf)
    return message


def hello(message: Message) -> Message:
    """Check and clean what a worker tells of its runtime when it starts.

    Raises:
        ReplyError: for example a platform without a name, or settings that are not texts.
    """
    found: Message = _clean(message, "description", 0)
    version = found.get("version")
    if not isinstance(version, str) or not 0 < len(version) <= _NAME_CHARS:
        raise ReplyError(f"version is {printable(version, 80)!r}")
    platforms = found.get("platforms")
    if not isinstance(platforms, list) or not 0 < len(platforms) <= _MOST_PLATFORMS:
        raise ReplyError("it offers no platforms, or too many")
    names: set[str] = set()
    for platform in platforms:
        _platform(platform)
        if platform["name"] in names:
            raise ReplyError(f"two platforms are named {platform['name']!r}")
        names.add(platform["name"])
    protection = found.setdefault("protection", {})
    if not isinstance(protection, dict) or not all(
        name in PROTECTIONS and isinstance(text, str) and len(text) <= MOST_PROTECTION_CHARS
        for name, text in protection.items()
    ):
        raise ReplyError("protection must be short texts by the names of protections")
    return found


def done(message: Message, sessions: int) -> Message:
    """Check and clean the result of a measurement of so many sessions.

    Raises:
        ReplyError: a part makes no sense; the message names it.
    """
    found: Message = _clean(message, "result", 0)
    made = found.get("sessions")
    if not isinstance(made, list) or len(made) != sessions:
        raise ReplyError(f"not {sessions} sessions")
    for index, session in enumerate(made):
        where = f"sessions[{index}]"
        if not isinstance(session, dict):
            raise ReplyError(f"{where} is not an object")
        for name in _SESSION_TIMES:
            _number(session.get(name), f"{where}.{name}", 0.0, LONGEST_MS)
        for name in ("runs_ms", "cold_ms", "slowdown"):
            values = session.get(name)
            if not isinstance(values, list):
                raise ReplyError(f"{where}.{name} is not a list")
            for value in values:
                if type(value) is not float or not 0.0 <= value <= LONGEST_MS:
                    _number(value, f"{where}.{name}", 0.0, LONGEST_MS)
        _number(session.get("clock_mhz", 0.0), f"{where}.clock_mhz", 0.0, LONGEST_MS)
        if not session["runs_ms"]:
            raise ReplyError(f"{where} has no run")
    layers = found.get("layers")
    if not isinstance(layers, list) or len(layers) > _MOST_LAYERS:
        raise ReplyError("layers are not a list, or too many")
    for index, layer in enumerate(layers):
        _layer(layer, f"layers[{index}]")
    return found


def _platform(platform: Any) -> None:
    if not isinstance(platform, dict):
        raise ReplyError("a platform is not an object")
    for name in _PLATFORM_TEXTS:
        value = platform.get(name)
        if not isinstance(value, str) or not 0 < len(value) <= _NAME_CHARS or " " in value:
            raise ReplyError(f"a platform's {name} is {printable(value, 80)!r}")
    for name in ("real_time", "whole_name"):
        if not isinstance(platform.get(name), bool):
            raise ReplyError(f"{platform['name']}: {name} is neither true nor false")
    settings = platform.get("settings")
    if not isinstance(settings, Mapping) or not all(
        isinstance(value, str) for value in settings.values()
    ):
        raise ReplyError(f"{platform['name']}: settings must be texts")


def _layer(layer: Any, where: str) -> None:
    if not isinstance(layer, dict):
        raise ReplyError(f"{where} is not an object")
    for name in ("name", "op", "device"):
        if not isinstance(layer.get(name), str):
            raise ReplyError(f"{where}.{name} is not a text")
    _number(layer.get("latency_ms"), f"{where}.latency_ms", 0.0, LONGEST_MS)


def _number(value: Any, where: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise ReplyError(f"{where} is {printable(repr(value), 80)}")


def _clean(value: Any, where: str, depth: int) -> Any:
    """A copy in which every text is printable.

    Raises:
        ReplyError: a number is not finite, or the nesting has no end.
    """
    if depth > _DEPTH:
        raise ReplyError(f"{where} is nested too deeply")
    if isinstance(value, str):
        return printable(value, _TEXT_CHARS)
    if isinstance(value, float) and not math.isfinite(value):
        raise ReplyError(f"{where} is {value}")
    if isinstance(value, dict):
        return {
            printable(key, _NAME_CHARS): _clean(item, f"{where}.{printable(key, 40)}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list):
        if all(type(item) is float and math.isfinite(item) for item in value):
            return value  # a long list of runs is checked quickly
        return [_clean(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    return value
