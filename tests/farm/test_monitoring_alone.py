"""ansible/monitoring.yml runs on one machine that is both controller and monitoring machine.

Each test starts from the state in which the previous test ended.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from latfarm_controller.metrics.metrics import ControllerMetrics

from tests.farm.boards import debs
from tests.farm.boards.virtual_board import VirtualBoard
from tests.farm.boards.wheels import HOME as PROGRAMS
from tests.farm.boards.wheels import PYTHON, ROOT, install, own, unpack
from tests.farm.conftest import MakeBoards
from tests.farm.lab import enrolment
from tests.farm.lab.processes import until

pytestmark = [pytest.mark.farm, pytest.mark.timeout(600)]

ANSIBLE = (
    *("ansible-core", "jinja2", "MarkupSafe", "PyYAML", "packaging", "resolvelib"),
    *("cryptography", "cffi", "pycparser"),
)
"""Distributions that the machine needs to run Ansible and its collection community.crypto."""

COMMAND_LINE = (
    *("annotated-doc", "annotated-types", "click", "platformdirs", "pydantic", "pydantic_core"),
    *("rich", "shellingham", "typer", "typing_extensions", "typing-inspection"),
)
"""Distributions that `latfarm certs` imports, which the playbook calls."""

OWN = ("latfarm-protos", "latfarm-predictors", "latfarm-controller")
"""This checkout's distributions that have the command `latfarm`."""

SCRIPT = f"""#!{PYTHON}
from latfarm_controller.__main__ import main
main()
"""

CHECKOUT = "/srv/latfarm"
HOME = "/srv/home"
GET = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).read().decode())"
SERVE = f"systemd-run --unit=page {PYTHON} -m http.server -b 127.0.0.1 -d /srv/page 9180"
RECAP = re.compile(r"^localhost\s+: ok=(\d+)\s+changed=(\d+)\s+unreachable=0\s+failed=0", re.M)


@dataclass(frozen=True)
class PlaybookRun:
    """What Ansible printed, and how many tasks changed something."""

    out: str
    changed: int


@pytest.fixture(scope="module")
def machine(make_boards: MakeBoards, tmp_path_factory: pytest.TempPathFactory) -> VirtualBoard:
    """A Debian machine with this checkout's playbooks, Ansible and `latfarm` in an environment."""
    reason = enrolment.lacks()
    if reason:
        pytest.skip(reason)
    (board,) = make_boards("alone")
    debs.offer(board, debs.MONITORING)
    board.run("apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y openssl")
    site = tmp_path_factory.mktemp("ansible")
    unpack(own(tmp_path_factory.mktemp("own"), OWN), site, "3.11", board.arch)
    for name in (*ANSIBLE, *COMMAND_LINE):
        bring(name, site)
    crypto = Path("ansible_collections", "community", "crypto")
    shutil.copytree(Path(str(distribution("ansible").locate_file(crypto))), site / crypto)
    install(board, site)
    board.write(f"{PROGRAMS}/bin/latfarm", SCRIPT, 0o755)
    tree = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "ansible", tree / "ansible")
    shutil.copy(ROOT / "ansible.cfg", tree)
    board.push(tree, CHECKOUT)
    return board


def bring(name: str, site: Path) -> None:
    """Copy the modules of a distribution from this host's Python, without its programs."""
    found = distribution(name)
    for file in found.files or ():
        if ".." not in file.parts and file.suffix != ".pyc":
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(found.locate_file(file)), target)


def play(machine: VirtualBoard, *words: str) -> PlaybookRun:
    """Run the playbook on the machine itself; it must succeed."""
    command = f"cd {CHECKOUT} && LATFARM_HOME={HOME} ANSIBLE_NOCOLOR=1 LC_ALL=C.UTF-8"
    command += f" {PYTHON} -m ansible playbook ansible/monitoring.yml {' '.join(words)}"
    done = machine.run(command, check=False, timeout_s=300.0)
    recap = RECAP.search(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert recap is not None, done.stdout
    return PlaybookRun(done.stdout, int(recap[2]))


def get(machine: VirtualBoard, url: str) -> str:
    """The answer of a URL on the machine; empty if there is none."""
    return machine.run(["python3", "-c", GET, url], check=False).stdout.strip()


def test_one_run_sets_up_everything_except_grafana_and_says_so(machine: VirtualBoard) -> None:
    played = play(machine)
    assert played.changed > 0
    assert machine.failed_units() == []
    told = " ".join(played.out.split())
    assert "There is no Grafana on this machine" in told
    assert "Prometheus and Alertmanager do without it" in told
    assert "-e grafana_package=FILE.deb" in told
    assert until(lambda: "Ready" in get(machine, "http://127.0.0.1:9090/-/ready"), "Prometheus")
    assert until(lambda: get(machine, "http://127.0.0.1:9093/-/ready") == "OK", "Alertmanager")
    # There was no certificate authority, so the playbook made one in the home folder of `latfarm`.
    made = machine.run(f"ls {HOME}/tls").stdout.split()
    assert {"ca.crt", "ca.key", "controller.crt", "controller.key", "revoked.json"} <= set(made)


def test_prometheus_scrapes_the_controller_on_the_same_machine(machine: VirtualBoard) -> None:
    machine.run("mkdir /srv/page")
    machine.write("/srv/page/metrics", ControllerMetrics().text())
    machine.run(SERVE)
    query = "http://127.0.0.1:9090/api/v1/query?query="
    up = query + "up%7Bjob=%22latfarm-controller%22%7D"

    def value() -> str:
        found = json.loads(get(machine, up) or "{}").get("data", {}).get("result", [])
        return str(found[0]["value"][1]) if found else ""

    until(lambda: value() == "1", value)
    rules = json.loads(get(machine, "http://127.0.0.1:9090/api/v1/rules"))["data"]["groups"]
    assert {group["name"] for group in rules} == {"latfarm-recordings", "latfarm-alerts"}
    broken = [rule["name"] for group in rules for rule in group["rules"] if rule.get("lastError")]
    assert broken == []


@pytest.mark.parametrize("words", [(), ("--check",)], ids=["run", "preview"])
def test_a_second_run_changes_nothing(machine: VirtualBoard, words: tuple[str, ...]) -> None:
    assert play(machine, *words).changed == 0
