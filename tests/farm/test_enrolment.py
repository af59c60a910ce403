"""Eight boards are enrolled, measure, break, come back, are upgraded, and leave the farm.

Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from latfarm_predictors.graph.builder import GraphBuilder

from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.conftest import MakeBoards, MakeController, cannot
from tests.farm.lab import enrolment, prometheus
from tests.farm.lab.enrolment import LabController
from tests.farm.lab.processes import until

pytestmark = [pytest.mark.farm, pytest.mark.timeout(1200)]

BOARDS = 8
LEAVE_FIRST = ("nuc-0", "nuc-1", "nuc-2")
PLATFORM = re.compile(r"linux-cpu-onnxruntime[\d.]+-fp32-1t")
SETTINGS = {"sessions": 8, "warmup_ms": 1.0, "min_runs": 5, "max_ms": 150.0, "precision": 1e-6}
NETWORKS = 64
EXPOSURE = re.compile(r"Overall exposure level for \S+: ([\d.]+)")
AGENT = "systemctl show --property=MainPID --value latfarm-agent"
TRANSIENT = (
    *("/var/log", "/var/cache", "/var/lib/systemd", "/var/tmp", "/run", "/tmp", "/proc", "/sys"),
    *("/dev", "/root/.ansible"),
)
"""Folders in which a board writes files of its own, whether it belongs to a farm or not."""


@dataclass(frozen=True)
class BoardTrace:
    """Files and accounts of a board, which must be the same before it joins and after it leaves."""

    files: set[str]
    accounts: tuple[str, str]


@dataclass(frozen=True)
class EnrolmentLab:
    """The boards, their controller, the wheels of this project, and the boards' traces at first."""

    boards: list[VirtualBoard]
    controller: LabController
    own: Path
    before: dict[str, BoardTrace]


def trace(board: VirtualBoard) -> BoardTrace:
    accounts = board.run("cat /etc/passwd").stdout, board.run("cat /etc/group").stdout
    return BoardTrace(enrolment.files(board, TRANSIENT), accounts)


def traces(boards: list[VirtualBoard]) -> dict[str, BoardTrace]:
    with ThreadPoolExecutor(len(boards)) as pool:
        found = pool.map(trace, boards)
        return {board.name: each for board, each in zip(boards, found, strict=True)}


@pytest.fixture(scope="module")
def lab(
    make_controller: MakeController, make_boards: MakeBoards, own_wheels: list[Path]
) -> EnrolmentLab:
    boards = make_boards(*(f"nuc-{number}" for number in range(BOARDS)))
    return EnrolmentLab(boards, make_controller(boards), own_wheels[0].parent, traces(boards))


def platform(lab: EnrolmentLab) -> str:
    found = lab.controller.latfarm("boards", "check", lab.boards[0].name, "--json")
    (name,) = (name for name in found["platforms"] if PLATFORM.fullmatch(name))
    return str(name)


def test_a_preview_of_an_enrolment_changes_nothing(lab: EnrolmentLab) -> None:
    played = lab.controller.play("enroll.yml", "--check", "--limit", "nuc-0")
    assert played.well, played.out
    assert "nuc-0 is not enrolled. A real run installs it" in played.out
    assert trace(lab.boards[0]) == lab.before["nuc-0"]
    assert not (lab.controller.home / "boards.json").exists()


def test_enrols_eight_boards(lab: EnrolmentLab, record_property: Any) -> None:
    begun = time.monotonic()
    played = lab.controller.play("enroll.yml")
    record_property(f"{BOARDS} boards", f"{time.monotonic() - begun:.0f} s")
    assert played.well, played.out
    # A virtual board has no frequency governor, and the playbook says so.
    assert played.out.count("governor: absent: wanted performance, read nothing") == BOARDS
    assert played.out.count("the clock is not synchronised") == BOARDS

    assert sorted(lab.controller.boards) == sorted(board.name for board in lab.boards)
    for board in lab.boards:
        assert lab.controller.boards[board.name]["address"] == f"{board.address}:50051"
        (target,) = json.loads((lab.controller.targets / f"{board.name}.json").read_text())
        assert target["targets"] == [f"{board.address}:9101"]
        assert target["labels"] == {"board": board.name, "type": "linux-cpu"}
        assert board.failed_units() == []


