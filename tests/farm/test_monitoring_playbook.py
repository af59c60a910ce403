"""ansible/monitoring.yml sets up a monitoring machine, and Prometheus scrapes an enrolled board.

Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from latfarm_controller.access_groups import ROOT

from tests.farm.boards import debs
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab import enrolment
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.monitored_board import PROFILE
from tests.farm.lab.processes import until
from tests.monitoring.rendering import DASHBOARD

pytestmark = [pytest.mark.farm, pytest.mark.timeout(600)]

PROFILE_FILE = "/srv/board.json"
TARGETS = "/etc/prometheus/latfarm.d"
GRAFANA = "/etc/grafana/provisioning"
TRANSIENT = (
    *("/var/log", "/var/cache", "/var/lib/systemd", "/var/lib/apt", "/var/tmp", "/run", "/tmp"),
    *("/proc", "/sys", "/dev", "/root/.ansible", "/srv"),
)
"""Folders in which a machine and its apt write files of their own."""

GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).read().decode())"
STAND_IN = {
    "DEBIAN/control": (
        "Package: grafana\nVersion: 0.1\nArchitecture: all\nMaintainer: latfarm\n"
        "Description: accounts, folders and unit of a Grafana, without the program\n",
        0o644,
    ),
    "DEBIAN/postinst": (
        "#!/bin/sh\nset -e\n"
        "getent group grafana >/dev/null || groupadd --system grafana\n"
        "getent passwd grafana >/dev/null || useradd --system --gid grafana grafana\n",
        0o755,
    ),
    "etc/grafana/provisioning/datasources/.keep": ("", 0o644),
    "etc/grafana/provisioning/dashboards/.keep": ("", 0o644),
    "lib/systemd/system/grafana-server.service": (
        "[Service]\nUser=grafana\nExecStart=/bin/sleep infinity\n"
        "[Install]\nWantedBy=multi-user.target\n",
        0o644,
    ),
}


@dataclass(frozen=True)
class MonitoringLab:
    """The monitoring machine, a board, their controller, and the machine's files at first."""

    watch: VirtualBoard
    board: VirtualBoard
    controller: LabController
    before: set[str]


def play(lab: MonitoringLab, name: str, *words: str, **variables: Any) -> enrolment.PlaybookResult:
    played = lab.controller.play(
        name,
        *words,
        latfarm_monitoring_host=lab.watch.name,
        latfarm_file_sd_dir=TARGETS,
        prometheus_scrape_interval="1s",
        prometheus_rate_window="10s",
        prometheus_for_down="1s",
        **variables,
    )
    assert played.well, played.out
    return played


