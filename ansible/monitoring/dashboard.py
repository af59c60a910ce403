"""Writes `dashboard.json`, the dashboard of the farm for Grafana, into the folder of this file.

Usage: `python ansible/monitoring/dashboard.py`; with `--check` it fails if the file is stale.
It needs grafana-foundation-sdk (`make setup-farm`). To change a panel, change it in
`dashboard_rows.py` and run this program.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from dashboard_rows import ROWS, PlotPanel
from grafana_foundation_sdk.builders import common as ui
from grafana_foundation_sdk.builders import dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

COLLECTION = Path(__file__).parents[1] / "collections/ansible_collections/latfarm/farm"
"""The Ansible collection, whose role `monitoring` brings the dashboard to Grafana."""

FILE = COLLECTION / "roles/monitoring/files/dashboard.json"
"""The file that this program writes."""

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the viewer chooses in the dashboard."""

WIDTH = 12
"""Width of a panel in cells of Grafana's grid, which is 24 cells wide."""


def _panel(panel: PlotPanel) -> timeseries.Panel:
    plot = (
        timeseries.Panel()
        .title(panel.title)
        .description(panel.description)
        .datasource(SOURCE)
        .unit(panel.unit)
        .span(WIDTH)
        .height(panel.height)
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
    if panel.logarithmic:
        log = ui.ScaleDistributionConfig().type(common.ScaleDistribution.LOG).log(10)
        plot = plot.scale_distribution(log)
    elif panel.unit != "percentunit" or panel.top is not None:
        plot = plot.axis_soft_min(0.0)
    if panel.top is not None:
        plot = plot.max(panel.top)
    for name, colour in panel.colours.items():
        fixed = models.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
        plot = plot.override_by_name(name, [fixed])
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
