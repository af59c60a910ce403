"""Messages between the controller and its Ray process as JSON text, and back.

JSON can only become plain values and objects of the classes in `CLASSES`. So a message can neither
name a function nor run code in the process that reads it, unlike a pickle. That matters where Ray
spans other machines, whose code is not trusted with the controller's keys and its store.

A value that is not plain becomes a list whose first item says what it is: `["d", "Lease", ...]` is
an object of a dataclass with the values of its fields in order.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from latfarm_controller.builders.model_files import ModelFiles
from latfarm_controller.errors import ControllerError, FarmError
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.boards.shard_events import ShardEvent
from latfarm_controller.farm.processes.child_messages import MESSAGES


def _classes(roots: Iterable[Any]) -> dict[str, type[Any]]:
    """These dataclasses, and the dataclasses and enumerations that their fields may hold."""
    found: dict[str, type[Any]] = {}
    waiting = list(roots)
    while waiting:
        kind = waiting.pop()
        if get_origin(kind) is not None or not isinstance(kind, type):
            waiting += get_args(kind)
        elif kind.__name__ not in found and (is_dataclass(kind) or issubclass(kind, Enum)):
            found[kind.__name__] = kind
            waiting += get_type_hints(kind).values() if is_dataclass(kind) else []
    return found


CLASSES: Mapping[str, type[Any]] = _classes(
    (*MESSAGES, *get_args(ShardEvent), BuiltModel, NotBuilt, ModelFiles)
)
"""The classes whose objects may be in a message, by name."""
_FIELDS: Mapping[str, tuple[str, ...]] = {
    name: tuple(field.name for field in fields(kind) if field.init)
    for name, kind in CLASSES.items()
    if is_dataclass(kind)
}
"""The fields with which an object of a dataclass is made, by the name of the class."""


def dumps(message: object) -> bytes:
    """A message as JSON text.

    Raises:
        FarmError: the message holds something that cannot be sent.
    """
    try:
        return json.dumps(_encode(message), separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FarmError(f"a {type(message).__name__} cannot be sent: {error}") from error


def loads(text: bytes) -> Any:
    """The message that was made into this text.

    Raises:
        FarmError: the text is not a message.
    """
    try:
        return _decode(json.loads(text))
    except (
        *(TypeError, ValueError, KeyError, IndexError, RecursionError),
        *(binascii.Error, ControllerError),
    ) as error:
        raise FarmError(f"a message cannot be read: {type(error).__name__}: {error}") from error


def _encode(value: object) -> Any:
    if isinstance(value, Enum):
        return ["e", _name(value), value.value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float | str):
        return value
    if isinstance(value, bytes):
        return ["b", base64.b64encode(value).decode("ascii")]
    if isinstance(value, Path):
        return ["p", str(value)]
    if isinstance(value, tuple | list):
        return ["t" if isinstance(value, tuple) else "l", *map(_encode, value)]
    if isinstance(value, Mapping):
        return ["m", *([_encode(key), _encode(item)] for key, item in value.items())]
    if is_dataclass(value):
        name = _name(value)
        return ["d", name, *(_encode(getattr(value, field)) for field in _FIELDS[name])]
    raise TypeError(f"{type(value).__name__} is no type of a message")


def _name(value: object) -> str:
    name = type(value).__name__
    if CLASSES.get(name) is not type(value):
        raise TypeError(f"{name} is no class of a message")
    return name


def _decode(data: Any) -> Any:
    if isinstance(data, dict):
        raise TypeError("an object of JSON is no part of a message")
    if not isinstance(data, list):
        return data
    kind, *items = data
    match kind:
        case "d":
            return _object(items)
        case "e":
            return _enumeration(items)
        case "t":
            return tuple(map(_decode, items))
        case "l":
            return list(map(_decode, items))
        case "m":
            return {_decode(key): _decode(item) for key, item in items}
        case "b":
            return base64.b64decode(items[0], validate=True)
        case "p":
            return Path(items[0])
    raise ValueError(f"{kind!r} is no kind of a value")


def _object(items: list[Any]) -> object:
    made = CLASSES[items[0]]
    if not is_dataclass(made):
        raise TypeError(f"{items[0]} is no dataclass")
    return made(**dict(zip(_FIELDS[items[0]], map(_decode, items[1:]), strict=True)))


def _enumeration(items: list[Any]) -> Enum:
    made = CLASSES[items[0]]
    if not issubclass(made, Enum):
        raise TypeError(f"{items[0]} is no enumeration")
    return made(items[1])
