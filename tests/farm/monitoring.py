"""A whole monitored farm of own processes: boards, controller, Prometheus, Alertmanager.

All of it listens on loopback, and ends with the `with` block. The configuration is that of
`ansible/monitoring.yml`, rendered with short times.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.client import ControllerClient

from tests.monitoring.rendering import ANSIBLE, DASHBOARD, render
from tests.ports import free_port

PROGRAMS = ("prometheus", "promtool", "prometheus-alertmanager", "openssl")
GIVE_UP_S = 90.0
LOOK_S = 0.2
SHORT: Mapping[str, object] = {
    "prometheus_scrape_interval": "1s",
    "prometheus_rate_window": "10s",
    "prometheus_accuracy_window": "60s",
    "prometheus_queue_age_seconds": 4,
    "prometheus_rules_folder": ".",
    **{
        f"prometheus_for_{name}": "1s"
        for name in ("down", "throttling", "drift", "queue", "errors", "certificate", "disk")
    },
    "prometheus_for_quarantine": "0s",
}
"""What the tests change of the role's defaults; thresholds but the queue's stay."""


def lacks() -> str:
    """Why nothing can be monitored here; empty: it can."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    names = ", ".join(missing)
    return f"missing: {names} (apt-get install prometheus prometheus-alertmanager)" if names else ""


def until(
    condition: Callable[[], Any], what: Callable[[], object] | str, give_up_s: float = GIVE_UP_S
) -> Any:
    """Ask again and again until it holds; gives the answer."""
    deadline_s = time.monotonic() + give_up_s
    while not (answer := condition()):
        told = what() if callable(what) else what
        assert time.monotonic() < deadline_s, f"waited in vain: {told}"
        time.sleep(LOOK_S)
    return answer


def get(url: str, **parameters: str) -> Any:
    """JSON from a URL of ours."""
    query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
    with urllib.request.urlopen(url + query, timeout=30) as answer:
        return json.loads(answer.read())


