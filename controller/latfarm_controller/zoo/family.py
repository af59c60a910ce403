"""A family of the zoo: a network with its publication, and how to build variants of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal, cast

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

from latfarm_controller.zoo.design import Design

Builder = Callable[[GraphBuilder, str, Design], str | tuple[str, ...]]
"""Adds a network that reads an input tensor; gives the name of its output, or of its outputs."""
Task = Literal["classification", "detection", "language"]
"""What a network is for."""

_PACKAGE = "latfarm_controller.zoo"
"""The package that the modules of families belong to."""


@dataclass(frozen=True, slots=True)
class Published:
    """The size of a network, as its publication or a named reference implementation says.

    Tolerances are relative: 0.01, or the rounding of the figure if that is coarser; 0 for an exact
    count.

    Attributes:
        parameters: number of trained parameters; of a batch norm these are scale and bias.
        parameters_tolerance: tolerance of `parameters`.
        macs: multiply-adds of convolutions and matrix products at the family's resolution and batch
            size 1; None where no source gives them.
        macs_tolerance: tolerance of `macs`.
        source: where the figures come from.
    """

    parameters: float
    parameters_tolerance: float
    macs: float | None
    macs_tolerance: float
    source: str


@dataclass(frozen=True, slots=True)
class Family:
    """A family of networks.

    Attributes:
        name: the family's name.
        source: its publication.
        lineage: names of the lineages that it belongs to. A campaign that must not see any relative
            of a network leaves out all families that share a lineage with it.
        module: module of the function that builds it, relative to the zoo.
        function: name of this function.
        resolution: resolution of the publication: height and width of the image in pixels, or
            tokens of a sequence for the task "language".
        drawn: whether every seed gives another network.
        task: what the network is for. The input of the task "language" is int64 token ids of shape
            (N, tokens); that of the others is a float image (N, 3, side, side).
        sampled: whether priors and calibration draw from the family by default. Larger members of a
            family are left out: they take more time and have few new kernels.
        published: its size as published; None where no source gives it.
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

    @property
    def folder(self) -> str:
        """The folder of the zoo that the family is in: cnn, detectors, mobile or transformers."""
        return self.module.partition(".")[0]

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
        """A network of this family.

        Args:
            width: factor on the numbers of channels.
            resolution: height and width of the image, or tokens; None: as published.
            batch: batch size of the input.
            seed: random seed, for drawn families.
            design: how the published configuration is changed, instead of `width` and `seed`.
            label: the graph's name, instead of one that tells the arguments.

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
    """A row of a catalogue, built by the function of its name in `module`.

    Dashes and dots of the name are underscores in the function's name. See `Family` for the
    arguments.
    """
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
