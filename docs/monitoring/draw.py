"""Draws each panel of the dashboard as an SVG file from the data of Prometheus, without Grafana.

Usage: `python docs/monitoring/draw.py http://127.0.0.1:9090 FOLDER [--minutes 60]`. The data are
results of `query_range` for the expressions in the dashboard of the role `monitoring`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

COLLECTION = "ansible/collections/ansible_collections/latfarm/farm"
DASHBOARD = Path(__file__).parents[2] / COLLECTION / "roles/monitoring/files/dashboard.json"
WIDTH, PLOT, LEFT, RIGHT, TOP, LINE = 640, 180, 74, 16, 44, 15
"""Sizes in pixels: width of the picture, height of the plot, three margins, line of the legend."""

STEPS = 120
"""Number of points of each line."""

COLOURS = ("#2457c5", "#c2410c", "#12805c", "#7c3aed", "#b45309", "#0e7490", "#be185d", "#4d7c0f")
MOST_SERIES = 12
"""Largest number of lines in one picture."""

STYLE = (
    "text{font:11px sans-serif;fill:#1c2330}.tick{fill:#5b6575}.title{font-size:14px}"
    ".grid{stroke:#d9dee6}polyline{fill:none;stroke-width:1.5}"
)


@dataclass(frozen=True)
class Series:
    """One line of a plot: its name, and its points as (seconds since 1970, value)."""

    name: str
    points: Sequence[tuple[float, float]]


def draw(prometheus: str, folder: Path, span_s: float, window: str) -> list[Path]:
    """Write a picture of each panel; return the paths of the pictures.

    Args:
        prometheus: URL of Prometheus.
        folder: folder of the pictures; it is made if it is missing.
        span_s: time span of the pictures, in seconds before now.
        window: what stands for Grafana's `$__rate_interval`, for example "5m".
    """
    end_s = time.time()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        if panel["type"] == "row":
            continue
        found: list[Series] = []
        for target in panel["targets"]:
            expr = re.sub(r"\$(platform|board)", ".*", target["expr"])
            expr = expr.replace("$__rate_interval", window)
            found += _ask(prometheus, expr, target["legendFormat"], end_s - span_s, end_s)
        path = folder / f"{re.sub('[^a-z0-9]+', '-', panel['title'].lower()).strip('-')}.svg"
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        path.write_text(picture(panel["title"], unit, found, end_s - span_s, end_s))
        written.append(path)
    return written


def _ask(prometheus: str, expr: str, legend: str, start_s: float, end_s: float) -> list[Series]:
    parameters = {
        "query": expr,
        "start": f"{start_s:.3f}",
        "end": f"{end_s:.3f}",
        "step": f"{(end_s - start_s) / STEPS:.3f}",
    }
    url = f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        result = json.loads(answer.read())["data"]["result"]
    return [
        Series(_named(legend, one["metric"]), [(t, float(value)) for t, value in one["values"]])
        for one in result
    ]


def _named(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), legend).strip()


def shown(value: float, unit: str) -> str:
    """A value as text with a unit; `unit` is the unit's name in Grafana."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s" and abs(value) >= 2 * 86400:
        return f"{value / 86400:.3g} d"
    if unit == "s" and abs(value) < 1:
        return f"{value * 1e3:.3g} ms"
    suffix = {"s": " s", "celsius": " \u00b0C", "hertz": "Hz", "bytes": "B", "ops": "/s"}
    steps = ((1e9, "G"), (1e6, "M"), (1e3, "k")) if unit in ("hertz", "bytes") else ()
    for factor, letter in steps:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {letter}{suffix[unit]}"
    return f"{value:.3g}{suffix.get(unit, '')}"


def picture(title: str, unit: str, series: Sequence[Series], start_s: float, end_s: float) -> str:
    """A plot over time as an SVG file; the axis begins at 0 unless something is below."""
    drawn = sorted(series, key=lambda one: one.name)[:MOST_SERIES]
    values = [v for one in drawn for _, v in one.points if math.isfinite(v)]
    low, high = min([0.0, *values]), max([*values, 0.0])
    step = _step(high - low or 1.0)
    low, high = math.floor(low / step) * step, math.ceil((high or step) / step) * step
    rows = len(drawn) + (len(series) > len(drawn))
    height = TOP + PLOT + 30 + rows * LINE + 8

    def x(moment_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (moment_s - start_s) / (end_s - start_s)

    def y(value: float) -> float:
        return TOP + PLOT - PLOT * (value - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="title" x="12" y="20">{escape(title)}</text>'
        f'<text class="tick" x="12" y="35">drawn from Prometheus: {(end_s - start_s) / 60:.3g} '
        "minutes of a farm of simulated boards with faults</text>"
    ]
    for index in range(round((high - low) / step) + 1):
        value = low + index * step
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
            f'y2="{y(value):.1f}"/><text class="tick" x="{LEFT - 6}" y="{y(value) + 4:.1f}" '
            f'text-anchor="end">{escape(shown(value, unit))}</text>'
        )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        moment_s = start_s + share * (end_s - start_s)
        anchor = {0.0: "start", 1.0: "end"}.get(share, "middle")
        parts.append(
            f'<text class="tick" x="{x(moment_s):.1f}" y="{TOP + PLOT + 16}" '
            f'text-anchor="{anchor}">{moment_s - end_s:.0f} s</text>'
        )
    gap_s = 2.5 * (end_s - start_s) / STEPS
    for index, one in enumerate(drawn):
        colour = COLOURS[index % len(COLOURS)]
        for run in _runs(one.points, gap_s):
            dots = " ".join(f"{x(t):.1f},{y(v):.1f}" for t, v in run)
            parts.append(f'<polyline stroke="{colour}" points="{dots}"/>')
        line = TOP + PLOT + 34 + index * LINE
        last = next((v for _, v in reversed(one.points) if math.isfinite(v)), math.nan)
        told = f"{one.name or title}: {shown(last, unit)}"
        parts.append(
            f'<rect x="{LEFT}" y="{line - 7}" width="14" height="3" fill="{colour}"/>'
            f'<text x="{LEFT + 20}" y="{line - 2}">{escape(told)}</text>'
        )
    if len(series) > len(drawn):
        line = TOP + PLOT + 34 + len(drawn) * LINE
        parts.append(
            f'<text class="tick" x="{LEFT + 20}" y="{line - 2}">'
            f"and {len(series) - len(drawn)} more</text>"
        )
    return "".join([*parts, "</svg>\n"])


def _step(span: float) -> float:
    """A round distance between grid lines that gives about four to eight lines."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    return next(power * digit for digit in (1, 2, 5, 10) if span / (power * digit) <= 6)


def _runs(points: Sequence[tuple[float, float]], gap_s: float) -> list[list[tuple[float, float]]]:
    """Split points into runs; a run ends where points are missing or hold no number."""
    runs: list[list[tuple[float, float]]] = [[]]
    before_s = -math.inf
    for moment_s, value in points:
        if not math.isfinite(value) or moment_s - before_s > gap_s:
            runs.append([])
        if math.isfinite(value):
            runs[-1].append((moment_s, value))
        before_s = moment_s
    return [run for run in runs if run]


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw all panels; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("prometheus", help="URL of Prometheus, for example http://127.0.0.1:9090")
    parser.add_argument(
        "folder", type=Path, help="folder of the pictures; it is made if it is missing"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        help="time span of the pictures, before now (default 60)",
    )
    parser.add_argument(
        "--window", default="5m", help="window of rates, for example 5m (the default)"
    )
    args: Any = parser.parse_args(arguments)
    for path in draw(args.prometheus, args.folder, 60 * args.minutes, args.window):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
