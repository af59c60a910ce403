"""`latfarm demo`: characterise this machine, and judge the predictor on networks held out.

The networks held out are the ONNX graphs that ship inside the `onnx` package. No family of their
lineages is in the draws of kernels, of profiled networks and of calibration networks, and no kernel
with exactly their sizes is trained on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli.campaigns import demo_options as options
from latfarm_controller.cli.campaigns.demo_options import DemoOptions
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.errors import ControllerError, FarmError
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.measurement import Measurement
    from latfarm_predictors.predict.predictor import PlatformPredictor

    from latfarm_controller.api.client import ControllerClient
    from latfarm_controller.app.summaries import BoardSummary, CampaignSummary
    from latfarm_controller.config import ControllerConfig
    from latfarm_controller.reports.energy import EnergyRow
    from latfarm_controller.reports.networks import NetworkRow

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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    platform: options.Platform = "",
    budget: options.Budget = 500,
    budget_minutes: options.BudgetMinutes = None,
    kernels: options.Kernels = None,
    networks: options.Networks = 20,
    energy: inputs.Energy = False,
    seed: options.Seed = 0,
    name: options.Name = "demo",
    figures: options.Figures = None,
    picture: options.Picture = None,
    as_json: options.Json = False,
) -> None:
    """Characterise this machine, then predict and measure nine real networks it has never seen.

    You can stop this at any point; the same command continues where it stopped.

    \b
    Examples:
      latfarm demo
      latfarm demo --platform local-litert2.3-fp32-1t --name litert
    """
    from latfarm_controller.config import load_config
    from latfarm_controller.reports.energy import energy_facts

    began_s = time.time()
    config = load_config()
    measured = options.measured(budget, budget_minutes, kernels)
    wanted = DemoOptions(platform, measured, networks, energy, seed, name)
    run = _run(wanted, config)
    record = _figures(run, time.time() - began_s)
    if energy:
        record["energy"] = energy_facts(run.energies, run.measured)
    report = _write(run, record, config.reports_dir / f"{name}.html", figures, picture)
    if as_json:
        output.json_text(record | {"report": str(report)})
        return
    _print(run.rows, record)
    if energy:
        output.out().print(record["energy"]["summary"])
    output.out().print(f"report: {report}")
    output.err().print(f"for everything known about the platform: latfarm report {run.platform}")


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
    """

    platform: str
    campaign: CampaignSummary
    predictor: PlatformPredictor
    measured: list[Measurement]
    boards: list[BoardSummary]
    rows: list[NetworkRow]
    energies: list[EnergyRow]


def _run(wanted: DemoOptions, config: ControllerConfig) -> DemoRun:
    """Characterise the platform, predict the networks that were held out, then measure them."""
    from latfarm_predictors.graph.hash import hash_of

    from latfarm_controller.cli.campaigns.judging_rounds import ROUNDS, JudgingRounds
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow
    from latfarm_controller.reports.energy import energy_rows
    from latfarm_controller.training.bundles import open_bundle

    say = output.err().print
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
            settings={"max_ms": 400.0, "warmup_ms": 50.0, **_longer(wanted)},
        )
        say(f"they are measured in {ROUNDS} rounds, spread over the run; no predictor sees these")
        rounds.before()
        config_json = _characterize_config(wanted, encoded)
        started = client.start("characterize", platform, config_json, wanted.name)
        campaign = follow(client, started.campaign_id, rounds.on_stage)
        predictor = open_bundle(config.bundles_dir, platform)
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
    )


def _longer(wanted: DemoOptions) -> dict[str, float]:
    return {"energy_ms": ENERGY_MS} if wanted.energy else {}


