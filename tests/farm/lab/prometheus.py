"""Prometheus on this host, with the configuration of `ansible/monitoring.yml` and short times."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.farm.lab.processes import LoggedProcess, answers, get_json, until
from tests.monitoring.rendering import DASHBOARD, render
from tests.ports import free_port

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "openssl")
"""Programs that the tests of monitoring run on this host."""

SHORT: Mapping[str, object] = {
    "prometheus_scrape_interval": "1s",
    "prometheus_rate_window": "10s",
    "prometheus_accuracy_window": "60s",
    "prometheus_queue_age_seconds": 4,
    "prometheus_rules_folder": ".",
    **{
        f"prometheus_for_{name}": "1s"
        for name in (
            *("down", "unreachable", "throttling", "drift", "queue", "idle", "errors"),
            *("certificate", "disk"),
        )
    },
    "prometheus_for_quarantine": "0s",
}
"""Values of the role's variables for tests: short times, and a low limit for the queue's age."""


def lacks() -> str:
    """Why this host cannot run Prometheus, in one line; empty if it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    names = ", ".join(missing)
    return f"missing: {names} (apt-get install prometheus prometheus-alertmanager)" if names else ""


def start(folder: Path, port: int, log: Path) -> LoggedProcess:
    """Start Prometheus with the `prometheus.yml` of a folder; its data goes there as well."""
    words = (
        *("prometheus", f"--config.file={folder}/prometheus.yml", "--log.level=warn"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
    )
    return LoggedProcess(words, log, {})


@contextmanager
def scraping(folder: Path, targets: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Let Prometheus scrape the boards that enrolment has listed; yields a function for queries.

    Args:
        folder: a folder with `ca.crt`, `prometheus.crt` and `prometheus.key`; the certificate has
            the role viewer.
        targets: the folder in which enrolment writes a file for each board.
    """
    port = free_port()
    values = {
        **SHORT,
        "prometheus_tls_folder": str(folder),
        "prometheus_boards_folder": str(targets),
        "prometheus_controller_target": "",
    }
    (folder / "prometheus.yml").write_text(render("prometheus.yml.j2", values))
    process = start(folder, port, folder / "prometheus.log")
    url = f"http://127.0.0.1:{port}"
    try:
        until(partial(answers, f"{url}/-/ready"), url)
        yield lambda expr: list(get_json(f"{url}/api/v1/query", query=expr)["data"]["result"])
    finally:
        process.end()


def panels(dashboard: Path = DASHBOARD) -> list[dict[str, Any]]:
    """The plots of the dashboard, without the headings of its rows."""
    found = json.loads(dashboard.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expression(target: Mapping[str, Any], window: str) -> str:
    """The expression that Grafana sends for a panel when all boards and platforms are chosen.

    Args:
        target: one of the panel's targets.
        window: what stands for `$__rate_interval`, for example "15s".
    """
    expr = str(target["expr"]).replace("$platform", ".*").replace("$board", ".*")
    return expr.replace("$__rate_interval", window)
