"""What builds models from graphs, and what it answers. Its dataclasses travel between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from latfarm_predictors.graph.graph import Graph

from latfarm_controller.farm.scheduling.messages import ModelSpec


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model that was built.

    `handle` is either the model or leads to it; a shard calls its `Fetch` function with the handle
    when it needs the model. `sha256` is the hash of the model file, and `companions` has the hash
    of each file beside it, by name. `size_bytes` counts all of them.
    """

    model: ModelSpec
    sha256: str
    size_bytes: int
    handle: Any
    companions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NotBuilt:
    """Why a model was not built.

    `retryable`: the builder died, so that another try may succeed; otherwise it refused the model.
    `lost`: what all builders need went away, which says little about the model.
    """

    model: ModelSpec
    message: str
    retryable: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class BuilderState:
    """Whether models can be built now.

    Attributes:
        slots: how many builds may run at once; 0 while nothing can be built.
        away: why nothing can be built now; empty while models can be built.
        starting: whether what builders need is being started, which keeps this host busy.
    """

    slots: int
    away: str = ""
    starting: bool = False


class Builder(Protocol):
    """Builds models from graphs. Calls may overlap."""

    async def build(self, jobs: Sequence[tuple[ModelSpec, Graph]]) -> list[BuiltModel | NotBuilt]:
        """Build each model; one answer for each job, in order. A failure is an answer too."""
        ...
