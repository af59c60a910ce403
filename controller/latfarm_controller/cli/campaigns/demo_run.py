"""What `latfarm demo` does: rounds of held-out networks, a characterisation, and predictions.

The networks held out are the ONNX graphs that ship inside the `onnx` package. No family of their
lineages is in the draws of kernels, of profiled networks and of calibration networks, and no kernel
with exactly their sizes is trained on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli.campaigns.demo_clock import DemoClock, left_out
from latfarm_controller.cli.campaigns.demo_options import DemoOptions
from latfarm_controller.cli.campaigns.judging_rounds import ROUNDS, JudgingRounds
from latfarm_controller.cli.campaigns.plan import Plan, first_line, plan_of
from latfarm_controller.cli.shell import output
from latfarm_controller.errors import ControllerError, FarmError, UsageError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.measurement import Measurement
    from latfarm_predictors.predict.predictor import PlatformPredictor

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.summaries import BoardSummary, CampaignSummary
    from latfarm_controller.config import ControllerConfig
    from latfarm_controller.reports.energy import EnergyRow
    from latfarm_controller.reports.facts.network_rows import NetworkRow

ROUND_MS, ROUND_WARMUP_MS = 400.0, 50.0
"""Longest timed part and least warm-up of a session in the rounds, in milliseconds."""
# Lineages of the networks that are held out. A lineage is a family and its relatives.
LINEAGES = (
    "alexnet",
    "densenet",
    "inception",
    "resnet",
    "shufflenet",
    "squeezenet",
    "vgg",
    "zfnet",
)


@dataclass(frozen=True)
class DemoRun:
    """What the demo found.

    Attributes:
        platform: the platform that was characterised.
        campaign: the characterisation.
        predictor: the predictor that was made.
        measured: the measurements of the networks that were held out.
        boards: the boards.
        rows: each of these networks with its prediction.
        energies: the same for energies.
        left_out: what was not measured, so that the demo ends in time; empty: nothing.
    """

    platform: str
    campaign: CampaignSummary
    predictor: PlatformPredictor
    measured: list[Measurement]
    boards: list[BoardSummary]
    rows: list[NetworkRow]
    energies: list[EnergyRow]
    left_out: str = ""


def run_demo(wanted: DemoOptions, config: ControllerConfig) -> DemoRun:
    """Characterise the platform, predict the networks that were held out, then measure them."""
    from latfarm_predictors.graph.hash import hash_of

    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow
    from latfarm_controller.reports.energy import energy_rows
    from latfarm_controller.training.bundles import load

    say = output.err().print
    clock = DemoClock(wanted.minutes, ROUNDS)
    held_out = held_out_networks()
    say(f"state in {config.home}; nine held-out networks were read from the onnx package")
    with controller() as client:
        platform = wanted.platform or _choose_platform(client, say)
        encoded = [graph.to_json() for graph in held_out]
        rounds = JudgingRounds(
            client,
            platform,
            encoded,
            f"{wanted.name}-held-out",
            seed=wanted.seed,
            settings={"max_ms": ROUND_MS, "warmup_ms": ROUND_WARMUP_MS, **_longer(wanted)},
            allows=lambda: clock.allows_round(rounds.started),
        )
        planned = None
        if "measurements" in wanted.measured:
            asked = {**wanted.measured, "calibration": wanted.networks}
            planned = plan_of(client, platform, asked, look_at_host=False)
            first_line(planned, starts_ray=client.hosted)
        say(
            f"they are measured in up to {ROUNDS} rounds, spread over the run; no predictor sees "
            "these"
        )
        _first_round(rounds, clock)
        full = characterize_config(wanted, encoded)
        known = _known(client, platform, wanted, full)
        config_json = known or _within(clock, full, planned)
        started = client.start("characterize", platform, config_json, wanted.name)
        campaign = follow(client, started.campaign_id, rounds.on_stage)
        # The bundle in use may be another one, if the networks of an earlier demo judged both.
        predictor = load(Path(campaign.outcome["bundle"]))
        answers = {graph.name: predictor.predict(graph) for graph in held_out}
        costs = predictor.predict_energies(held_out) if predictor.energy is not None else []
        measured = rounds.after()
        boards = client.boards()
    by_hash = {hash_of(graph): cost for graph, cost in zip(held_out, costs, strict=False)}
    return DemoRun(
        platform=platform,
        campaign=campaign,
        predictor=predictor,
        measured=measured,
        boards=boards,
        rows=_rows(held_out, measured, answers, predictor),
        energies=energy_rows(by_hash, measured),
        left_out=left_out(
            campaign.outcome.get("spent"), full.get("measurements"), rounds.started, ROUNDS
        ),
    )


def _first_round(rounds: JudgingRounds, clock: DemoClock) -> None:
    """Measure the networks once, and note how fast this host is."""
    began_s: list[float] = []
    found = rounds.before(lambda _stage: began_s.append(time.monotonic()))
    if began_s and found.measurements:
        clock.note_round(time.monotonic() - began_s[0], found.board_ms / 1000.0)


def _known(
    client: ControllerClient, platform: str, wanted: DemoOptions, config: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The configuration with which the same demo began before; None if it is a new one.

    A demo that is continued keeps the limits that it began with: another configuration would be
    another campaign, which starts from nothing. Who started it is no part of what is asked for.
    """
    from latfarm_controller.campaigns.kinds import STARTED_BY

    try:
        found = client.campaign(wanted.name)
    except UsageError:
        return None
    if (found.kind, found.platform) != ("characterize", platform) or not wanted.minutes:
        return None
    known = {key: value for key, value in found.config.items() if key != STARTED_BY}
    before, asked = dict(known), json.loads(json.dumps(dict(config)))
    limited = before.pop("budget_minutes", None) is not None
    return known if limited and before == asked else None


