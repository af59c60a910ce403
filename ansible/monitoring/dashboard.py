"""Writes `dashboard.json`, the dashboard of the farm for Grafana, into the folder of this file.

Usage: `python ansible/monitoring/dashboard.py`; with `--check` it fails if the file is stale.
It needs grafana-foundation-sdk (`make setup-farm`). To change a panel, change it here and run this
program.
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
"""The file that this program writes."""

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the viewer chooses in the dashboard."""

WIDTH, HEIGHT = 12, 8
"""Size of a panel in cells of Grafana's grid, which is 24 cells wide."""

PROMISED_COVERAGE = 0.9
"""Share of measured networks that the intervals of predictions promise to contain."""


@dataclass(frozen=True)
class Query:
    """An expression of Prometheus, and the template of its series' names."""

    expr: str
    legend: str


@dataclass(frozen=True)
class PlotPanel:
    """A plot over time. `unit` is a unit's name in Grafana."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    top: float | None = None
    """Upper end of the axis, for quantities that have a highest value."""


@dataclass(frozen=True)
class DashboardRow:
    """A heading of the dashboard, and the panels below it."""

    title: str
    panels: Sequence[PlotPanel]


PLATFORM, BOARD = '{platform=~"$platform"}', '{board=~"$board"}'
"""Selectors of the platforms and boards that the viewer chooses in the dashboard."""

ROWS = (
    DashboardRow(
        "Throughput",
        (
            PlotPanel(
                "Answers by platform and campaign",
                "Answers per second that campaigns received. Answers to queries are named `query`.",
                "ops",
                (Query(f"latfarm:measurements:rate{PLATFORM}", "{{platform}} {{campaign}}"),),
            ),
            PlotPanel(
                "Utilisation of boards",
                "Share of the time in which the board was used for a measurement.",
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
                "Number of requests that wait for a board, and number of requests at boards.",
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
                "How long the oldest request has waited for its answer.",
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
                "Stages of the controller: queue, build, board, store. Stages of the agents: "
                "queued, upload, waiting, loading (prepare and compile), warming, timing, cold, "
                "profiling.",
                "s",
                (Query("latfarm:stage_seconds:p50", "{{stage}}"),),
            ),
            PlotPanel(
                "Time by stage, 90 %",
                "Nine of ten measurements take less time than this in a stage.",
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
                "Answers per second that are errors of the model or of the infrastructure.",
                "ops",
                (Query(f"latfarm:errors:rate{PLATFORM}", "{{platform}} {{error_code}}"),),
            ),
            PlotPanel(
                "Retries, quarantines, refused conditions",
                "Repeated requests, quarantined boards, and measurements refused for their "
                "conditions, per second.",
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
                "Temperature of each board's hottest sensor; boards without one are not shown.",
                "celsius",
                (Query(f"latfarm_agent_temperature_celsius{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "Clock",
                "Frequency of the core that measures; boards that do not report it are not shown.",
                "hertz",
                (Query(f"latfarm_agent_clock_hertz{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "Throttling",
                "Signs of throttling in the window: rises of the throttle level, and measurements "
                "that were refused.",
                "short",
                (Query(f"latfarm:throttled:increase{BOARD}", "{{board}}"),),
            ),
            PlotPanel(
                "States of boards",
                "Number of boards in each state, and number of boards that answer Prometheus.",
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
                "How much slower each board's sentinel is than its reference; below 0: faster.",
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
                "Time until the certificates of the boards and of the controller expire.",
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
                "Size of the store's file on disk.",
                "bytes",
                (Query("latfarm_controller_store_size_bytes", "store"),),
            ),
            PlotPanel(
                "Rows of the store",
                "Number of rows in each table of the store.",
                "short",
                (Query("latfarm_controller_store_rows", "{{table}}"),),
            ),
            PlotPanel(
                "Free on disks",
                "Free share of the controller's disk and of each board's disk.",
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
                "Median error of the newest bundle's predictions for networks that were measured.",
                "percentunit",
                (Query(f"latfarm:prediction_error:median{PLATFORM}", "{{platform}}"),),
            ),
            PlotPanel(
                "Coverage of intervals",
                f"Share of measured networks whose latency is inside the interval, which promises "
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
                "Predictions per second that clients requested from the controller.",
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
    """The dashboard as JSON, in the form that Grafana reads."""
    board = (
        dashboard.Dashboard("latfarm")
        .uid("latfarm")
        .description(
            "A farm of boards: its measurements, its condition, the accuracy of its predictions."
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
    """Write the file, or compare it with `--check`; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check",
        action="store_true",
        help="write nothing; exit with status 1 if dashboard.json is stale",
    )
    if parser.parse_args().check:
        if FILE.read_text(encoding="utf-8") == text():
            return 0
        print(f"{FILE} is stale: python ansible/monitoring/dashboard.py", file=sys.stderr)
        return 1
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
