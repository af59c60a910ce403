"""Draws the dashboard with Grafana's own panel components, in headless Chromium.

No Grafana server is needed: `tests/monitoring/grafana_panels` has a page that draws
`dashboard.json` with the components of the npm packages @grafana/ui and @grafana/data. The page is
bundled once and kept in the cache of the farm tests. To draw the panels of any Prometheus:
`python -m tests.farm.lab.grafana http://127.0.0.1:9090 FOLDER --minutes 180`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.farm.boards import host, rootfs
from tests.farm.boards.patience import scaled_s
from tests.monitoring.rendering import DASHBOARD

SOURCES = Path(__file__).parents[2] / "monitoring" / "grafana_panels"
"""The page, the program that opens it in a browser, and their locked dependencies."""

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
"""Names of the browser's program; the first one that is found is used."""

BUILD_S = 900.0
"""How long installing the packages and bundling may take on a quiet host, in seconds."""

DRAW_S = 400.0
"""How long drawing may take on a quiet host, in seconds."""

STEPS = 160
"""Number of points of each line."""


class GrafanaError(Exception):
    """The page could not be built, or failed."""


@dataclass(frozen=True)
class DrawnSeries:
    """A line: its name, its fixed colour (empty: any), and its number of points with a value."""

    name: str
    colour: str
    points: int


@dataclass(frozen=True)
class DrawnPanel:
    """What a panel shows: the texts of its legend, its lines, and its number of coloured pixels."""

    title: str
    legend: tuple[str, ...]
    series: tuple[DrawnSeries, ...]
    coloured: int


@dataclass(frozen=True)
class Span:
    """The time that is drawn: its begin and end in Unix time, and the window of rates."""

    from_s: float
    to_s: float
    rate_interval: str = "5m"


def missing() -> list[str]:
    """Names of the programs that this host lacks for drawing panels."""
    found = [name for name in ("node", "npm") if shutil.which(name) is None]
    return found if browser() else [*found, "chromium"]


def lacks() -> str:
    """Why this host cannot draw panels, in one line; empty if it can."""
    names = ", ".join(missing())
    return f"missing: {names} (apt-get install nodejs npm chromium)" if names else ""


def browser() -> str:
    """Path of the browser's program; empty if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), "")


def bundle() -> Path:
    """The folder with the bundled page; it is made if these sources were never bundled before.

    Raises:
        GrafanaError: npm could not install the packages, or they could not be bundled.
    """
    files = sorted(path for path in SOURCES.iterdir() if path.is_file())
    key = hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files))
    cache = host.cache_dir() / "grafana-panels"
    cache.mkdir(parents=True, exist_ok=True)
    made = cache / key.hexdigest()[:16]
    with rootfs.locked(cache / "lock"):
        if not made.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                folder = Path(work)
                for path in files:
                    shutil.copy(path, folder)
                quiet = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
                _run(folder, "npm", "ci", *quiet)
                _run(folder, "node", "build.mjs", "bundled")
                (folder / "bundled").rename(made)
    return made


def _run(folder: Path, *words: str) -> None:
    """Run a program in a folder.

    Raises:
        GrafanaError: it failed.
    """
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled_s(BUILD_S),
        )
    except subprocess.TimeoutExpired as error:
        raise GrafanaError(f"{' '.join(words)}: no end after {error.timeout:.0f} s") from error
    if done.returncode:
        raise GrafanaError(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-2000:]}")


def draw(
    prometheus: str, out: Path, span: Span, *, theme: str = "light", dashboard: Path = DASHBOARD
) -> list[DrawnPanel]:
    """Draw all panels of the dashboard, and write a PNG and an SVG of each into a folder.

    `dashboard.png` shows the whole dashboard.

    Args:
        prometheus: URL of Prometheus.
        out: folder of the pictures; it is made if it is missing.
        span: what time is drawn.
        theme: `light` or `dark`.
        dashboard: file of the dashboard.

    Raises:
        GrafanaError: the page cannot be built, or failed; tells what it told.
    """
    page = bundle()
    settings = {
        "prometheus": prometheus,
        "dashboard": str(dashboard),
        "chromium": browser(),
        "out": str(out.resolve()),
        "from_ms": round(1000 * span.from_s),
        "to_ms": round(1000 * span.to_s),
        "step_s": max(1, round((span.to_s - span.from_s) / STEPS)),
        "rate_interval": span.rate_interval,
        "theme": theme,
    }
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "settings.json"
        told.write_text(json.dumps(settings))
        try:
            done = subprocess.run(
                ["node", page / "draw.mjs", told],
                capture_output=True,
                text=True,
                check=False,
                timeout=scaled_s(DRAW_S),
            )
        except subprocess.TimeoutExpired as error:
            raise GrafanaError(f"the page drew nothing within {error.timeout:.0f} s") from error
    if done.returncode:
        raise GrafanaError((done.stdout + done.stderr).strip()[-4000:])
    return [_panel(panel) for panel in json.loads(done.stdout)["panels"]]


def _panel(told: dict[str, Any]) -> DrawnPanel:
    series = tuple(DrawnSeries(**one) for one in told["series"])
    return DrawnPanel(told["title"], tuple(told["legend"]), series, told["coloured"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Bundle the page, or draw the panels of a Prometheus; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "prometheus", nargs="?", help="URL of Prometheus; without it, the page is only bundled"
    )
    parser.add_argument("folder", nargs="?", type=Path, help="folder of the pictures")
    parser.add_argument("--minutes", type=float, default=60.0, help="time span (default 60)")
    parser.add_argument("--window", default="5m", help="window of rates (default 5m)")
    parser.add_argument("--theme", choices=("light", "dark"), default="light")
    args = parser.parse_args(arguments)
    if bool(args.prometheus) != bool(args.folder):
        parser.error("give both the URL of Prometheus and a folder for the pictures")
    reason = lacks()
    if reason:
        print(f"panels cannot be drawn here: {reason}", file=sys.stderr)
        return 1
    try:
        if not args.prometheus:
            print(bundle())
            return 0
        now_s = time.time()
        span = Span(now_s - 60.0 * args.minutes, now_s, args.window)
        for panel in draw(args.prometheus, args.folder, span, theme=args.theme):
            print(f"{panel.title}: {len(panel.series)} series")
    except GrafanaError as error:
        print(f"panels cannot be drawn: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
