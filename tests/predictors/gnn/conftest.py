"""Small networks, and models with drawn parameters, for the tests of NNLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import EncodedGraph, encode
from latfarm_predictors.gnn.nnlp import NNLP, PlatformHead
from latfarm_predictors.gnn.parameters import first_values
from latfarm_predictors.gnn.scaling import Scaling
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

MakeModel = Callable[..., NNLP]


def small_network(channels: int = 8, *, blocks: int = 2, size: int = 12) -> Graph:
    """A convolutional network with a residual branch in each block."""
    b = GraphBuilder(f"small-{channels}-{blocks}")
    x = b.relu(b.conv(b.input((1, 3, size, size)), channels, 3))
    for _ in range(blocks):
        x = b.relu(b.add(x, b.conv(b.relu(b.conv(x, channels, 3)), channels, 1)))
    return b.build([b.fc(b.flatten(b.global_avg_pool(x)), 10)])


def some_graphs() -> list[EncodedGraph]:
    return [encode(small_network(4 * n, blocks=1 + n % 3)) for n in range(1, 7)]


def made_model(
    config: NNLPConfig,
    platforms: Sequence[str] = ("one",),
    graphs: Sequence[EncodedGraph] | None = None,
) -> NNLP:
    """A model that was not trained, with drawn parameters."""
    graphs = graphs or some_graphs()
    scaling = Scaling.of(graphs, log_sizes=config.log_sizes)
    parameters = first_values(config, scaling.columns, platforms)
    draw = np.random.default_rng(1)
    heads = {n: PlatformHead(2.0, np.sort(np.abs(draw.normal(0, 0.1, 40)))) for n in platforms}
    return NNLP(config, scaling, parameters, heads, {"data": "drawn"})


@pytest.fixture
def graphs() -> list[EncodedGraph]:
    return some_graphs()