def _within(clock: DemoClock, config: dict[str, Any], planned: Plan | None) -> dict[str, Any]:
    """The configuration of the characterisation with the limits that the demo's time sets.

    Args:
        clock: the time that the demo has.
        config: the configuration without a limit of time.
        planned: what it would cost without a limit; None: it has another limit.
    """
    minutes = clock.budget_minutes()
    if minutes is None or planned is None:
        return config
    output.err().print(
        f"to end within {clock.minutes:g} minutes, there are {clock.rounds} rounds, and the "
        f"predictor gets at most {config['measurements']} measurements and {minutes:g} minutes of "
        "board time"
    )
    return config | {"budget_minutes": minutes}


def _longer(wanted: DemoOptions) -> dict[str, float]:
    return {"energy_ms": ENERGY_MS} if wanted.energy else {}


def characterize_config(
    wanted: DemoOptions, encoded: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The configuration of the demo's characterisation, without a limit of time.

    Args:
        wanted: what the demo is asked to do.
        encoded: the networks that are held out, in JSON form.
    """
    return {
        **wanted.measured,
        "calibration": wanted.networks,
        "calibration_draw": "scaled",  # the held-out networks are published ones, too
        "seed": wanted.seed,
        "exclude_lineages": list(LINEAGES),
        "exclude_kernel_lineages": list(LINEAGES),
        "held_out": list(encoded),
        **_longer(wanted),
    }


def held_out_networks() -> list[Graph]:
    """The `light` ONNX graphs of the `onnx` package, read like the files of any user.

    Raises:
        ControllerError: the installed package does not have them.
    """
    import onnx
    from latfarm_predictors.frontends.onnx import read_onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    files = sorted(folder.glob("light_*.onnx"))
    if not files:
        raise ControllerError(
            f"the installed onnx package has no networks in {folder}; reinstall the onnx package"
        )
    return [read_onnx(file) for file in files]


def _choose_platform(client: ControllerClient, say: Any) -> str:
    found = client.platforms()
    for status in found:
        say(f"  {status.name or status.runtime}: {status.missing or 'ready'}")
    usable = [p.name for p in found if p.available and p.runtime == "onnxruntime"]
    if not usable:
        raise FarmError("no board offers onnxruntime; latfarm doctor says how to install it")
    return usable[0]


def _rows(
    graphs: list[Graph],
    measured: list[Measurement],
    answers: dict[str, Any],
    predictor: PlatformPredictor,
) -> list[NetworkRow]:
    from latfarm_predictors.graph.hash import hash_of

    from latfarm_controller.reports.facts.network_rows import network_row

    rows = []
    for graph in graphs:
        mine = sorted(
            (m for m in measured if m.graph_hash == hash_of(graph) and m.latency_ms is not None),
            key=lambda m: m.told_at_s,
        )
        if not mine:
            failed = next((m for m in measured if m.graph_hash == hash_of(graph)), None)
            reason = f"{failed.error_code}: {failed.error_message}" if failed else "not measured"
            raise ControllerError(f"{graph.name}: {reason}")
        rows.append(network_row(graph, mine, answers[graph.name], predictor))
    return rows