def test_prometheus_scrapes_each_of_them(lab: EnrolmentLab, tmp_path: Path) -> None:
    if reason := prometheus.lacks():
        cannot(reason)
    with lab.controller.start("certs", "issue", "watcher", "--role", "viewer") as issuing:
        assert issuing.wait() == 0
    tls = lab.controller.home / "tls"
    shutil.copy(tls / "ca.crt", tmp_path)
    for suffix in ("crt", "key"):
        shutil.copy(tls / "issued" / f"watcher.{suffix}", tmp_path / f"prometheus.{suffix}")
    with prometheus.scraping(tmp_path, lab.controller.targets) as ask:
        up = 'up{job="latfarm-agents", type="linux-cpu"} == 1'
        until(lambda: len(ask(up)) == BOARDS, lambda: ask("up"))
        told = {each["metric"]["board"] for each in ask("latfarm_agent_build_info")}
        assert told == {board.name for board in lab.boards}


def test_services_are_hardened(lab: EnrolmentLab, record_property: Any) -> None:
    board = lab.boards[0]
    exposure = {}
    for unit in ("latfarm-agent", "latfarm-worker"):
        said = board.run(f"systemd-analyze security --no-pager {unit}.service").stdout
        match = EXPOSURE.search(said)
        assert match is not None, said
        exposure[unit] = float(match[1])
        record_property(f"exposure of {unit}", exposure[unit])
    assert exposure["latfarm-agent"] < 2.5
    assert exposure["latfarm-worker"] < 2.5
    worker = board.run("systemctl show --property=MainPID --value latfarm-worker").stdout.strip()
    seen = board.run(f"cat /proc/{worker}/net/dev").stdout.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in seen] == ["lo"]
    agent = board.run(AGENT).stdout.strip()
    inside = board.run(f"ls /proc/{agent}/root/dev").stdout.split()
    assert {"null", "urandom"} <= set(inside)
    assert not {"mem", "kmsg", "fuse", "tty0"} & set(inside)
    # Only the agent may read the key: the worker, in which models run, must not.
    status = board.run(f"grep -E '^(Gid|Groups)' /proc/{worker}/status").stdout
    owner = board.run("stat -c '%U:%G %a' /etc/latfarm/tls/agent.key").stdout
    assert owner == "root:latfarm 640\n"
    group = board.run("getent group latfarm").stdout.split(":")[2]
    assert group not in status.split()
    reading = "setpriv --reuid latfarm-worker --regid latfarm-worker --clear-groups"
    assert board.run(f"{reading} cat /etc/latfarm/tls/agent.key", check=False).returncode != 0


def test_logs_are_bounded(lab: EnrolmentLab) -> None:
    # The message of a journald after it has read its limits.
    bounded = re.compile(r"^(System|Runtime) Journal .* max 100\.0M", re.MULTILINE)
    ours = lab.boards[0].run("journalctl --namespace=latfarm --no-pager -o cat").stdout
    assert bounded.search(ours), ours
    assert "serves on" in ours
    # The bounds of the machine's own journal are as they were.
    machine = lab.boards[0].run("journalctl --no-pager -o cat -u systemd-journald").stdout
    assert not bounded.search(machine), machine


def test_an_idle_agent_needs_little_memory_and_processor_time(
    lab: EnrolmentLab, record_property: Any
) -> None:
    board = lab.boards[1]
    agent = board.run(AGENT).stdout.strip()
    worker = board.run("systemctl show --property=MainPID --value latfarm-worker").stdout.strip()
    window_s = 10.0
    ticks = "awk '{print $14 + $15}'"
    script = f"{ticks} /proc/{agent}/stat; sleep {window_s}; {ticks} /proc/{agent}/stat"
    first, last = map(int, board.run(script).stdout.split())
    share = (last - first) / 100 / window_s
    sizes = [
        int(board.run(f"awk '/^VmRSS/ {{print $2}}' /proc/{pid}/status").stdout) * 1024
        for pid in (agent, worker)
    ]
    told = ", ".join(f"{size / 1e6:.1f} MB" for size in sizes)
    record_property("agent and worker", f"{told}; the agent {share:.2%} of a core")
    assert sizes[0] <= 60e6
    assert share <= 0.005


