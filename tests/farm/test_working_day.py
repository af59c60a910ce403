"""Runs every playbook once, and measures once, on one board: the part of the tests for the gate.

One machine monitors. One board is enrolled, measures on ONNX Runtime, gets new certificates and a
new release, and leaves. Other files test each step in depth.
Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller import builders
from latfarm_predictors.graph.builder import GraphBuilder

from tests.farm.boards import debs
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController
from tests.farm.lab import enrolment
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.processes import until

pytestmark = [pytest.mark.farm, pytest.mark.gate, pytest.mark.timeout(600)]

TARGETS = "/etc/prometheus/latfarm.d"
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).read().decode())"
KEPT_BY_THE_BOARD = (
    *("/var/log", "/var/cache", "/var/lib/systemd", "/var/tmp", "/run", "/tmp", "/proc", "/sys"),
    *("/dev", "/root/.ansible"),
)
"""Folders in which a board keeps files of its own, whether it belongs to a farm or not."""


@dataclass(frozen=True)
class WorkingDayLab:
    """The monitoring machine, the board and its first files, the controller, and our wheels."""

    watch: VirtualBoard
    board: VirtualBoard
    controller: LabController
    own_wheels_dir: Path
    files_before: set[str]


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController, make_boards: MakeBoards, own_wheels: list[Path]
) -> WorkingDayLab:
    watch, board = make_boards("watch", "nuc-0")
    debs.offer(watch, debs.MONITORING)
    controller = make_controller([board], latfarm_compile=False)
    controller.stock([board], beside=[watch])
    before = enrolment.files(board, KEPT_BY_THE_BOARD)
    return WorkingDayLab(watch, board, controller, own_wheels[0].parent, before)


def play(lab: WorkingDayLab, name: str, *words: str, **variables: Any) -> enrolment.PlaybookResult:
    """Run a playbook with short times for Prometheus; it must succeed."""
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


def is_well(lab: WorkingDayLab) -> bool:
    """Whether `latfarm boards check` finds nothing wrong with the board."""
    return bool(lab.controller.latfarm("boards", "check", lab.board.name, "--json")["well"])


def scraped(lab: WorkingDayLab) -> bool:
    """Whether the last scrape of the board by Prometheus succeeded."""
    url = "http://127.0.0.1:9090/api/v1/query?query=up%7Bboard=%22nuc-0%22%7D"
    answer = lab.watch.run(["python3", "-c", GET, url], check=False).stdout
    series = json.loads(answer)["data"]["result"] if answer else []
    return bool(series) and series[0]["value"][1] == "1"


def test_monitoring(lab: WorkingDayLab) -> None:
    play(lab, "monitoring.yml")
    assert lab.watch.failed_units() == []


def test_enroll(lab: WorkingDayLab) -> None:
    play(lab, "enroll.yml")
    assert lab.board.failed_units() == []
    assert is_well(lab)
    until(lambda: scraped(lab), "Prometheus reaches the board")


def test_check(lab: WorkingDayLab) -> None:
    played = play(lab, "check.yml")
    assert played.changed == {"nuc-0": 0}


def test_a_query_measures_once_and_then_reads_the_store(lab: WorkingDayLab, tmp_path: Path) -> None:
    b = GraphBuilder("net")
    graph = b.build([b.relu(b.conv(b.input((1, 3, 16, 16)), 8, 3))])
    model = tmp_path / "net.onnx"
    model.write_bytes(builders.build(graph, "onnx", "fp32"))
    latfarm = lab.controller.latfarm
    found = latfarm("boards", "check", lab.board.name, "--json")["platforms"]
    (platform,) = (name for name in found if name.endswith("-fp32-1t"))
    assert "onnxruntime" in platform
    first = latfarm("query", str(model), "--platform", platform, "--survey", "--json")
    again = latfarm("query", str(model), "--platform", platform, "--json")
    assert (first["hit"], again["hit"]) == (False, True)
    assert first["latency_ms"] == again["latency_ms"] > 0
    (result,) = latfarm("results", "--limit", "0", "--json")
    assert result["outcome"] == "ok"


def test_rotate_certs(lab: WorkingDayLab) -> None:
    read = "cat /etc/latfarm/tls/agent.crt"
    before = lab.board.run(read).stdout
    play(lab, "rotate-certs.yml")
    assert lab.board.run(read).stdout != before
    assert len(lab.controller.revoked) == 1
    assert is_well(lab)


def services(lab: WorkingDayLab) -> str:
    """Process ids of the agent and the worker; a restart changes them."""
    units = "latfarm-agent latfarm-worker"
    return lab.board.run(f"systemctl show --property=MainPID --value {units}").stdout


def test_a_new_release_and_new_units_wait_for_the_upgrade(
    lab: WorkingDayLab, tmp_path: Path
) -> None:
    """enroll.yml names what it leaves to upgrade.yml; a member keeps what it runs."""
    newer = enrolment.altered(lab.own_wheels_dir, tmp_path / "newer", "cli.py", "# Newer.\n")
    before = services(lab), lab.board.run("ls -l /opt/latfarm /opt/latfarm/releases").stdout
    again = play(lab, "enroll.yml", latfarm_own_wheels=str(newer), latfarm_worker_memory_max="4G")
    assert again.changed == {"nuc-0": 0}
    assert (services(lab), lab.board.run("ls -l /opt/latfarm /opt/latfarm/releases").stdout) == (
        before
    )
    told = " ".join(again.out.split())
    assert "nuc-0 is a member and runs" in told
    assert re.search(
        r"latfarm.farm.upgrade brings: release \S+, /etc/systemd/system/latfarm-worker.service",
        told,
    ), told


def test_upgrade(lab: WorkingDayLab, tmp_path: Path) -> None:
    release = lab.board.run("readlink /opt/latfarm/venv").stdout
    newer = enrolment.altered(
        lab.own_wheels_dir, tmp_path / "newer", "__init__.py", "# A newer release.\n"
    )
    play(lab, "upgrade.yml", latfarm_own_wheels=str(newer), latfarm_worker_memory_max="4G")
    assert lab.board.run("readlink /opt/latfarm/venv").stdout != release
    assert "MemoryMax=4G" in lab.board.run("cat /etc/systemd/system/latfarm-worker.service").stdout
    assert is_well(lab)


def test_rollback(lab: WorkingDayLab) -> None:
    """The board goes back to its former release and units, and stays there."""
    upgraded = lab.board.run("readlink /opt/latfarm/venv").stdout
    played = play(lab, "rollback.yml")
    assert re.search(r"nuc-0 runs \S+ again, and not \S+", " ".join(played.out.split()))
    assert lab.board.run("readlink /opt/latfarm/venv").stdout != upgraded
    units = lab.board.run("cat /etc/systemd/system/latfarm-worker.service").stdout
    assert "MemoryMax" not in units
    assert is_well(lab)
    events = lab.controller.latfarm("boards", "events", "nuc-0", "--json")
    assert events[0]["event"] == "resumed"
    again = play(lab, "rollback.yml")
    assert again.changed == {"nuc-0": 0}


def test_unenroll(lab: WorkingDayLab) -> None:
    refused = lab.controller.play("unenroll.yml")
    assert refused.code != 0
    assert set(lab.controller.boards) == {"nuc-0"}
    play(lab, "unenroll.yml", "--limit", "nuc-0")
    assert lab.controller.boards == {}
    assert lab.watch.run(f"ls {TARGETS}").stdout == ""
    assert enrolment.files(lab.board, KEPT_BY_THE_BOARD) == lab.files_before


def test_no_playbook_is_left_out() -> None:
    """A new playbook needs a test here, or with the controller as a service."""
    tested = {name.removeprefix("test_").replace("_", "-") for name in globals()}
    deployed = Path(__file__).with_name("test_controller.py").read_text()
    tested |= set(re.findall(r'play\(lab, "([a-z-]+)\.yml"', deployed))
    playbooks = {path.stem.replace("_", "-") for path in enrolment.PLAYBOOKS.glob("*.yml")}
    assert playbooks <= tested
