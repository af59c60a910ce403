"""The options of `latfarm demo`, and what they say about how much is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from latfarm_controller.cli.shell import complete, given

Platform = Annotated[
    str,
    typer.Option(
        "--platform",
        "-p",
        help="Name of the platform. Default: onnxruntime's.",
        autocompletion=complete.platforms,
    ),
]
Budget = Annotated[
    int,
    typer.Option(
        min=40, help="Largest number of measurements for the predictor, all stages together."
    ),
]
BudgetMinutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Longest board time for the predictor, in minutes."),
]
Minutes = Annotated[
    float,
    typer.Option(
        min=0.0,
        help="Longest duration of the whole demo in minutes. On a slow or busy host it measures "
        "less, and says what it left out. 0: no limit. With --budget-minutes or --kernels there is "
        "none.",
    ),
]
Kernels = Annotated[
    int | None,
    typer.Option(
        min=20,
        help="Measure so many kernels, each twice, and all fusion tests, instead of a budget.",
    ),
]
Networks = Annotated[int, typer.Option(min=9, help="Number of calibration networks to measure.")]
Seed = Annotated[
    int,
    typer.Option(help="Random seed. The same seed chooses the same kernels and networks."),
]
Name = Annotated[str, typer.Option(help="Name for the campaign. Another name starts from nothing.")]
Figures = Annotated[Path | None, typer.Option(help="Also write the figures as JSON to this file.")]
Svg = Annotated[Path | None, typer.Option("--svg", help="Also write the plot as SVG to this file.")]
Json = Annotated[bool, typer.Option("--json", help="Print the figures as JSON on standard output.")]


@dataclass(frozen=True)
class DemoOptions:
    """What the demo is asked to do.

    Attributes:
        platform: name of the platform; empty: the demo chooses one.
        measured: the part of the characterisation's configuration that says how much is measured.
        networks: number of calibration networks.
        energy: whether energies are measured.
        seed: random seed.
        name: name of the campaign.
        minutes: longest duration of the demo in minutes; 0: no limit.
    """

    platform: str
    measured: Mapping[str, float]
    networks: int
    energy: bool
    seed: int
    name: str
    minutes: float = 0.0


def check(command: typer.Context) -> None:
    """Refuse bounds of the demo that others make idle.

    Raises:
        UsageError: it names them.
    """
    told = command.params
    if told["kernels"] is not None:
        why = "bounds a budget, which --kernels takes the place of; leave out one of them"
        given.refuse(command, "budget", "budget_minutes", why=why)
    free = told["kernels"] is not None or told["budget_minutes"] is not None
    if free and told["minutes"]:
        why = "bounds a demo without --budget-minutes and --kernels; leave out one of them"
        given.refuse(command, "minutes", why=why)


def measured(budget: int, budget_minutes: float | None, kernels: int | None) -> Mapping[str, float]:
    """How much is measured, as a part of the configuration of a characterisation.

    Args:
        budget: largest number of measurements.
        budget_minutes: longest board time in minutes; None: no limit.
        kernels: number of kernels to measure instead of a budget; None: the budget holds.
    """
    if kernels is not None:
        return {"budget": kernels}
    minutes = {} if budget_minutes is None else {"budget_minutes": budget_minutes}
    return {"measurements": budget, **minutes}