def ask(lab: MonitoringLab, path: str, port: int = 9090) -> Any:
    """The answer of a server on the monitoring machine: JSON, or text if it is not JSON."""
    done = lab.watch.run(["python3", "-c", GET, f"http://127.0.0.1:{port}{path}"], check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return done.stdout


def value(lab: MonitoringLab, expression: str) -> float | None:
    """The first value of an expression in Prometheus; None if there is no series.

    The expression must contain no blank.
    """
    found = ask(lab, f"/api/v1/query?query={expression}")
    series = found["data"]["result"] if isinstance(found, dict) else []
    return float(series[0]["value"][1]) if series else None


def firing(lab: MonitoringLab) -> set[str]:
    """Names of the alerts that Alertmanager holds."""
    found = ask(lab, "/api/v2/alerts", 9093)
    return {alert["labels"]["alertname"] for alert in found} if isinstance(found, list) else set()


@pytest.fixture(scope="module")
def lab(make_controller: MakeController, make_boards: MakeBoards) -> MonitoringLab:
    """A Debian machine without monitoring, and a simulated board."""
    watch, board = make_boards("watch", "nuc-0")
    debs.offer(watch, debs.MONITORING)
    board.write(PROFILE_FILE, json.dumps({"platform": "sim1.0-fp32-1t", **PROFILE}))
    controller = make_controller(
        [board],
        latfarm_runtimes=[],
        latfarm_work_options=["--simulate", PROFILE_FILE],
        latfarm_compile=False,
    )
    controller.stock([board], beside=[watch])
    return MonitoringLab(watch, board, controller, enrolment.files(watch, TRANSIENT))


def test_a_preview_on_a_bare_machine_changes_nothing(lab: MonitoringLab) -> None:
    played = play(lab, "monitoring.yml", "--check")
    assert "Prometheus is not installed on this machine" in played.out
    assert "Alertmanager is not installed on this machine" in played.out
    assert enrolment.files(lab.watch, TRANSIENT) == lab.before


def test_one_run_sets_up_monitoring(lab: MonitoringLab) -> None:
    played = play(lab, "monitoring.yml")
    assert played.changed["watch"] > 0
    assert "There is no Grafana on this machine" in played.out
    assert lab.watch.failed_units() == []
    assert until(lambda: "Ready" in ask(lab, "/-/ready"), "Prometheus")
    assert until(lambda: ask(lab, "/-/ready", 9093).strip() == "OK", "Alertmanager")
    until(lambda: ask(lab, "/api/v1/rules")["data"]["groups"], "no rules")
    groups = ask(lab, "/api/v1/rules")["data"]["groups"]
    assert {group["name"] for group in groups} == {"latfarm-recordings", "latfarm-alerts"}
    # Prometheus looks for Alertmanagers every few seconds.
    (known,) = until(
        lambda: ask(lab, "/api/v1/alertmanagers")["data"]["activeAlertmanagers"],
        "no Alertmanager is known to Prometheus",
    )
    assert known["url"] == "http://127.0.0.1:9093/api/v2/alerts"
    # The authority's key is only on the controller, and only Prometheus can read its own key.
    key = lab.watch.run("stat -c '%U:%G %a' /etc/prometheus/latfarm-tls/prometheus.key").stdout
    assert key == "root:prometheus 640\n"
    assert lab.watch.run("find / -xdev -name ca.key").stdout == ""


def test_prometheus_scrapes_the_board_that_is_enrolled(lab: MonitoringLab) -> None:
    play(lab, "enroll.yml")
    (target,) = json.loads(lab.watch.run(f"cat {TARGETS}/nuc-0.json").stdout)
    assert target["targets"] == [f"{lab.board.address}:9101"]
    up = 'up{board="nuc-0",type="linux-cpu"}'
    until(lambda: value(lab, up) == 1, lambda: ask(lab, "/api/v1/targets"))
    assert until(lambda: value(lab, 'latfarm_agent_build_info{board="nuc-0"}') == 1, "metrics")
    # The recording rules work, too: this one is about the board's certificate.
    remains = 'latfarm:certificate_remaining:seconds{board="nuc-0",certificate="agent"}'
    until(lambda: (value(lab, remains) or 0) > 300 * 86400, lambda: ask(lab, "/api/v1/rules"))


def test_an_alert_fires_while_a_board_is_down(lab: MonitoringLab) -> None:
    lab.board.run("systemctl stop latfarm-agent")
    until(lambda: "LatfarmBoardDown" in firing(lab), lambda: ask(lab, "/api/v1/alerts"))
    lab.board.run("systemctl start latfarm-agent")
    until(lambda: value(lab, 'up{board="nuc-0"}') == 1, lambda: ask(lab, "/api/v1/targets"))
    until(
        lambda: value(lab, 'ALERTS{alertname="LatfarmBoardDown"}') is None,
        lambda: ask(lab, "/api/v1/alerts"),
    )


def test_another_authority_takes_over_without_a_failed_scrape(lab: MonitoringLab) -> None:
    begun = lab.watch.run("date +%s").stdout.strip()
    read = "cat /etc/latfarm/tls/ca.crt"
    pid = lab.board.run("systemctl show --property=MainPID --value latfarm-agent").stdout
    old = lab.board.run(read).stdout
    play(lab, "rotate-certs.yml", latfarm_authority="replace")
    both = lab.board.run(read).stdout
    assert old in both
    assert both.count("BEGIN CERTIFICATE") == 2
    until(lambda: value(lab, 'up{board="nuc-0"}') == 1, lambda: ask(lab, "/api/v1/targets"))
    play(lab, "rotate-certs.yml", latfarm_authority="drop")
    new = lab.board.run(read).stdout
    assert both == new + old
    assert lab.watch.run("cat /etc/prometheus/latfarm-tls/ca.crt").stdout == new
    assert lab.board.run("systemctl show --property=MainPID --value latfarm-agent").stdout == pid
    assert lab.controller.latfarm("certs", "authority", "show", "--json")["step"] == "single"
    assert lab.controller.latfarm("boards", "check", "nuc-0", "--json")["well"]
    # A new connection shows that the new certificates work; older connections may still be open.
    lab.watch.run("systemctl restart prometheus")
    until(lambda: value(lab, 'up{board="nuc-0"}') == 1, lambda: ask(lab, "/api/v1/targets"))
    seconds = int(lab.watch.run("date +%s").stdout) - int(begun)
    assert value(lab, f'min_over_time(up{{board="nuc-0"}}[{seconds}s])') == 1


def test_time_servers_and_rules_for_devices_are_set(lab: MonitoringLab) -> None:
    """The services of chrony and udev do not start in a container, so their programs are run."""
    install = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y"
    debs.offer(lab.board, debs.DEVICES)
    lab.board.run(f"{install} {' '.join(debs.DEVICES)}")
    lab.watch.run(f"{install} chrony")
    words = ("upgrade.yml",)
    wanted: dict[str, Any] = {
        "latfarm_ntp_servers": [lab.watch.address],
        "latfarm_udev": ['KERNEL=="full"'],
    }
    played = play(lab, *words, **wanted)
    assert "udev does not run (inactive). The rules apply from its next start." in played.out
    assert "the clock is not synchronised: no server has answered yet" in played.out
    assert play(lab, *words, **wanted).changed == {"nuc-0": 0}

    # udev reads the rule and gives the device to the group.
    lab.board.run("udevadm test /sys/devices/virtual/mem/full")
    assert lab.board.run("stat -c '%U:%G %a' /dev/full").stdout == "root:latfarm-devices 660\n"
    # chrony reads the file and asks the farm's server; -Q does not set the clock.
    lab.watch.run("chronyd -x 'local stratum 8' 'allow' 'cmdport 0' 'port 123'")
    asked = lab.board.run("chronyd -Q -t 60 'confdir /etc/chrony/conf.d' 2>&1").stdout
    assert re.search(r"System clock wrong by -?0\.0\d+ seconds \(ignored\)", asked), asked
    lab.watch.run("pkill --exact chronyd")


def test_grafana_finds_data_source_and_dashboard(lab: MonitoringLab, tmp_path: Path) -> None:
    """A package with Grafana's account, folders and unit stands for Grafana; it has no program."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("this host has no dpkg-deb")
    tree = tmp_path / "grafana"
    for name, (text, mode) in STAND_IN.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
        (tree / name).chmod(mode)
    package = tmp_path / "grafana.deb"
    build = ("dpkg-deb", "--build", "--root-owner-group", str(tree), str(package))
    subprocess.run(build, check=True, capture_output=True)
    played = play(lab, "monitoring.yml", "--tags", "grafana", grafana_package=str(package))
    assert played.changed["watch"] > 0

    read = "setpriv --reuid grafana --regid grafana --clear-groups cat"
    (source,) = yaml.safe_load(lab.watch.run(f"{read} {GRAFANA}/datasources/latfarm.yml").stdout)[
        "datasources"
    ]
    (provider,) = yaml.safe_load(lab.watch.run(f"{read} {GRAFANA}/dashboards/latfarm.yml").stdout)[
        "providers"
    ]
    assert ask(lab, "/-/ready") != ""
    assert (source["type"], source["url"]) == ("prometheus", "http://127.0.0.1:9090")
    shown = lab.watch.run(f"{read} {provider['options']['path']}/latfarm.json").stdout
    assert shown == DASHBOARD.read_text()
    assert set(re.findall(r'"uid": "(\w+)"', shown)) >= {source["uid"]}
    assert lab.watch.run("systemctl is-active grafana-server").stdout == "active\n"
    # A second run of the whole playbook changes nothing, and a preview says so.
    for more in ((), ("--check",)):
        again = play(lab, "monitoring.yml", *more, grafana_package=str(package))
        assert again.changed == {"watch": 0}


def test_a_preview_of_a_departure_changes_nothing(lab: MonitoringLab) -> None:
    before, revoked = enrolment.files(lab.board, TRANSIENT), lab.controller.revoked
    played = play(lab, "unenroll.yml", "--check")
    assert played.changed["nuc-0"] > 0
    assert enrolment.files(lab.board, TRANSIENT) == before
    assert set(lab.controller.boards) == {"nuc-0"}
    assert lab.controller.revoked == revoked
    assert lab.controller.latfarm("boards", "check", "nuc-0", "--json")["well"]
    assert value(lab, 'up{board="nuc-0"}') == 1


def decisions(lab: MonitoringLab) -> list[tuple[str, str]]:
    """Decisions about the board and their reasons, the newest first."""
    events = lab.controller.latfarm("boards", "events", "nuc-0", "--json")
    told = [(event["event"], event["reason"]) for event in events]
    return [(event, reason) for event, reason in told if event != "id_pinned"]


def test_prometheus_forgets_a_board_that_leaves(lab: MonitoringLab) -> None:
    play(lab, "unenroll.yml", latfarm_unenroll="all")
    assert lab.watch.run(f"ls {TARGETS}").stdout == ""
    until(lambda: targets(lab) == ["latfarm-controller"], lambda: targets(lab))


def targets(lab: MonitoringLab) -> list[str]:
    """Names of the jobs of all scraped targets."""
    found = ask(lab, "/api/v1/targets?state=active")["data"]["activeTargets"]
    return [each["labels"]["job"] for each in found]


def test_a_board_that_comes_back_works_again_unless_somebody_drained_it(lab: MonitoringLab) -> None:
    assert decisions(lab)[0] == ("drained", "unenrolled")
    play(lab, "enroll.yml")
    assert decisions(lab)[0] == ("resumed", "enrolled again")
    lab.controller.latfarm("boards", "drain", "nuc-0", "--reason", "new fan", "--json")
    held = play(lab, "enroll.yml", "--tags", "standing")
    assert held.changed == {"nuc-0": 0}
    told = " ".join(held.out.split())
    assert f"nuc-0 gets no work: drained by {ROOT}: new fan." in told
    assert "Let it work again with: latfarm boards resume nuc-0" in told