@pytest.mark.parametrize("words", [(), ("--check",)], ids=["run", "preview"])
def test_a_second_enrolment_changes_nothing(lab: EnrolmentLab, words: tuple[str, ...]) -> None:
    played = lab.controller.play("enroll.yml", "--limit", "nuc-0,nuc-1", *words)
    assert played.well, played.out
    assert played.changed == {"nuc-0": 0, "nuc-1": 0}


def test_a_check_reports_changed_files_and_changes_nothing(lab: EnrolmentLab) -> None:
    board = lab.boards[0]
    board.run("echo '{}' >/etc/latfarm/agent.json")
    drifted = lab.controller.play("check.yml", "--limit", "nuc-0,nuc-1")
    assert drifted.well, drifted.out
    assert drifted.changed["nuc-0"] > 0
    assert drifted.changed["nuc-1"] == 0
    assert drifted.out.count("worker: active") == 2
    assert board.run("cat /etc/latfarm/agent.json").stdout == "{}\n"
    # enroll.yml restarts no member; upgrade.yml mends it, and drains it first.
    left = lab.controller.play("enroll.yml", "--limit", "nuc-0")
    assert left.well, left.out
    assert left.changed == {"nuc-0": 0}
    assert "latfarm.farm.upgrade brings: /etc/latfarm/agent.json" in " ".join(left.out.split())
    mended = lab.controller.play("upgrade.yml", "--limit", "nuc-0,nuc-1")
    assert mended.well, mended.out
    assert mended.changed["nuc-0"] > 0
    assert mended.changed["nuc-1"] == 0
    assert board.run("cat /etc/latfarm/agent.json").stdout != "{}\n"


def test_a_campaign_finishes_although_boards_fail(lab: EnrolmentLab) -> None:
    graphs = []
    for number in range(NETWORKS):
        builder = GraphBuilder(f"net-{number}")
        into = builder.input((1, 3, 16, 16))
        graphs.append(builder.build([builder.relu(builder.conv(into, number + 1, 3))]).to_json())
    config = json.dumps({"graphs": graphs, "settings": SETTINGS})
    words = ("campaign", "run", "networks", "-p", platform(lab), "--config", config, "--json")
    unplugged, rebooted, cut = lab.boards[2:5]
    with lab.controller.start(*words) as running:
        # When a board has received a model, it measures.
        for board in (unplugged, rebooted, cut):
            board.run(
                "until find /var/lib/latfarm/agent/blobs -type f | grep -q .; do sleep 0.1; done",
                timeout_s=300.0,
            )
        unplugged.kill()
        cut.cut_off()
        rebooted.reboot()
        assert running.poll() is None, "the campaign ended before the boards were disturbed"
        unplugged.start()
        cut.restore()
        out, err = running.communicate()
    assert running.returncode == 0, err
    assert json.loads(out)["state"] == "done", out
    found = lab.controller.latfarm("results", "--limit", "0", "--purpose", "network", "--json")
    assert {each["outcome"] for each in found} == {"ok"}
    assert len({each["graph_hash"] for each in found}) == len(found) == NETWORKS
    # Expect no share of the work from the disturbed boards: it may have been done when they came
    # back.
    disturbed = len((unplugged, rebooted, cut))
    assert len({each["board_id"] for each in found}) >= BOARDS - disturbed
    for board in lab.boards:
        well = lab.controller.latfarm("boards", "check", board.name, "--timeout", "120", "--json")
        assert well["well"], well


def test_certificates_change_without_a_restart(lab: EnrolmentLab) -> None:
    board = lab.boards[0]
    before = board.run("cat /etc/latfarm/tls/agent.crt").stdout
    pid = board.run(AGENT).stdout
    played = lab.controller.play("rotate-certs.yml", "--limit", "nuc-0,nuc-1")
    assert played.well, played.out
    after = board.run("cat /etc/latfarm/tls/agent.crt").stdout
    assert after != before
    assert board.run(AGENT).stdout == pid
    assert lab.controller.latfarm("boards", "check", "nuc-0", "--json")["well"]
    # The two old certificates are revoked.
    assert len(lab.controller.revoked) == 2