def _characterize_config(
    wanted: DemoOptions, encoded: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
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

    from latfarm_controller.reports.networks import network_row

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


def _figures(run: DemoRun, wall_s: float) -> dict[str, Any]:
    """The figures of the demo, as plain JSON types.

    Args:
        run: what was found.
        wall_s: duration of the whole command in seconds.
    """
    from latfarm_controller.reports.networks import AccuracySummary

    campaign, measured, rows = run.campaign, run.measured, run.rows
    return {
        "platform": run.platform,
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "conditions": dict(measured[0].conditions),
        "summary": AccuracySummary.of(rows).to_json(),
        "measurements": campaign.measurements + len(measured),
        "board_s": round((campaign.board_ms + sum(m.board_ms for m in measured)) / 1000, 1),
        "board_idle_share": _idle(campaign.outcome),
        "wall_s": round(wall_s, 1),
        "characterize_wall_s": round(campaign.wall_ms / 1000, 1),
        "networks": [
            {
                "network": row.network,
                "corrected_ms": row.corrected_ms,
                "timed_ms": row.timed_ms,
                "measured_ms": row.corrected_ms,  # the older name of "corrected_ms"
                "passes_ms": row.passes_ms,
                "standard_error_ms": row.standard_error_ms,
                "predicted_ms": row.answer.latency_ms,
                "interval_ms": row.answer.interval_ms,
                "error": row.error,
                "inside": row.inside,
                "baseline_ms": dict(row.baseline_ms),
                "unsupported": row.answer.unsupported,
            }
            for row in rows
        ],
    }


def _idle(outcome: Mapping[str, Any]) -> str:
    shares = [board["idle_share"] for board in outcome.get("boards", {}).values()]
    return ", ".join(f"{share:.1%}" for share in shares) or "unknown"


def _print(rows: list[NetworkRow], record: dict[str, Any]) -> None:
    output.table(
        f"{record['platform']}: networks that it has never seen",
        [
            *("network", "as timed, ms", "corrected, ms", "predicted, ms"),
            *("error", "90 % interval, ms", "inside?"),
        ],
        [
            [
                row.network,
                f"{row.timed_ms:.2f}",
                _with_error(row),
                f"{row.answer.latency_ms:.2f}",
                f"{row.error * 100:+.1f} %",
                "{:.2f} to {:.2f}".format(*row.answer.interval_ms),
                "yes" if row.inside else "no",
            ]
            for row in rows
        ],
    )
    summary = record["summary"]
    output.out().print(
        f"median error {summary['median_error']:.1%}, worst {summary['worst_error']:.1%}, "
        f"{summary['inside']} of {summary['networks']} inside, median width "
        f"{summary['median_width']:.0%}\n{_noise(summary)}{record['measurements']} "
        f"measurements, {record['board_s']:.0f} s of board time, {record['wall_s']:.0f} s in all"
    )


def _with_error(row: NetworkRow) -> str:
    """The corrected latency with its standard error, if it is known."""
    error_ms = row.standard_error_ms
    return f"{row.corrected_ms:.2f}" + ("" if error_ms is None else f" ±{error_ms:.2f}")


def _noise(summary: Mapping[str, Any]) -> str:
    """What the noise of the host leaves of a predictor without any error; empty if not known."""
    perfect = summary["perfect"]
    if perfect is None:
        return ""
    ours, theirs = (
        [f"{each[n]['share']:.0%}" for n in ("within5", "within10")] for each in (summary, perfect)
    )
    return (
        f"within 5 and 10 %: {' and '.join(ours)}; a perfect predictor, against means of "
        f"{perfect['passes']} passes with a standard error of {summary['standard_error']:.1%}: "
        f"{' and '.join(theirs)}\n"
    )


def _write(
    run: DemoRun, record: dict[str, Any], path: Path, figures: Path | None, picture: Path | None
) -> Path:
    """Write the files that are asked for, and the report to `path`."""
    from latfarm_controller.reports import networks
    from latfarm_controller.reports.pages import page, svg

    with callers_umask():
        if figures is not None:
            figures.write_text(json.dumps(record, indent=2) + "\n")
        if picture is not None:
            page.write(picture, svg.standalone(networks.plot(run.rows)))
    campaign, measured = run.campaign, run.measured
    hardware = dict(run.boards[0].hardware) if run.boards else {}
    today = datetime.now(UTC).date().isoformat()
    report = networks.NetworksReport(
        title="Networks that this board has never seen",
        lead=f"{campaign.platform}, {hardware.get('cpu', 'unknown processor')}, {today}",
        verdicts=[(a, b, verdict) for (a, b), verdict in sorted(run.predictor.rules.pairs.items())],
        groups=run.predictor.explain()["groups"],
        campaign={
            "measurements": str(campaign.measurements + len(measured)),
            "board time": f"{campaign.board_ms / 1000:.0f} s",
            "wall time": f"{campaign.wall_ms / 1000:.0f} s",
            "idle share of the board": _idle(campaign.outcome),
            "failures": str(campaign.failures),
        },
        conditions=dict(sorted(measured[0].conditions.items()))
        | {f"settings: {k}": str(v) for k, v in asdict(measured[0].settings).items()},
        energies=run.energies,
    )
    return page.write(path, networks.render(report, run.rows))
