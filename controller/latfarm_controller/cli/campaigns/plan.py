"""`latfarm plan`: what a characterisation will cost, and what the noise of the host allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import typer

from latfarm_controller.cli.shell import inputs, output

if TYPE_CHECKING:
    from latfarm_predictors.measurement import Settings

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.campaigns.budget.forecast import Forecast
    from latfarm_controller.cli.shell.host_now import HostNow

MOST_EARLIER = 2000
"""Largest number of earlier measurements that tell how long measurements take, the newest ones."""
Budget = Annotated[
    int, typer.Option(min=40, help="Largest number of measurements of all stages together.")
]
BudgetMinutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Longest board time of all stages together, in minutes."),
]
Networks = Annotated[int, typer.Option(min=1, help="Number of calibration networks to measure.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan")(plan)


def plan(
    platform: inputs.Platform,
    budget: Budget = 500,
    budget_minutes: BudgetMinutes = None,
    networks: Networks = 20,
    tags: inputs.Tags = None,
    wait_s: inputs.Wait = 0.0,
    as_json: inputs.Json = False,
) -> None:
    """Tell what a characterisation will cost.

    The options are those of latfarm characterize, and nothing is measured. Minutes are those of
    earlier measurements on the platform, or the longest that measurements may take. If the board is
    this machine, one second of equal work shows how noisy it is now.

    \b
    Examples:
      latfarm plan --platform local-onnxruntime1.31-fp32-1t
      latfarm plan -p local-onnxruntime1.31-fp32-1t --budget 1500 --budget-minutes 20 --json
    """
    from latfarm_controller.cli.shell.connect import controller

    config: dict[str, Any] = {"measurements": budget, "calibration": networks}
    if budget_minutes is not None:
        config |= {"budget_minutes": budget_minutes}
    config |= inputs.chosen_by(tags)
    with controller(wait_s) as client:
        told = plan_of(client, platform, config)
    if as_json:
        output.json_text({"platform": platform, **told.to_json()})
        return
    _show(platform, told)


@dataclass(frozen=True)
class Plan:
    """What a characterisation will cost, and what its host allows.

    Attributes:
        forecast: measurements and minutes.
        host: how busy this machine is now; None where the board is another one.
        noise: standard deviation of repeated measurements on the platform; None: not known.
    """

    forecast: Forecast
    host: HostNow | None
    noise: float | None

    def to_json(self) -> dict[str, Any]:
        """The plan as plain JSON types."""
        host = None if self.host is None else self.host.to_json()
        return {**self.forecast.to_json(), "host": host, "noise": self.noise, "allows": self.allows}

    @property
    def allows(self) -> str:
        """What the noise of repeated measurements allows a perfect predictor; empty: not known."""
        if self.noise is None:
            return ""
        from math import erf, sqrt

        shares = [erf(error / self.noise / sqrt(2.0)) for error in (0.05, 0.10)]
        return (
            f"earlier measurements differ by {self.noise:.1%}: of a perfect predictor's answers, "
            f"{shares[0]:.0%} are within 5 % of a single measurement, and {shares[1]:.0%} within "
            "10 %"
        )


def plan_of(
    client: ControllerClient, platform: str, config: Mapping[str, Any], *, look_at_host: bool = True
) -> Plan:
    """The plan of a characterisation.

    Args:
        client: tells boards and earlier measurements.
        platform: the platform.
        config: the configuration of the characterisation; what it does not say is as by default.
        look_at_host: whether to look for a second how noisy this machine is, if it is the board.

    Raises:
        UsageError: no board offers the platform, and nothing was measured on it.
    """
    from latfarm_controller.campaigns.budget.forecast import forecast
    from latfarm_controller.campaigns.budget.shares import DEFAULT_MEASUREMENTS, shares_of
    from latfarm_controller.errors import UsageError
    from latfarm_controller.nearest_names import hint

    offered = {p.name: p for p in client.platforms(config.get("tags", ())) if p.name}
    if platform not in offered:
        known = ", ".join(offered) or "none"
        raise UsageError(f"unknown platform {platform!r}; known: {known}{hint(platform, offered)}")
    shares = shares_of(
        int(config.get("measurements", DEFAULT_MEASUREMENTS)),
        int(config.get("calibration", 20)),
        int(config.get("network_passes", 2)),
        config.get("context"),
    )
    earlier = islice(_earlier(client, platform), MOST_EARLIER)
    settings = _settings(shares.calibration_passes)
    told = forecast(shares, earlier, settings, config.get("budget_minutes"))
    host = _look_at(offered[platform].boards) if look_at_host else None
    return Plan(told, host, _noise(platform))


def _earlier(client: ControllerClient, platform: str) -> Any:
    """The newest measurements of a platform; none where nothing was measured on it."""
    from latfarm_controller.errors import UsageError

    try:
        yield from client.results(platform=platform, limit=MOST_EARLIER)
    except UsageError:  # nothing was measured on it yet
        return


def _settings(passes: int) -> dict[str, Settings]:
    """The settings of measurements, by their purpose, as the stages have them.

    The sessions of a calibration network are divided among its `passes`.
    """
    from latfarm_controller.campaigns import call_overhead
    from latfarm_controller.campaigns.kernels import survey
    from latfarm_controller.campaigns.networks import campaign
    from latfarm_controller.campaigns.profiles import context

    sessions = ceil(campaign.SETTINGS.sessions / passes)
    return {
        "fusion": call_overhead.SETTINGS,
        "context": context.SETTINGS,
        "kernel": survey.SETTINGS,
        "probe": survey.SETTINGS,
        "sentinel": survey.SETTINGS,
        "network": replace(campaign.SETTINGS, sessions=sessions),
    }


def _look_at(boards: tuple[str, ...]) -> HostNow | None:
    """How busy this machine is, if it is one of these boards."""
    from latfarm_controller.agents.fleet import LOCAL
    from latfarm_controller.cli.shell.host_now import look
    from latfarm_controller.config import load_config

    return look() if LOCAL in boards and not load_config().controller else None


def _noise(platform: str) -> float | None:
    """The noise of repeated measurements that the bundle in use of a platform tells, if any."""
    from latfarm_predictors.bundle import read_provenance
    from latfarm_predictors.errors import BundleError

    from latfarm_controller.campaigns.host_noise import HostNoise
    from latfarm_controller.config import load_config
    from latfarm_controller.training.bundles import promoted

    path = promoted(load_config().bundles_dir).get(platform)
    if path is None:
        return None
    try:
        return HostNoise.from_json(read_provenance(path).get("host_noise")).noise
    except BundleError:  # the commands that need the bundle tell this
        return None


def first_line(told: Plan, *, starts_ray: bool = False) -> None:
    """Print what will be spent, and a warning where the host is too noisy, on standard error.

    Args:
        told: the plan.
        starts_ray: whether Ray must be started first, which takes half a minute on a busy host.
    """
    output.err().print(f"plan: {told.forecast.sentence}")
    tell_host(told.host)
    if told.allows:
        output.err().print(told.allows, style="dim")
    if starts_ray:
        output.err().print("starting Ray, which runs boards and builders ...", style="dim")


def tell_host(host: HostNow | None) -> None:
    """Print on standard error how noisy this machine is, and what would help."""
    if host is None:
        return
    advice = f"; what would help: {host.advice}" if host.advice else ""
    style = "yellow" if host.hopeless else "dim"
    output.err().print(f"{host.sentence}{advice}", style=style)


def _show(platform: str, told: Plan) -> None:
    forecast = told.forecast
    rows = [
        [
            stage.stage,
            str(stage.measurements),
            f"{stage.minutes:.1f}",
            "earlier ones" if stage.known else "longest allowed",
        ]
        for stage in forecast.stages
    ]
    rows.append(["all, at most", str(forecast.asked), f"{forecast.asked_minutes:.1f}", ""])
    output.table(
        f"a characterisation of {platform}",
        ["stage", "measurements", "minutes", "time by"],
        rows,
    )
    output.out().print(forecast.sentence)
    if told.host is not None:
        advice = f"; what would help: {told.host.advice}" if told.host.advice else ""
        style = "yellow" if told.host.hopeless else ""
        output.out().print(f"{told.host.sentence}{advice}", style=style, soft_wrap=True)
    if told.allows:
        output.out().print(told.allows)
