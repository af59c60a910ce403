"""Write `dashboard.json` beside this file: what Grafana shows of the farm.

Usage: `python ansible/monitoring/dashboard.py`, or with `--check` to fail when the file is stale.
Needs grafana-foundation-sdk (`make setup-farm`). Change the panels here, not the file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common as ui
from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

FILE = Path(__file__).with_name("dashboard.json")
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
WIDTH, HEIGHT = 12, 8
"""Of a panel: Grafana's grid is 24 columns wide."""
PROMISED_COVERAGE = 0.9


@dataclass(frozen=True)
class Query:
    """An expression, and how its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True)
class PlotPanel:
    """A plot over time. `unit` is Grafana's name of it."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    top: float | None = None
    """The axis' end where the quantity has one."""


@dataclass(frozen=True)
class DashboardRow:
    """Panels that belong together."""

    title: str
    panels: Sequence[PlotPanel]


PLATFORM, BOARD = '{platform=~"$platform"}', '{board=~"$board"}'
ROWS = (
    DashboardRow(
        "Throughput",
        (
            PlotPanel(
                "Answers by platform and campaign",
                "Answers a second that campaigns were told; questions to boards are `query`.",
                "ops",
                (Query(f"latfarm:measurements:rate{PLATFORM}", "{{platform}} {{campaign}}"),),
            ),
            PlotPanel(
                "Utilisation of boards",
                "Share of the time in which a measurement had the board.",
                "percentunit",
                (Query(f"latfarm:board_utilisation:ratio{BOARD}", "{{board}}"),),
                1.0,
            ),
        ),
    ),
    DashboardRow(
        "Queue",
        (
            PlotPanel(
                "Queue",
                "Requests that wait for a board, and that were given to one.",
                "short",
                (
                    Query(f"latfarm_controller_queue_length{PLATFORM}", "{{platform}} waiting"),
                    Query(
                        f"latfarm_controller_requests_at_boards{PLATFORM}", "{{platform}} at boards"
                    ),
                ),
            ),
            PlotPanel(
                "Age of the oldest request",
                "How long the oldest open request is unanswered.",
                "s",
                (Query(f"latfarm_controller_queue_oldest_seconds{PLATFORM}", "{{platform}}"),),
            ),
        ),
    ),
    DashboardRow(
        "A measurement",
        (
            PlotPanel(
                "Time by stage, median",
                "Of the controller: queue, build, board, store. Of the agents: queued, upload, "
                "waiting, loading (prepare and compile), warming, timing, cold, profiling.",
                "s",
                (Query("latfarm:stage_seconds:p50", "{{stage}}"),),
            ),
            PlotPanel(
                "Time by stage, 90 %",
                "Nine of ten measurements take less in this stage.",
                "s",
                (Query("latfarm:stage_seconds:p90", "{{stage}}"),),
            ),
        ),
    ),
    DashboardRow(
        "Failures",
        (
            PlotPanel(
                "Errors by type",
                "Answers a second that are errors: the model's own, or the infrastructure's.",
                "ops",
                (Query(f"latfarm:errors:rate{PLATFORM}", "{{platform}} {{error_code}}"),),
            ),
            PlotPanel(
                "Retries, quarantines, refused conditions",
                "What came again, which boards were put aside, which conditions were refused.",
                "ops",
                (
                    Query(
                        "sum by (platform) (rate(latfarm_controller_retries_total"
                        f"{PLATFORM}[$__rate_interval]))",
                        "{{platform}} retries",
                    ),
                    Query(
                        "sum by (board) (rate(latfarm_controller_quarantines_total"
                        f"{BOARD}[$__rate_interval]))",
                        "{{board}} quarantines",
                    ),
                    Query(
                        "sum by (board, reason) (rate(latfarm_agent_conditions_refused_total"
                        f"{BOARD}[$__rate_interval]))",
                        "{{board}} {{reason}}",
                    ),
                ),
            ),
        ),
    ),
    DashboardRow(
        "Boards",
        (
            PlotPanel(
                "Temperature",
                "Of each board's hottest sensor; boards without one are not shown.",
                "celsius",
                (Query(f"latfarm_agent_temperature_celsius{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "Clock",
                "Of the measuring core, as read back; boards that do not tell are not shown.",
                "hertz",
                (Query(f"latfarm_agent_clock_hertz{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "Throttling",
                "Signs of throttling in the window: sensors that rose, measurements rejected.",
                "short",
                (Query(f"latfarm:throttled:increase{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "States of boards",
                "How many boards the farm has in each state, and how many answer Prometheus.",
                "short",
                (
                    Query(
                        f"sum by (state) (latfarm_controller_board_state{BOARD})",
                        "{{state}}",
                    ),
                    Query('sum(up{job="latfarm-agents"})', "answer"),
                ),
            ),
            PlotPanel(
                "Drift",
                "How much slower each board's sentinel is than at first; below 0: faster.",
                "percentunit",
                (
                    Query(
                        "latfarm_controller_sentinel_shift_ratio"
                        '{board=~"$board", platform=~"$platform"}',
                        "{{board}} {{platform}}",
                    ),
                ),
            ),
            PlotPanel(
                "Certificates",
                "How long certificates of boards and controller last.",
                "s",
                (Query("latfarm:certificate_remaining:seconds", "{{board}} {{certificate}}"),),
            ),
        ),
    ),
    DashboardRow(
        "Store",
        (
            PlotPanel(
                "Size of the store",
                "Its file on disk.",
                "bytes",
                (Query("latfarm_controller_store_size_bytes", "store"),),
            ),
            PlotPanel(
                "Rows of the store",
                "By table.",
                "short",
                (Query("latfarm_controller_store_rows", "{{table}}"),),
            ),
            PlotPanel(
                "Free on disks",
                "Of the controller's disk, and of each board's.",
                "percentunit",
                (Query("latfarm:disk_free:ratio", "{{job}} {{board}}"),),
                1.0,
            ),
        ),
    ),
    DashboardRow(
        "Predictions",
        (
            PlotPanel(
                "Error of predictions, median",
                "Of networks that were measured, against what the newest bundle says of them.",
                "percentunit",
                (Query(f"latfarm:prediction_error:median{PLATFORM}", "{{platform}}"),),
            ),
            PlotPanel(
                "Coverage of intervals",
                f"Share of measured networks inside the interval that promises "
                f"{PROMISED_COVERAGE:.0%}.",
                "percentunit",
                (
                    Query(f"latfarm:prediction_coverage:ratio{PLATFORM}", "{{platform}}"),
                    Query(f"vector({PROMISED_COVERAGE})", "promised"),
                ),
                1.0,
            ),
            PlotPanel(
                "Predictions served",
                "Predictions a second that the controller was asked for.",
                "ops",
                (
                    Query(
                        "sum by (platform, outcome) (rate(latfarm_controller_predictions_total"
                        f"{PLATFORM}[$__rate_interval]))",
                        "{{platform}} {{outcome}}",
                    ),
                ),
            ),
        ),
    ),
)


def _panel(panel: PlotPanel) -> timeseries.Panel:
    plot = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(WIDTH)
        .height(HEIGHT)
        .line_width(1)
        .fill_opacity(8)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            ui.VizLegendOptions()
            .show_legend(True)
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
        )
        .tooltip(ui.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if panel.unit != "percentunit" or panel.top is not None:
        plot = plot.axis_soft_min(0.0)
    if panel.top is not None:
        plot = plot.max(panel.top)
    for index, query in enumerate(panel.queries):
        plot = plot.with_target(
            prometheus.Dataquery()
            .expr(query.expr)
            .legend_format(query.legend)
            .ref_id(chr(ord("A") + index))
            .range()
        )
    return plot


def _variables() -> Iterator[dashboard.QueryVariable]:
    for name, query in (
        ("platform", "label_values(latfarm_controller_measurements_total, platform)"),
        ("board", "label_values(up, board)"),
    ):
        yield (
            dashboard.QueryVariable(name)
            .label(name.capitalize())
            .datasource(SOURCE)
            .query(query)
            .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
            .sort(models.VariableSort.ALPHABETICAL_ASC)
            .multi(True)
            .include_all(True)
            .all_value(".*")
            .current(models.VariableOption(text="All", value="$__all"))
        )


def text() -> str:
    """The dashboard as Grafana reads it."""
    board = (
        dashboard.Dashboard("latfarm")
        .uid("latfarm")
        .description(
            "A farm of boards: what it measures, how it is, how right its predictions are."
        )
        .tags(["latfarm"])
        .time("now-3h", "now")
        .timezone("browser")
        .refresh("30s")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .with_variable(
            dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
        )
    )
    for variable in _variables():
        board = board.with_variable(variable)
    number = itertools.count(1)
    for row in ROWS:
        board = board.with_row(dashboard.Row(row.title).id(next(number)))
        for panel in row.panels:
            board = board.with_panel(_panel(panel).id(next(number)))
    plain = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    return json.dumps(plain, indent=1, sort_keys=True) + "\n"


def main() -> int:
    """Write the file, or with `--check` compare it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when the file is stale")
    if parser.parse_args().check:
        if FILE.read_text(encoding="utf-8") == text():
            return 0
        print(f"{FILE} is stale: python ansible/monitoring/dashboard.py", file=sys.stderr)
        return 1
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