class Process:
    """A process of ours in a session of its own; what it writes goes to a file."""

    def __init__(self, words: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **env},
                start_new_session=True,
                cwd=log.parent,
            )

    def send(self, number: signal.Signals) -> None:
        """To the process and all that it started in its session."""
        os.killpg(self._process.pid, number)

    def find(self, pattern: str) -> str:
        """The first group of a pattern, once it is in what the process wrote."""

        def found() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text()[-3000:]
            return re.search(pattern, self.log.read_text())

        return str(until(found, f"{pattern} in {self.log}")[1])

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait for that; a second time is no change."""
        if self._process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(number)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait()


class Board:
    """A simulated board with sensors, and its agent."""

    def __init__(self, folder: Path, name: str, tls: Sequence[str] = (), **profile: object) -> None:
        self.name = name
        self.root = folder / "root"
        self._folder = folder
        self._tls = tls
        self._ports = (free_port(), free_port())
        self.profile = {"platform": f"{name}-sim1.0-fp32-1t", **PROFILE, **profile}
        self.process: Process | None = None
        for path, text in SENSORS.items():
            self.sense(path, text)

    @property
    def platform(self) -> str:
        """The one that it offers."""
        return str(self.profile["platform"])

    @property
    def address(self) -> str:
        """Of its agent."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def target(self) -> str:
        """What Prometheus scrapes."""
        return f"127.0.0.1:{self._ports[1]}"

    def sense(self, path: str, text: str) -> None:
        """Have a sensor read this."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}")
        part.write_text(f"{text}\n")
        part.replace(place)

    def start(self, **changes: object) -> None:
        """Run the agent, with these changes of the board's profile."""
        self.profile.update(changes)
        profile = self._folder / "profile.json"
        profile.write_text(json.dumps(self.profile))
        words = [sys.executable, "-m", "tests.farm.monitored_agent", self.root, "serve"]
        words += ["--name", self.name, "--simulate", profile, "--listen", self.address]
        words += ["--state-dir", self._folder / "state", "--metrics-port", self._ports[1]]
        words += [*self._tls]
        log = self._folder / "log"
        log.write_text("")
        path = [str(ANSIBLE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {"PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}
        self.process = Process([str(word) for word in words], log, env)

    def wait(self) -> None:
        """Until it serves."""
        assert self.process is not None
        self.process.find(r"(serves on) ")

    def send(self, number: signal.Signals) -> None:
        """A signal to the agent and all that it started."""
        assert self.process is not None
        self.process.send(number)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the agent."""
        if self.process is not None:
            self.process.end(number)


PROFILE: Mapping[str, object] = {
    "peak_macs_per_ms": 2e6,
    "vector_ops_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 4e6,
    "overhead_ms": 0.01,
    "call_overhead_ms": 0.02,
    "noise": 0.01,
    "fused_pairs": [["Conv", "Relu"], ["Conv", "BatchNormalization"]],
}
TEMPERATURE = "sys/class/thermal/thermal_zone0/temp"
CLOCK = "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
COOLING = "sys/class/thermal/cooling_device0/cur_state"
SENSORS = {
    TEMPERATURE: "41000",
    CLOCK: "1700000",
    "sys/class/thermal/cooling_device0/type": "Processor",
    COOLING: "0",
}


class Authority:
    """A farm's authority and what it signs, as enrolment would."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.cert = folder / "ca.crt"
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        made = ("-keyout", folder / "ca.key", "-out", self.cert, "-days", "3650")
        _openssl(*new, *made, "-subj", "/CN=farm")

    def issue(self, name: str, role: str, days: int) -> tuple[Path, Path]:
        """A certificate and its key; a second time for one name replaces the first."""
        stem = self._folder / name
        key, ask, cert, ext = (stem.with_suffix(end) for end in (".key", ".csr", ".crt", ".ext"))
        if not key.exists():
            curve = ("-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}")
            _openssl("req", "-newkey", "ec", *curve, "-keyout", key, "-out", ask)
        ext.write_text(f"subjectAltName=DNS:{name},IP:127.0.0.1,URI:urn:latfarm:role:{role}\n")
        signer = ("-CA", self.cert, "-CAkey", self._folder / "ca.key", "-CAcreateserial")
        part = cert.with_suffix(".part")
        _openssl(
            *("x509", "-req", "-in", ask, *signer, "-out", part, "-days", str(days)),
            *("-extfile", ext),
        )
        part.replace(cert)
        return cert, key


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


@contextmanager
def scraping(folder: Path, targets: Path) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Prometheus over the boards that enrolment entered; gives what an expression tells.

    Args:
        folder: with `ca.crt` and a viewer's `prometheus.crt` and `prometheus.key`.
        targets: where enrolment writes a file for each board.
    """
    port = free_port()
    values = {
        **SHORT,
        "prometheus_tls_folder": str(folder),
        "prometheus_boards_folder": str(targets),
        "prometheus_controller_target": "",
    }
    (folder / "prometheus.yml").write_text(render("prometheus.yml.j2", values))
    words = (
        *("prometheus", f"--config.file={folder}/prometheus.yml", "--log.level=warn"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
    )
    process = Process(words, folder / "prometheus.log", {})
    url = f"http://127.0.0.1:{port}"
    try:
        until(partial(_answers, f"{url}/-/ready"), url)
        yield lambda expr: list(get(f"{url}/api/v1/query", query=expr)["data"]["result"])
    finally:
        process.end()


class MonitoredFarm:
    """All of it. `boards` by name; start them with `add`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self.boards: dict[str, Board] = {}
        self._ends = ExitStack()
        self._ports = {name: free_port() for name in ("controller", "prometheus", "alertmanager")}
        self._targets = folder / "prometheus" / "latfarm.d"
        self._targets.mkdir(parents=True)
        self.authority = Authority(folder / "tls")
        self._controller: Process | None = None
        self._prometheus: Process | None = None

    def __enter__(self) -> MonitoredFarm:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ends.close()

    # Boards and controller

    def add(
        self, name: str, *, member: bool = True, secure_days: int = 0, **profile: object
    ) -> Board:
        """A board that Prometheus knows, and as a member the controller too; it starts.

        With `secure_days` it has a certificate that is good for so long.
        """
        folder = self.folder / name
        folder.mkdir()
        tls: tuple[str, ...] = ()
        if secure_days:
            cert, key = self.authority.issue(name, "agent", secure_days)
            files = (cert, "--tls-key", key, "--tls-ca", self.authority.cert)
            tls = ("--tls-cert", *map(str, files))
        board = self.boards[name] = Board(folder, name, tls, **profile)
        self._ends.callback(board.end)
        board.start()
        labels = {"board": name, "type": "simulated"}
        if not secure_days:
            labels["__scheme__"] = "http"  # on loopback
        if member:
            Registry(self.home / "boards.json").add(name, board.address)
        group = [{"targets": [board.target], "labels": labels}]
        (self._targets / f"{name}.json").write_text(json.dumps(group))
        return board

    def serve(self) -> None:
        """Run `latfarm serve`; returns once it answers."""
        words = [sys.executable, "-m", "latfarm_controller.cli.main", "serve"]
        words += ["--metrics-port", str(self._ports["controller"])]
        env = {
            "LATFARM_HOME": str(self.home),
            "LATFARM_LOCAL_AGENT": "false",
            "LATFARM_RAY_CPUS": "1",
            "OMP_NUM_THREADS": "1",
        }
        log = self.folder / "controller.log"
        log.write_text("")
        self._controller = Process(words, log, env)
        self._ends.callback(self._controller.end)
        self._controller.find(r"latfarm answers (\S+)")

    def stop_serving(self) -> None:
        """End `latfarm serve`."""
        assert self._controller is not None
        self._controller.end()

    @contextmanager
    def client(self) -> Iterator[ControllerClient]:
        """A client of the controller."""
        assert self._controller is not None
        address = self._controller.find(r"serves on (unix:\S+);")
        with grpc.insecure_channel(address) as channel:
            yield ControllerClient(channel)

    # Prometheus

    @property
    def controller_metrics(self) -> str:
        """Where the controller's metrics are."""
        return f"http://127.0.0.1:{self._ports['controller']}/metrics"

    @property
    def prometheus(self) -> str:
        """Prometheus' address."""
        return f"http://127.0.0.1:{self._ports['prometheus']}"

    def configure(self, **values: object) -> None:
        """Write Prometheus' files with these values beside `SHORT`; a running one reads them."""
        folder = self.folder / "prometheus"
        cert, key = self.authority.issue("prometheus", "viewer", 30)
        for name, path in (("ca.crt", self.authority.cert), ("prometheus.crt", cert)):
            shutil.copy(path, folder / name)
        shutil.copy(key, folder / "prometheus.key")
        told = {
            **SHORT,
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
        """Run Alertmanager and Prometheus; returns once both answer."""
        folder = self.folder / "prometheus"
        text = render("alertmanager.yml.j2")
        text = text.replace("group_wait: 30s", "group_wait: 1s")
        (folder / "alertmanager.yml").write_text(text)
        alertmanager = Process(
            [
                *("prometheus-alertmanager", f"--config.file={folder}/alertmanager.yml"),
                *(f"--storage.path={folder}/alerts", "--cluster.listen-address="),
                f"--web.listen-address=127.0.0.1:{self._ports['alertmanager']}",
            ],
            self.folder / "alertmanager.log",
            {},
        )
        self._ends.callback(alertmanager.end)
        self._prometheus = Process(
            [
                *("prometheus", f"--config.file={folder}/prometheus.yml"),
                *(f"--storage.tsdb.path={folder}/data", "--log.level=warn"),
                f"--web.listen-address=127.0.0.1:{self._ports['prometheus']}",
            ],
            self.folder / "prometheus.log",
            {},
        )
        self._ends.callback(self._prometheus.end)
        for name in ("prometheus", "alertmanager"):
            ready = f"http://127.0.0.1:{self._ports[name]}/-/ready"
            until(partial(_answers, ready), ready)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """What an expression gives now, series without a number left out."""
        found = get(f"{self.prometheus}/api/v1/query", query=expr)["data"]["result"]
        return [series for series in found if series["value"][1] != "NaN"]

    def firing(self) -> set[tuple[str, str]]:
        """Alerts that fire by Prometheus: name, and board or platform."""
        alerts = get(f"{self.prometheus}/api/v1/alerts")["data"]["alerts"]
        return {_who(alert["labels"]) for alert in alerts if alert["state"] == "firing"}

    @contextmanager
    def remembering(self) -> Iterator[set[tuple[str, str]]]:
        """Alerts that fire by Prometheus and reach Alertmanager, also such as clear again."""
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
        """The ends of all logs, for a test that fails."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*/log")]
        return "\n".join(f"{log}:\n{log.read_text()[-1500:]}" for log in sorted(logs))

    def notified(self) -> set[tuple[str, str]]:
        """Alerts that Alertmanager holds."""
        url = f"http://127.0.0.1:{self._ports['alertmanager']}/api/v2/alerts"
        return {_who(alert["labels"]) for alert in get(url)}


def _who(labels: Mapping[str, str]) -> tuple[str, str]:
    name = labels["alertname"].removeprefix("Latfarm")
    return name, labels.get("board") or labels.get("platform", "")


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def panels(dashboard: Path = DASHBOARD) -> list[dict[str, Any]]:
    """The dashboard's plots."""
    found = json.loads(dashboard.read_text())["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def expression(target: Mapping[str, Any], window: str) -> str:
    """A panel's expression as Grafana would send it, with everything chosen."""
    expr = str(target["expr"]).replace("$platform", ".*").replace("$board", ".*")
    return expr.replace("$__rate_interval", window)
