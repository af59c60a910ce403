"""On a monitored farm, each alert fires and clears, and each panel of the dashboard shows data.

The farm consists of real processes on loopback: simulated boards with one fault each, the
controller, Prometheus and Alertmanager with the configuration of `ansible/monitoring.yml` and short
times. Root is not needed. Then Grafana's own panel components draw the dashboard from the data of
Prometheus. With LATFARM_PICTURES=FOLDER in the environment, the pictures are kept in that folder.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from latfarm_controller.app.question import Question
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.kernels.fusion import FusionRules

from tests.farm.conftest import cannot
from tests.farm.lab import grafana
from tests.farm.lab.monitored_board import CLOCK, COOLING, TEMPERATURE
from tests.farm.lab.monitored_farm import MonitoredFarm
from tests.farm.lab.processes import until
from tests.farm.lab.prometheus import expression, lacks, panels

pytestmark = [pytest.mark.farm, pytest.mark.timeout(420)]

SURVEY = {"count": 24, "passes": 1, "sentinel_every": 3, "sampler": "random"}
CHARACTERIZE = {
    "budget": 10,
    "calibration": 4,
    "network_passes": 1,
    "kernel_passes": 1,
    "sampler": "random",
    "rules": FusionRules().to_json(),  # given, so that the campaign does not measure pairs of ops
}
THROTTLES = {"every": 1, "length": 1, "factor": 1.0, "reported": True}
CALM = {"every": 0, "length": 0, "factor": 1.0, "reported": True}
SLOWER_LATER = {"every": 100, "length": 60, "factor": 1.2, "reported": False}
NEEDED = ["Conv", "Gemm", "MatMul", "Add", "MaxPool", "Relu", "GlobalAveragePool", "Concat"]
CAUSED = {
    ("BoardDown", "spare"),
    ("BoardUnreachable", "gone"),
    ("BoardQuarantined", "hot"),
    ("BoardThrottling", "hot"),
    ("BoardThrottling", "steady"),
    ("BoardDrift", "drifting"),
    ("QueueStuck", "paused-sim1.0-fp32-1t"),
    ("ErrorRate", "picky-sim1.0-fp32-1t"),
    ("CertificateExpiry", "secure"),
    ("ReaderCertificateExpiry", ""),
    ("CampaignFailed", "picky-sim1.0-fp32-1t"),
    ("DiskFull", "steady"),
    ("DiskFull", ""),  # of the controller
}
"""The alerts that the faults cause: the alert's name, and its board or platform."""

PREDICTIONS = ("latfarm:prediction_error:median", "latfarm:prediction_coverage:ratio")
COLOURS = {
    "States of boards": {"ready": "green", "quarantined": "red", "away": "orange"},
    "Campaigns by state": {"done": "green", "failed": "red"},
}
"""Some series of panels, and the colours that they must have."""

LEAST_PIXELS = 8
"""Fewest coloured pixels of a panel that draws a series, even a short one at its edge."""

WINDOW = "15s"
"""What stands for Grafana's `$__rate_interval`."""


def network(width: int) -> Graph:
    """A small network; each width gives a different one."""
    b = GraphBuilder(f"net{width}")
    x = b.relu(b.conv(b.input((1, 3, 56, 56)), width, 3))
    for _ in range(3):
        x = b.relu(b.conv(x, width, 3))
    return b.build([x])


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredFarm]:
    """Boards with one fault each, which Prometheus scrapes from the start."""
    reason = lacks()
    if reason:
        cannot(reason)
    with MonitoredFarm(tmp_path_factory.mktemp("monitored")) as farm:
        # A ratio above 1 makes the alert fire, and so does a certificate for a few days.
        farm.configure(reader_days=3, prometheus_disk_free_ratio=2)
        farm.add("steady")
        farm.add("spare", member=False)
        farm.add("secure", secure_days=3)
        farm.add_unreachable("gone")
        farm.add("hot", throttle=THROTTLES)
        farm.add("picky", unsupported_ops=NEEDED)
        farm.add("drifting", throttle=SLOWER_LATER)
        farm.add("paused", measure_ms=500)
        farm.watch()
        farm.serve()
        for board in farm.boards.values():
            board.wait()
        yield farm


def last_label_fits(from_s: float) -> bool:
    """Whether the last label of a time axis that ends now is whole.

    A label that is right at the end is cut off at the edge of the panel. Half a label is as wide as
    7 % of the axis at most. There is one every 15, 30 or 60 seconds.
    """
    shown_s = time.time() - from_s
    every_s = 15.0 if shown_s < 110.0 else 30.0 if shown_s < 240.0 else 60.0
    return time.time() % every_s >= min(0.07 * shown_s, 0.8 * every_s)


