"""A whole monitored farm on this host: simulated boards, controller, Prometheus, Alertmanager.

Each of them is a process that listens on loopback and ends with the `with` block. The configuration
is that of `ansible/monitoring.yml`, rendered with short times.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient
from latfarm_predictors.graph.graph import Graph
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1.controller_pb2_grpc import ControllerServiceStub

from tests.farm.lab import prometheus
from tests.farm.lab.authority import LabAuthority
from tests.farm.lab.monitored_board import MonitoredBoard, python_path
from tests.farm.lab.processes import LOOK_S, LoggedProcess, answers, get_json, until
from tests.monitoring.rendering import render
from tests.ports import free_port


class MonitoredFarm:
    """All processes of a monitored farm. `boards` holds the simulated boards by name.

    A test calls `configure`, `add` for each board, `watch` and `serve`.

    Args:
        folder: an empty folder for the files of all processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.boards: dict[str, MonitoredBoard] = {}
        self._ends = ExitStack()
        self._ports = {name: free_port() for name in ("controller", "prometheus", "alertmanager")}
        self._targets = folder / "prometheus" / "latfarm.d"
        self._targets.mkdir(parents=True)
        self.authority = LabAuthority(folder / "tls")
        self._controller: LoggedProcess | None = None
        self._prometheus: LoggedProcess | None = None
        self.begun_s = time.time()

    def __enter__(self) -> MonitoredFarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    def add(
        self, name: str, *, member: bool = True, secure_days: int = 0, **profile: object
    ) -> MonitoredBoard:
        """Start a simulated board that Prometheus scrapes.

        Args:
            name: name of the board.
            member: whether the controller knows the board, too.
            secure_days: number of days for which its certificate is valid; 0: the board serves
                without TLS.
            profile: changes of `monitored_board.PROFILE`.
        """
        folder = self.folder / name
        folder.mkdir()
        tls: tuple[str, ...] = ()
        if secure_days:
            own = self.authority.issue(name, "agent", secure_days)
            files = ("--tls-cert", own.cert, "--tls-key", own.key, "--tls-ca", own.ca)
            tls = tuple(map(str, files))
        board = self.boards[name] = MonitoredBoard(folder, name, tls, **profile)
        self._ends.callback(board.end)
        board.start()
        labels = {"board": name, "type": "simulated"}
        if not secure_days:
            labels["__scheme__"] = "http"  # on loopback
        if member:
            shown = self.authority.issue("controller", "controller", 30) if secure_days else None
            Registry(self.home / "boards.json").add(name, board.address, shown)
        group = [{"targets": [board.target], "labels": labels}]
        (self._targets / f"{name}.json").write_text(json.dumps(group))
        return board

    def add_unreachable(self, name: str) -> None:
        """Add a board to the controller's inventory at an address where nothing listens."""
        Registry(self.home / "boards.json").add(name, f"127.0.0.1:{free_port()}")

    def remove(self, name: str) -> None:
        """Remove a board from the controller's inventory."""
        Registry(self.home / "boards.json").remove(name)

    def serve(self) -> None:
        """Start `latfarm serve`, and wait until it answers."""
        words = [sys.executable, "-m", "tests.farm.lab.inline_controller", "serve"]
        words += ["--metrics-port", str(self._ports["controller"])]
        env = {
            "PYTHONPATH": python_path(),
            "LATFARM_HOME": str(self.home),
            "LATFARM_LOCAL_AGENT": "false",
            "LATFARM_HEALTH_CHECKS": "false",  # faulty boards would get no work
            "OMP_NUM_THREADS": "1",
        }
        log = self.folder / "controller.log"
        log.write_text("")
        self._controller = LoggedProcess(words, log, env)
        self._ends.callback(self._controller.end)
        self._controller.find(r"latfarm answers (\S+)")

    def stop_serving(self) -> None:
        """End `latfarm serve`."""
        assert self._controller is not None
        self._controller.end()

    @contextmanager
    def client(self) -> Iterator[ControllerClient]:
        """A client that is connected to the controller."""
        assert self._controller is not None
        address = self._controller.find(r"serves on (unix:\S+);")
        with grpc.insecure_channel(address) as channel:
            yield ControllerClient(channel)

    @property
    def controller_metrics(self) -> str:
        """URL of the controller's metrics."""
        return f"http://127.0.0.1:{self._ports['controller']}/metrics"

    @property
    def prometheus(self) -> str:
        """URL of Prometheus."""
        return f"http://127.0.0.1:{self._ports['prometheus']}"

    def configure(self, reader_days: int = 30, **values: object) -> None:
        """Write the files of Prometheus; if it runs, it reads them again.

        Args:
            reader_days: number of days for which the certificate is valid that it shows to boards.
            values: values of the role's variables, in addition to `prometheus.SHORT`.
        """
        folder = self.folder / "prometheus"
        own = self.authority.issue("prometheus", "viewer", reader_days)
        for name, path in (("ca.crt", own.ca), ("prometheus.crt", own.cert)):
            shutil.copy(path, folder / name)
        shutil.copy(own.key, folder / "prometheus.key")
        told = {
            **prometheus.SHORT,
            "prometheus_tls_folder": str(folder),
            "prometheus_boards_folder": str(self._targets),
            "prometheus_controller_target": f"127.0.0.1:{self._ports['controller']}",
            "prometheus_alertmanager_target": f"127.0.0.1:{self._ports['alertmanager']}",
            **values,
        }
        for source, target in (
            ("rules.yml.j2", "latfarm.rules.yml"),
            ("alerts.yml.j2", "latfarm.alerts.yml"),
            ("prometheus.yml.j2", "prometheus.yml"),
        ):
            (folder / target).write_text(render(source, told))
        if self._prometheus is not None:
            self._prometheus.send(signal.SIGHUP)

    def watch(self) -> None:
        """Start Alertmanager and Prometheus, and wait until both answer."""
        folder = self.folder / "prometheus"
        text = render("alertmanager.yml.j2")
        text = text.replace("group_wait: 30s", "group_wait: 1s")
        (folder / "alertmanager.yml").write_text(text)
        alertmanager = LoggedProcess(
            [
                *("prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml"),
                *(f"--storage.path={folder}/alerts", "--cluster.listen-address="),
                f"--web.listen-address=127.0.0.1:{self._ports['alertmanager']}",
            ],
            self.folder / "alertmanager.log",
            {},
        )
        self._ends.callback(alertmanager.end)
        log = self.folder / "prometheus.log"
        self._prometheus = prometheus.start(folder, self._ports["prometheus"], log)
        self._ends.callback(self._prometheus.end)
        for name in ("prometheus", "alertmanager"):
            ready = f"http://127.0.0.1:{self._ports[name]}/-/ready"
            until(partial(answers, ready), ready)

    def predict(self, graph: Graph, platform: str) -> None:
        """Let the controller predict a network, as a client of its API does.

        The command line would predict in its own process.
        """
        assert self._controller is not None
        address = self._controller.find(r"serves on (unix:\S+);")
        request = pb.PredictRequest(graph_json=graph.dumps().encode(), platform=platform)
        with grpc.insecure_channel(address) as channel:
            assert ControllerServiceStub(channel).Predict(request).answer_json

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series that an expression gives now, without those that hold no number."""
        found = get_json(f"{self.prometheus}/api/v1/query", query=expr)["data"]["result"]
        return [series for series in found if series["value"][1] != "NaN"]

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire in Prometheus: the alert's name, and its board or platform."""
        alerts = get_json(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return {_who(alert["labels"]) for alert in alerts if alert["state"] == "firing"}

    @contextmanager
    def remembering(self) -> Iterator[set[tuple[str, str]]]:
        """Collect alerts in the background until the `with` block ends.

        Yields a set that grows: alerts that have fired in Prometheus and have reached Alertmanager,
        including those that have cleared since then.
        """
        seen: set[tuple[str, str]] = set()
        ended = threading.Event()

        def look() -> None:
            notified: set[tuple[str, str]] = set()
            fired: set[tuple[str, str]] = set()
            while not ended.wait(LOOK_S):
                with suppress(OSError):
                    fired |= self.firing()
                    notified |= self.notified()
                seen.update(fired & notified)

        thread = threading.Thread(target=look, name="alerts")
        thread.start()
        try:
            yield seen
        finally:
            ended.set()
            thread.join()

    def story(self) -> str:
        """The last lines of all logs, for the message of a test that fails."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*/log")]
        return "\n".join(f"{log}:\n{log.read_text()[-1500:]}" for log in sorted(logs))

    def notified(self) -> set[tuple[str, str]]:
        """Alerts that Alertmanager holds now: the alert's name, and its board or platform."""
        url = f"http://127.0.0.1:{self._ports['alertmanager']}/api/v2/alerts"
        return {_who(alert["labels"]) for alert in get_json(url)}


def _who(labels: Mapping[str, str]) -> tuple[str, str]:
    name = labels["alertname"].removeprefix("Latfarm")
    return name, labels.get("board") or labels.get("platform", "")
