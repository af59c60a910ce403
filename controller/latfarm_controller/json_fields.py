"""Fields of requests that hold JSON.

JSON of a few bytes becomes objects of a hundred, and the interpreter does nothing else while it
reads them: 60 MiB of empty lists took 1.2 GB and half a minute. So values are counted before.
"""

from __future__ import annotations

import json
from typing import Any

from latfarm_predictors.collector import collector_waits
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import UsageError

MOST_VALUES = 4_000_000
"""Most values of a network as JSON, keys included. The largest one of the zoo has 43,192."""
MOST_CONFIG_VALUES = 13_000_000
"""Most values of a campaign's configuration: as many as networks have that fill a message of 64
MiB."""
_BEFORE_VALUES = (b",", b"[", b"{", b":")
"""Every value and key but the outermost value follows one of these."""


def graph_from_json(data: bytes) -> Graph:
    """The network of a request.

    Raises:
        UsageError: the bytes are not JSON, or hold too many values.
        GraphError: the JSON does not describe a network.
    """
    return Graph.from_json(_value("graph_json", data, MOST_VALUES))


def config_from_json(text: str) -> dict[str, Any]:
    """The configuration of a campaign in a request; empty text is an empty configuration.

    Raises:
        UsageError: the text is not a JSON object, or holds too many values.
    """
    return _object("config_json", text, MOST_CONFIG_VALUES)


def options_from_json(text: str) -> dict[str, Any]:
    """The options of an action on the store; empty text is no options.

    Raises:
        UsageError: the text is not a JSON object, or holds too many values.
    """
    return _object("options_json", text, MOST_VALUES)


def _object(field: str, text: str, most: int) -> dict[str, Any]:
    """The object that a field holds; see `_value`."""
    data = _value(field, (text or "{}").encode(), most)
    if not isinstance(data, dict):
        raise UsageError(f"the field {field} must be a JSON object")
    return data


def _value(field: str, data: bytes, most: int) -> Any:
    """The value that a field holds.

    Args:
        field: its name.
        data: the JSON.
        most: how many values and keys it may have.

    Raises:
        UsageError: it is not JSON, or has more values.
    """
    if sum(map(data.count, _BEFORE_VALUES)) > most:
        raise UsageError(f"the field {field} has more than {most} values; ask for less at once")
    try:
        with collector_waits():
            return json.loads(data)
    except (ValueError, RecursionError) as error:  # the latter where it is nested without end
        raise UsageError(f"the field {field} is not valid JSON: {error}") from error
