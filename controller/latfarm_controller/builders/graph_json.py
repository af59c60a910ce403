"""Writes a graph as JSON, for simulated boards, which do not execute models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray


def build_graph_json(
    graph: Graph,
    dtype: str = "fp32",  # noqa: ARG001  (without weights, the file is the same in all types)
    weights: Mapping[str, NDArray[Any]] | None = None,  # noqa: ARG001
) -> bytes:
    """Return the graph as JSON, without weights."""
    return graph.dumps().encode()