def test_a_bad_release_is_rolled_back(lab: EnrolmentLab, tmp_path: Path) -> None:
    board = lab.boards[0]
    release = board.run("readlink /opt/latfarm/venv").stdout
    broken = enrolment.altered(
        lab.own, tmp_path / "broken", "service/server.py", "raise SystemExit('broken')\n"
    )
    played = lab.controller.play(
        *("upgrade.yml", "--limit", "nuc-0,nuc-1"),
        latfarm_own_wheels=str(broken),
        latfarm_health_timeout_s=15,
    )
    assert played.code != 0
    assert re.search(r"nuc-0: \S+ is not well there; it runs \S+ again", played.out), played.out
    # The playbook stopped before the second board.
    assert not re.search(r"nuc-1: \S+ is not well there", played.out)
    assert board.run("readlink /opt/latfarm/venv").stdout == release
    assert board.run("ls /opt/latfarm/releases").stdout.split() == [Path(release.strip()).name]
    assert lab.controller.latfarm("boards", "check", "nuc-0", "--json")["well"]


def test_a_good_release_is_kept(lab: EnrolmentLab, tmp_path: Path) -> None:
    board = lab.boards[0]
    release = board.run("readlink /opt/latfarm/venv").stdout
    newer = enrolment.altered(lab.own, tmp_path / "newer", "__init__.py", "# newer\n")
    played = lab.controller.play("upgrade.yml", "--limit", "nuc-0", latfarm_own_wheels=str(newer))
    assert played.well, played.out
    assert board.run("readlink /opt/latfarm/venv").stdout != release
    assert lab.controller.latfarm("boards", "check", "nuc-0", "--json")["well"]
    # All upgrades, also the bad one, drained the board and resumed it.
    events = lab.controller.latfarm("boards", "events", "nuc-0", "--json")
    decided = [event["event"] for event in events if event["event"] != "id_pinned"]
    assert decided == ["resumed", "drained"] * 3
    again = lab.controller.play("upgrade.yml", "--limit", "nuc-0", latfarm_own_wheels=str(newer))
    assert again.well, again.out
    assert again.changed == {"nuc-0": 0}


def test_boards_leave_and_the_others_stay(lab: EnrolmentLab) -> None:
    shut_out = len(lab.controller.revoked)
    played = lab.controller.play("unenroll.yml", "--limit", ",".join(LEAVE_FIRST))
    assert played.well, played.out
    stay = {board.name for board in lab.boards} - set(LEAVE_FIRST)
    assert set(lab.controller.boards) == stay
    assert {path.stem for path in lab.controller.targets.iterdir()} == stay
    assert len(lab.controller.revoked) == shut_out + len(LEAVE_FIRST)
    assert lab.controller.latfarm("boards", "check", "nuc-7", "--json")["well"]


def test_a_board_that_left_is_as_it_was_before(lab: EnrolmentLab) -> None:
    shut_out = len(lab.controller.revoked)
    played = lab.controller.play("unenroll.yml", latfarm_unenroll="all")
    assert played.well, played.out
    # Nothing changes for the boards that have left already: their certificates are revoked.
    assert [played.changed[name] for name in LEAVE_FIRST] == [0, 0, 0], played.out
    assert all(played.changed[board.name] > 1 for board in lab.boards[len(LEAVE_FIRST) :])
    assert lab.controller.boards == {}
    assert list(lab.controller.targets.iterdir()) == []
    assert len(lab.controller.revoked) == shut_out + BOARDS - len(LEAVE_FIRST)
    assert traces(lab.boards) == lab.before
    for board in lab.boards:
        assert (
            "latfarm" not in board.run("systemctl list-units --all --no-legend 'latfarm*'").stdout
        )
        assert board.run("pgrep -f '[l]atfarm_agent'", check=False).stdout == ""
