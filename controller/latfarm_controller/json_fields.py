"""Fields of requests that hold JSON."""

from __future__ import annotations

import json
from typing import Any

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.errors import UsageError


def graph_from_json(data: bytes) -> Graph:
    """The network of a request.

    Raises:
        UsageError: the bytes are not JSON.
        GraphError: the JSON does not describe a network.
    """
    try:
        return Graph.from_json(json.loads(data))
    except (ValueError, RecursionError) as error:  # the latter where it is nested without end
        raise UsageError(f"the field graph_json is not valid JSON: {error}") from error


def config_from_json(text: str) -> dict[str, Any]:
    """The configuration of a campaign in a request; empty text is an empty configuration.

    Raises:
        UsageError: the text is not a JSON object.
    """
    try:
        data = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the field config_json is not valid JSON: {error}") from error
    if not isinstance(data, dict):
        raise UsageError("the field config_json must be a JSON object")
    return data
