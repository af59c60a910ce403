"""Family: one network of the zoo with its publication, and how to build it bent by a Design."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.zoo.design import Design

Builder = Callable[[GraphBuilder, str, Design], str | tuple[str, ...]]
Task = Literal["classification", "detection", "language"]

_PACKAGE = "latfarm_controller.zoo"


@dataclass(frozen=True, slots=True)
class Published:
    """What the publication, or else its named reference implementation, says of a network's size.

    `parameters` counts what is trained (of a batch norm its scale and bias); `macs` counts
    multiply-adds of convolutions and matrix products at the family's resolution and batch 1, None
    where no source gives them. Tolerances are relative: 0.01, or the rounding of the figure if that
    is coarser (0 for an exact count).
    """

    parameters: float
    parameters_tolerance: float
    macs: float | None
    macs_tolerance: float
    source: str


@dataclass(frozen=True, slots=True)
class Family:
    """A family of networks.

    `lineage` names the lines that it belongs to: a campaign that must not see any relative of a
    network leaves out all families that share a line with it. `drawn` families make another
    network from every seed. `resolution` is that of the publication: pixels a side, or tokens of a
    sequence for `task` "language", whose one input is int64 token ids (N, tokens) instead of a
    float image (N, 3, side, side). `sampled` families are what priors and calibration draw from
    unless told otherwise: larger siblings of a family add cost and little news.
    """

    name: str
    source: str
    lineage: frozenset[str]
    module: str
    function: str
    resolution: int = 224
    drawn: bool = False
    task: Task = "classification"
    sampled: bool = True
    published: Published | None = None

    def build(
        self,
        *,
        width: float = 1.0,
        resolution: int | None = None,
        batch: int = 1,
        seed: int = 0,
        design: Design | None = None,
        label: str = "",
    ) -> Graph:
        """A network of this family; `design` overrides width and seed, `label` the graph's name.

        Raises:
            GraphError: the resolution is too small for the network.
        """
        found = Design(width, seed=seed) if design is None else design
        size = self.resolution if resolution is None else resolution
        builder = cast(Builder, getattr(import_module(f"{_PACKAGE}.{self.module}"), self.function))
        language = self.task == "language"
        name = self.name
        if self.drawn:
            name += f"@{found.seed}"
        if found.width != 1.0:
            name += f"-x{found.width:.3g}"
        if size != self.resolution:
            name += f"-{size}{'tokens' if language else 'px'}"
        b = GraphBuilder(label or name)
        x = b.input((batch, size), "int64") if language else b.input((batch, 3, size, size))
        made = builder(b, x, found)
        return b.build([made] if isinstance(made, str) else list(made))


def family(
    name: str,
    module: str,
    source: str,
    *lineage: str,
    published: Published | None = None,
    resolution: int = 224,
    task: Task = "classification",
    sampled: bool = True,
    drawn: bool = False,
) -> Family:
    """A row of a catalogue: `module`.`name` (with underscores) builds it."""
    return Family(
        name,
        source,
        frozenset(lineage),
        module,
        name.replace("-", "_").replace(".", "_"),
        resolution,
        drawn,
        task,
        sampled,
        published,
    )
