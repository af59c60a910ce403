"""Writes a graph as JSON, for simulated boards, which execute no model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.graph.graph import Graph
from numpy.typing import NDArray


def build_graph_json(
    graph: Graph,
    dtype: str = "fp32",  # noqa: ARG001  (a graph without weights is the same in all)
    weights: Mapping[str, NDArray[Any]] | None = None,  # noqa: ARG001
) -> bytes:
    """The graph as JSON, without weights."""
    return graph.dumps().encode()
