"""What the dashboard shows: its rows, the panels in them, and the expressions of Prometheus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    logarithmic: bool = False
    """Whether the axis is logarithmic, for quantities of very different sizes."""
    height: int = 8
    """Height in cells of Grafana's grid; a tall one leaves room for a long legend."""
    colours: Mapping[str, str] = field(default_factory=dict)
    """Fixed colours, as Grafana names them, by the names of series; others get any colour."""


@dataclass(frozen=True)
class DashboardRow:
    """A heading of the dashboard, and the panels below it."""

    title: str
    panels: Sequence[PlotPanel]


PLATFORM, BOARD = '{platform=~"$platform"}', '{board=~"$board"}'
"""Selectors of the platforms and boards that the viewer chooses in the dashboard."""

BOARD_COLOURS = {
    "ready": "green",
    "probation": "yellow",
    "checking": "blue",
    "draining": "purple",
    "quarantined": "red",
    "away": "orange",
    "answer": "#8e8e8e",
}
"""A colour for each state of a board, and for the number of boards that answer Prometheus."""

CAMPAIGN_COLOURS = {
    "running": "blue",
    "waiting": "orange",
    "paused": "purple",
    "done": "green",
    "failed": "red",
    "cancelled": "#8e8e8e",
    "interrupted": "yellow",
}
"""A colour for each state of a campaign."""

ROWS = (
    DashboardRow(
        "Campaigns",
        (
            PlotPanel(
                "Campaigns by state",
                "Number of campaigns in each state, without those that were removed from the list.",
                "short",
                (Query("sum by (state) (latfarm_controller_campaigns)", "{{state}}"),),
                colours=CAMPAIGN_COLOURS,
            ),
            PlotPanel(
                "Progress of campaigns",
                "Done share of the stage that each open campaign is in; it begins again at 0 with "
                "each stage.",
                "percentunit",
                (
                    Query(
                        f"latfarm_controller_campaign_progress_ratio{PLATFORM}",
                        "{{name}} {{stage}}",
                    ),
                ),
                1.0,
            ),
        ),
    ),
    DashboardRow(
        "Throughput",
        (
            PlotPanel(
                "Answers by platform and campaign",
                "Answers per second that campaigns received. Answers to queries are named `query`.",
                "ops",
                (Query(f"latfarm:measurements:rate{PLATFORM}", "{{platform}} {{name}}"),),
            ),
            PlotPanel(
                "Utilisation of boards",
                "Share of the time in which the board was used for a measurement. Boards that are "
                "not scraped are shown as the controller counts.",
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
                height=10,
            ),
            PlotPanel(
                "Age of the oldest request",
                "How long the oldest request has waited for its answer.",
                "s",
                (Query(f"latfarm_controller_queue_oldest_seconds{PLATFORM}", "{{platform}}"),),
                height=10,
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
                height=12,
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
                height=12,
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
                colours=BOARD_COLOURS,
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
                "Days until the certificates of the boards, of the controller, and of those who "
                "read the boards' metrics expire.",
                "suffix:days",
                (
                    Query(
                        "latfarm:certificate_remaining:seconds / 86400", "{{board}} {{certificate}}"
                    ),
                    Query(
                        "latfarm:reader_certificate_remaining:seconds / 86400", "reader {{reader}}"
                    ),
                ),
                logarithmic=True,
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
