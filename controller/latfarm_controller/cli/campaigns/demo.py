"""`latfarm demo`: characterise this machine, and judge the predictor on networks held out."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from latfarm_predictors.whole_file import written_whole

from latfarm_controller.cli.campaigns import demo_options as options
from latfarm_controller.cli.campaigns.demo_clock import LONGEST_MINUTES
from latfarm_controller.cli.campaigns.demo_options import DemoOptions
from latfarm_controller.cli.shell import inputs, output
from latfarm_controller.cli.shell.old_spellings import formerly
from latfarm_controller.private_files import callers_umask

if TYPE_CHECKING:
    from latfarm_controller.cli.campaigns.demo_run import DemoRun
    from latfarm_controller.reports.facts.network_rows import NetworkRow


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", cls=formerly({"--picture": "--svg"}))(demo)


def demo(
    command: typer.Context,
    platform: options.Platform = "",
    budget: options.Budget = 500,
    budget_minutes: options.BudgetMinutes = None,
    minutes: options.Minutes = LONGEST_MINUTES,
    kernels: options.Kernels = None,
    networks: options.Networks = 20,
    energy: inputs.Energy = False,
    seed: options.Seed = 0,
    name: options.Name = "demo",
    figures: options.Figures = None,
    svg: options.Svg = None,
    as_json: options.Json = False,
) -> None:
    """Characterise this machine, and judge the predictions.

    Nine real networks that it has never seen are predicted and measured. It ends within ten minutes
    on any host: on a slow or busy one it measures less, and says so.

    You can stop this at any point; the same command continues where it stopped.

    \b
    Examples:
      latfarm demo
      latfarm demo --platform local-litert2.3-fp32-1t --name litert
    """
    from latfarm_controller.cli.campaigns.demo_run import run_demo
    from latfarm_controller.cli.campaigns.plan import tell_host
    from latfarm_controller.cli.shell.host_now import look
    from latfarm_controller.config import load_config
    from latfarm_controller.reports.energy import energy_facts

    began_s = time.time()
    options.check(command)
    inputs.check_to_write(figures, svg)
    config = load_config()
    measured = options.measured(budget, budget_minutes, kernels)
    free = kernels is not None or budget_minutes is not None
    wanted = DemoOptions(platform, measured, networks, energy, seed, name, 0.0 if free else minutes)
    host = look()
    tell_host(host)
    run = run_demo(wanted, config)
    record = _figures(run, time.time() - began_s)
    if energy:
        record["energy"] = energy_facts(run.energies, run.measured)
    report = _write(run, record, config.reports_dir / f"{name}.html", figures, svg)
    if as_json:
        output.json_text(record | {"report": str(report)})
        return
    _print(run.rows, record)
    _print_limits(run.left_out, wanted.minutes, record["wall_s"])
    if host.hopeless:
        output.out().print(f"{host.sentence}; what would help: {host.advice}", style="yellow")
    if energy:
        output.out().print(record["energy"]["summary"])
    output.out().print(f"report: {report}")
    output.err().print(f"for everything known about the platform: latfarm report -p {run.platform}")


def _print_limits(left_out: str, minutes: float, wall_s: float) -> None:
    """Say what was left out so that the demo ends in time, and when it did not."""
    story = left_out and f"left out, to end within {minutes:g} minutes: {left_out}"
    for text in filter(None, (story, lateness(minutes, wall_s))):
        output.out().print(text, style="yellow")


def lateness(minutes: float, wall_s: float) -> str:
    """What to say of a demo that took longer than it should; empty if it did not.

    Args:
        minutes: how long it might take, in minutes; 0: any time.
        wall_s: how long it took, in seconds.
    """
    if not minutes or wall_s <= 60.0 * minutes:
        return ""
    return (
        f"it took {wall_s / 60.0:.1f} minutes instead of {minutes:g}: even the least that a "
        "predictor needs takes longer while this machine is so busy"
    )


def _figures(run: DemoRun, wall_s: float) -> dict[str, Any]:
    """The figures of the demo, as plain JSON types.

    Args:
        run: what was found.
        wall_s: duration of the whole command in seconds.
    """
    from latfarm_controller.reports.facts.network_rows import AccuracySummary

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
        "left_out": run.left_out,
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
            with written_whole(figures, make_folder=True) as part:
                part.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
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
