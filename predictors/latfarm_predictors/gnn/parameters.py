"""The parameters of an NNLP network: their names, shapes and first values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from latfarm_predictors.gnn.config import NNLPConfig
from latfarm_predictors.gnn.encoded import STATIC

Single = npt.NDArray[np.float32]
"""Numbers of single precision, of any shape."""

HEAD_LAYERS = 3
"""Number of fully connected layers of a head: 512, 512 and 1 values in the paper's code."""


def shapes(
    config: NNLPConfig, columns: int, platforms: Iterable[str]
) -> dict[str, tuple[int, ...]]:
    """The shape of each parameter by its name.

    Args:
        config: the network.
        columns: number of features of a node.
        platforms: names of the platforms; each has a head of its own.
    """
    found = dict(_encoder(config, columns))
    width = embedding_width(config, columns)
    sizes = [width, config.head_hidden, config.head_hidden, 1]
    for platform in platforms:
        for layer in range(HEAD_LAYERS):
            stem = head_stem(platform, layer)
            found[f"{stem}.weight"] = (sizes[layer], sizes[layer + 1])
            found[f"{stem}.bias"] = (sizes[layer + 1],)
    return found


def _encoder(config: NNLPConfig, columns: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    if config.encoder == "none" or not config.node_features:
        return
    width = columns
    for layer in range(config.layers):
        own = ("own", "neighbours") if config.encoder == "sage" else ("weight",)
        for name in own:
            yield f"encoder.{layer}.{name}", (width, config.hidden)
        yield f"encoder.{layer}.bias", (config.hidden,)
        width = config.hidden


def embedding_width(config: NNLPConfig, columns: int) -> int:
    """Number of values that a head reads of a network, or of a kernel where it corrects these."""
    nodes = 0
    if config.node_features:
        nodes = columns if config.encoder == "none" else config.hidden
    return nodes + (len(STATIC) if config.static_features else 0)


def head_stem(platform: str, layer: int) -> str:
    """How the names of the parameters of one layer of a platform's head begin."""
    return f"head.{platform}.{layer}"


def is_head(name: str) -> bool:
    """Whether a parameter belongs to the head of a platform, and not to what platforms share."""
    return name.startswith("head.")


def first_values(config: NNLPConfig, columns: int, platforms: Iterable[str]) -> dict[str, Single]:
    """First values of parameters, drawn uniformly from +-1/sqrt(inputs), as torch's layers do.

    Each parameter is drawn by its own name, so that a head has the same first values whatever other
    heads there are. The last bias of a head is such that training starts near the typical latency.
    Corrections of kernels start at none: an untrained model tells the sum.

    Args:
        config: the network; its seed is that of the draws.
        columns: number of features of a node.
        platforms: names of the platforms; each has a head of its own.
    """
    wanted = shapes(config, columns, platforms)
    start = 1.0 if config.output == "linear" else 0.0
    found = {}
    for name, shape in wanted.items():
        stem = name.rpartition(".")[0]
        inputs = next(size[0] for other, size in wanted.items() if _feeds(other, stem, size))
        digest = hashlib.blake2b(f"{config.seed} {name}".encode(), digest_size=8).digest()
        draw = np.random.default_rng(int.from_bytes(digest, "big"))
        reach = 1.0 / np.sqrt(inputs)
        values = draw.uniform(-reach, reach, size=shape)
        if is_head(name) and shape == (1,):
            values = np.full(shape, start)
        if config.output == "correction" and is_head(name) and shape[-1] == 1:
            values = np.zeros(shape)
        found[name] = values.astype(np.float32)
    return found


def _feeds(name: str, stem: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter is a matrix of the layer with this stem."""
    return name.rpartition(".")[0] == stem and len(shape) == 2