def test_each_alert_fires_and_each_panel_shows_something(farm: MonitoredFarm) -> None:
    boards = farm.boards
    platform = boards["steady"].platform
    with farm.client() as client, farm.remembering() as seen:
        steady = client.start("characterize", platform, CHARACTERIZE, "steady")
        boards["spare"].end(signal.SIGKILL)
        until(lambda: client.campaign("steady").measurements, farm.story)
        boards["steady"].set_sensor(TEMPERATURE, "68500")
        boards["steady"].set_sensor(CLOCK, "1200000")
        boards["steady"].set_sensor(COOLING, "2")
        for name in ("hot", "picky", "paused"):
            client.start("kernels", boards[name].platform, SURVEY, name)
        client.start("characterize", boards["picky"].platform, CHARACTERIZE, "doomed")
        client.start("kernels", boards["secure"].platform, SURVEY, "over TLS")
        client.start("kernels", boards["drifting"].platform, SURVEY | {"count": 60}, "drifting")
        until(lambda: client.campaign("paused").measurements, farm.story)
        boards["paused"].send(signal.SIGSTOP)
        *_, ended = client.watch(steady.campaign_id)
        assert ended.state == "done", ended.error
        # These figures are about networks of the campaign: there was no other query yet.
        for expr in PREDICTIONS:
            until(partial(farm.query, expr), farm.story)
        unheard = {
            (panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]
        }
        widths = itertools.count(8, 4)
        cooling = itertools.count(3)

        def go_on() -> bool:
            """Query another network, because rates need new data; look at panels and alerts."""
            boards["steady"].set_sensor(COOLING, str(next(cooling)))
            graph = network(next(widths))
            client.query(replace(Question.about(graph, platform), tier="survey"))
            farm.predict(graph, platform)
            for title, expr in list(unheard):
                if farm.query(expression({"expr": expr}, WINDOW)):
                    unheard.discard((title, expr))
            return not unheard and seen >= CAUSED

        until(go_on, lambda: f"no data: {unheard}; did not fire: {CAUSED - seen}; {farm.story()}")


def test_grafana_draws_each_panel(farm: MonitoredFarm, tmp_path: Path) -> None:
    reason = grafana.lacks()
    if reason:
        cannot(reason)

    def predicted() -> bool:
        """Ask for a prediction; whether Prometheus has seen enough of them to draw a line."""
        farm.predict(network(8), farm.boards["steady"].platform)
        return bool(farm.query("max(changes(latfarm_controller_predictions_total[1m])) >= 8"))

    until(predicted, farm.story)
    kept = os.environ.get("LATFARM_PICTURES")
    if kept:
        until(partial(last_label_fits, farm.begun_s), "a moment that suits pictures")
    out = Path(kept or tmp_path / "pictures")
    span = grafana.Span(farm.begun_s, time.time(), WINDOW)
    drawn = {panel.title: panel for panel in grafana.draw(farm.prometheus, out, span)}
    assert list(drawn) == [panel["title"] for panel in panels()]
    for title, panel in drawn.items():
        names = [series.name for series in panel.series]
        assert names, f"{title} shows no data"
        assert all(names), f"{title} has a series without a name"
        assert sorted(panel.legend) == sorted(names), title
        assert sum(series.points for series in panel.series) > 1, title
        assert panel.coloured >= LEAST_PIXELS, f"{title} has series, and draws none of them"
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG"), title
        assert "<path" in (out / f"{name}.svg").read_text(), title
    for title, expected in COLOURS.items():
        colours = {series.name: series.colour for series in drawn[title].series}
        assert expected.items() <= colours.items(), title
    answers = {series.name for series in drawn["Answers by platform and campaign"].series}
    for board, name in (("picky", "doomed"), ("secure", "over TLS"), ("steady", "steady")):
        assert f"{farm.boards[board].platform} {name}" in answers


def test_each_alert_clears(farm: MonitoredFarm) -> None:
    boards = farm.boards
    boards["spare"].start()
    boards["paused"].send(signal.SIGCONT)
    boards["hot"].end()
    boards["hot"].start(throttle=CALM)
    boards["drifting"].end()
    boards["drifting"].start(throttle=CALM)
    farm.authority.issue("secure", "agent", 90)
    farm.configure(prometheus_disk_free_ratio=1e-4)
    farm.remove("gone")
    with farm.client() as client:
        client.remove("doomed")
        for name in ("picky", "hot", "drifting"):
            client.cancel(name)
        boards["drifting"].wait()
        client.resume_board("drifting", "it is cool again", False)
        client.start("kernels", boards["drifting"].platform, SURVEY | {"seed": 1}, "again")
        until(lambda: not farm.firing(), lambda: f"{farm.firing()}; {farm.story()}", 120)
        until(lambda: not farm.notified(), lambda: farm.notified())


def test_an_alert_fires_while_nobody_works_on_open_requests(farm: MonitoredFarm) -> None:
    steady = farm.boards["steady"]
    idle = ("FarmIdle", "")
    with farm.client() as client:
        for campaign in client.campaigns():
            client.cancel(campaign.campaign_id)
        client.start("kernels", steady.platform, SURVEY | {"seed": 2}, "stopped")
        until(lambda: client.campaign("stopped").measurements, farm.story)
        steady.send(signal.SIGSTOP)
        until(lambda: idle in farm.firing(), lambda: f"{farm.firing()}; {farm.story()}")
        steady.send(signal.SIGCONT)
        until(lambda: idle not in farm.firing(), lambda: f"{farm.firing()}; {farm.story()}")


def test_an_alert_fires_when_the_controller_ends(farm: MonitoredFarm) -> None:
    farm.stop_serving()
    until(lambda: ("ControllerDown", "") in farm.firing(), lambda: farm.firing())
    farm.serve()
    until(lambda: ("ControllerDown", "") not in farm.firing(), lambda: farm.firing())


def test_a_board_gives_its_metrics_only_to_readers_with_a_certificate(farm: MonitoredFarm) -> None:
    assert farm.query('up{board="secure"} == 1'), "scraped over mutual TLS"
    with pytest.raises(OSError, match=r"(?i)ssl|reset|refused|closed"):
        urllib.request.urlopen(f"https://{farm.boards['secure'].target}/metrics", timeout=10)
    with urllib.request.urlopen(farm.controller_metrics.replace("metrics", "-/healthy")) as answer:
        assert answer.read() == b"healthy\n"
