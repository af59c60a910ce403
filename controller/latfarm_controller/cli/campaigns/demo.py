"""`latfarm demo`: the main job on this machine, from nothing to a report.

The held-out networks are the ONNX graphs that ship inside the `onnx` package. No network of their
lineages is measured for calibration, and no kernel of their configurations is trained on.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from latfarm_predictors.graph.hash import hash_of
from latfarm_predictors.measurement import ENERGY_MS

from latfarm_controller.cli.shell import output
from latfarm_controller.errors import ControllerError, FarmError

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.measurement import Measurement
    from latfarm_predictors.predict.predictor import PlatformPredictor
    from latfarm_protos.v1 import controller_pb2 as pb

    from latfarm_controller.cli.shell.connect import ControllerClient
    from latfarm_controller.reports.energy import EnergyRow
    from latfarm_controller.reports.networks import NetworkRow

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
PASSES = 2


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    platform: Annotated[str, typer.Option("--platform", "-p", help="default: onnxruntime")] = "",
    kernels: Annotated[int, typer.Option(min=20, help="kernels to measure")] = 450,
    networks: Annotated[int, typer.Option(min=9, help="calibration networks")] = 20,
    energy: Annotated[
        bool, typer.Option("--energy", help="millijoules too, where the board has a power rail")
    ] = False,
    seed: Annotated[int, typer.Option(help="of all random draws")] = 0,
    name: Annotated[str, typer.Option(help="another name begins from nothing")] = "demo",
    figures: Annotated[Path | None, typer.Option(help="also write the figures as JSON")] = None,
    picture: Annotated[Path | None, typer.Option(help="also write the plot as SVG")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the figures as JSON")] = False,
) -> None:
    """Characterise this machine, then predict and measure nine real networks it has never seen.

    Stopped at any point, the same command goes on where it stopped.

    \b
    Examples:
      latfarm demo
      latfarm demo --platform local-litert2.3-fp32-1t --name litert
    """
    from latfarm_controller.cli.shell.connect import controller
    from latfarm_controller.cli.shell.progress import follow
    from latfarm_controller.config import load_config
    from latfarm_controller.reports import networks as reports
    from latfarm_controller.reports.energy import energy_rows
    from latfarm_controller.reports.pages import page, svg
    from latfarm_controller.training.bundles import open_bundle

    say = output.err().print
    began_s = time.time()
    config = load_config()
    held_out = held_out_networks()
    say(f"state in {config.home}; nine held-out networks read from the onnx package")
    with controller() as client:
        platform = platform or _choose_platform(client, say)
        longer = {"energy_ms": ENERGY_MS} if energy else {}
        settings = {
            "budget": kernels,
            "calibration": networks,
            "seed": seed,
            "exclude_lineages": list(LINEAGES),
            "held_out": [graph.to_json() for graph in held_out],
            **longer,
        }
        started = client.start("characterize", platform, settings, name)
        campaign = follow(client, started.campaign_id)
        predictor = open_bundle(config.bundles_dir, platform)
        answers = {graph.name: predictor.predict(graph) for graph in held_out}
        costs = predictor.predict_energies(held_out) if predictor.energy is not None else []
        say("predicted nine networks; now they are measured")
        judged = client.start(
            "networks",
            platform,
            {
                "graphs": [graph.to_json() for graph in held_out],
                "passes": PASSES,
                "settings": {"sessions": 6, "max_ms": 400.0, "warmup_ms": 50.0, **longer},
            },
            f"{name}-held-out",
        )
        follow(client, judged.campaign_id)
        measured = list(client.results(campaign_id=judged.campaign_id, purpose="network"))
        boards = client.boards()
    rows = _rows(held_out, measured, answers, predictor)
    spent = energy_rows({hash_of(g): c for g, c in zip(held_out, costs, strict=False)}, measured)
    record = _figures(rows, campaign, measured, time.time() - began_s, platform)
    if energy:
        record["energy"] = _energies(spent, measured)
    if figures is not None:
        figures.write_text(json.dumps(record, indent=2) + "\n")
    if picture is not None:
        page.write(picture, svg.standalone(reports.plot(rows)))
    path = config.reports_dir / f"{name}.html"
    report = _report(path, rows, predictor, campaign, measured, boards, spent)
    if as_json:
        output.json_text(record | {"report": str(report)})
        return
    _print(rows, record)
    if energy:
        output.out().print(record["energy"]["summary"])
    output.out().print(f"report: {report}")
    say(f"all that is known of the platform: latfarm report {platform}")


def held_out_networks() -> list[Graph]:
    """The `light` ONNX graphs of the `onnx` package, read from disk as any user's file.

    Raises:
        ControllerError: the package does not ship them.
    """
    import onnx
    from latfarm_predictors.frontends.onnx import read_onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    files = sorted(folder.glob("light_*.onnx"))
    if not files:
        raise ControllerError(f"this onnx package ships no networks in {folder}")
    return [read_onnx(file) for file in files]


def _choose_platform(client: ControllerClient, say: Any) -> str:
    found = client.platforms()
    for status in found:
        say(f"  {status.name or status.runtime}: {status.missing or 'ready'}")
    usable = [p.name for p in found if p.available and p.runtime == "onnxruntime"]
    if not usable:
        raise FarmError("no board offers onnxruntime; latfarm doctor tells how to get it")
    return usable[0]


def _rows(
    graphs: list[Graph],
    measured: list[Measurement],
    answers: dict[str, Any],
    predictor: PlatformPredictor,
) -> list[NetworkRow]:
    from latfarm_predictors.predict.baseline_sums import baseline_ms

    from latfarm_controller.reports.networks import NetworkRow, vendor_baselines

    rows = []
    for graph in graphs:
        mine = sorted(
            (m for m in measured if m.graph_hash == hash_of(graph) and m.latency_ms is not None),
            key=lambda m: m.measured_at_s,
        )
        if not mine:
            failed = next((m for m in measured if m.graph_hash == hash_of(graph)), None)
            reason = f"{failed.error_code}: {failed.error_message}" if failed else "not measured"
            raise ControllerError(f"{graph.name}: {reason}")
        sessions = [latency for m in mine for latency in m.session_ms]
        rows.append(
            NetworkRow(
                network=graph.name,
                measured_ms=median(sessions),
                passes_ms=[m.latency_ms for m in mine if m.latency_ms is not None],
                answer=answers[graph.name],
                baseline_ms={
                    "forest": baseline_ms(predictor, graph, "forest"),
                    **vendor_baselines(mine),
                },
            )
        )
    return rows


def _figures(
    rows: list[NetworkRow],
    campaign: pb.Campaign,
    measured: list[Measurement],
    wall_s: float,
    platform: str,
) -> dict[str, Any]:
    from latfarm_controller.reports.networks import AccuracySummary

    outcome = json.loads(campaign.outcome_json or "{}")
    return {
        "platform": platform,
        "taken_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "conditions": dict(measured[0].conditions),
        "summary": AccuracySummary.of(rows).to_json(),
        "measurements": campaign.measurements + len(measured),
        "board_s": round((campaign.board_ms + sum(m.board_ms for m in measured)) / 1000, 1),
        "board_idle_share": _idle(outcome),
        "wall_s": round(wall_s, 1),
        "characterize_wall_s": round(campaign.wall_ms / 1000, 1),
        "networks": [
            {
                "network": row.network,
                "measured_ms": row.measured_ms,
                "passes_ms": row.passes_ms,
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


def _energies(rows: list[EnergyRow], measured: list[Measurement]) -> dict[str, Any]:
    stories = [m.energy_story for m in measured if m.energy_story]
    summary = "no energy was told" + (f": {stories[0]}" if stories else "")
    if rows:
        error = median(abs(row.error) for row in rows)
        summary = (
            f"energy by {rows[0].answer.rail}: median error {error:.1%}, "
            f"{sum(row.inside for row in rows)} of {len(rows)} inside"
        )
    return {
        "summary": summary,
        "networks": [
            {
                "network": row.network,
                "measured_mj": row.measured_mj,
                "spread_mj": row.spread_mj,
                "predicted_mj": row.answer.energy_mj,
                "interval_mj": row.answer.interval_mj,
                "rail": row.answer.rail,
            }
            for row in rows
        ],
    }


def _idle(outcome: dict[str, Any]) -> str:
    shares = [board["idle_share"] for board in outcome.get("boards", {}).values()]
    return ", ".join(f"{share:.1%}" for share in shares) or "unknown"


def _print(rows: list[NetworkRow], record: dict[str, Any]) -> None:
    output.table(
        f"{record['platform']}: networks that it has never seen",
        ["network", "measured, ms", "predicted, ms", "error", "90 % interval, ms", "inside?"],
        [
            [
                row.network,
                f"{row.measured_ms:.2f}",
                f"{row.answer.latency_ms:.2f}",
                f"{row.error * 100:+.1f} %",
                "{:.2f} to {:.2f}".format(*row.answer.interval_ms),
                "yes" if row.inside else "no",
            ]
            for row in rows
        ],
    )
    summary = record["summary"]
    noise = "" if summary["noise"] is None else f"; two passes differ by {summary['noise']:.1%}"
    output.out().print(
        f"median error {summary['median_error']:.1%}, worst {summary['worst_error']:.1%}, "
        f"{summary['inside']} of {summary['networks']} inside, median width "
        f"{summary['median_width']:.0%}{noise}\n{record['measurements']} measurements, "
        f"{record['board_s']:.0f} s of board time, {record['wall_s']:.0f} s in all"
    )


def _report(
    path: Path,
    rows: list[NetworkRow],
    predictor: PlatformPredictor,
    campaign: pb.Campaign,
    measured: list[Measurement],
    boards: list[pb.BoardStatus],
    energies: list[EnergyRow],
) -> Path:
    from latfarm_controller.reports import networks
    from latfarm_controller.reports.pages import page

    outcome = json.loads(campaign.outcome_json or "{}")
    hardware = dict(boards[0].hardware) if boards else {}
    today = datetime.now(UTC).date().isoformat()
    html = networks.render(
        "Networks that this board has never seen",
        f"{campaign.platform}, {hardware.get('cpu', 'unknown processor')}, {today}",
        rows,
        verdicts=[(a, b, verdict) for (a, b), verdict in sorted(predictor.rules.pairs.items())],
        groups=predictor.explain()["groups"],
        campaign={
            "measurements": str(campaign.measurements + len(measured)),
            "board time": f"{campaign.board_ms / 1000:.0f} s",
            "wall time": f"{campaign.wall_ms / 1000:.0f} s",
            "idle share of the board": _idle(outcome),
            "failures": str(campaign.failures),
        },
        conditions=dict(sorted(measured[0].conditions.items()))
        | {f"settings: {k}": str(v) for k, v in asdict(measured[0].settings).items()},
        energies=energies,
    )
    return page.write(path, html)
