"""Commands that enrolment calls: boards with certificates, their health, and wheels."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from latfarm_controller.agents.local import LocalAgent, LocalAgentOptions
from latfarm_controller.agents.registry import Registry
from latfarm_controller.audit import AuditLog

PROFILE = {
    "platform": "toy-sim1.0-fp32-1t",
    "peak_macs_per_ms": 1e6,
    "bandwidth_bytes_per_ms": 1e6,
    "overhead_ms": 0.1,
}
Latfarm = Callable[..., Any]


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(PROFILE))
    agent = LocalAgent(
        LocalAgentOptions(
            state_dir=tmp_path / "agent", log_path=tmp_path / "log", name="toy", simulate=profile
        )
    )
    agent.start(60_000.0)
    try:
        yield agent.address
    finally:
        agent.stop()


def accepted_in_log(home: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """The boards whose ids were accepted, by the audit log, with the ids."""
    entries = AuditLog(home / "audit.jsonl").entries()
    return [(each.subject, each.details) for each in entries if each.action == "board.accepted"]


def test_an_entry_has_certificates_or_none(latfarm: Latfarm, home: Path) -> None:
    files = ("--ca", "/tls/ca.crt", "--cert", "/tls/c.crt", "--key", "/tls/c.key")
    named = ("--server-name", "b")
    some = latfarm("boards", "add", "b", "192.0.2.7:1", *files[:4])
    assert (some.code, "give all three" in some.line) == (2, True)
    assert latfarm("boards", "add", "b", "192.0.2.7:1", *files, *named).code == 0
    assert latfarm("boards", "add", "b", "192.0.2.7:2", *files, *named).code == 2
    assert latfarm("boards", "add", "b", "192.0.2.7:2", *files, *named, "--replace").code == 0
    (entry,) = Registry(home / "boards.json").list()
    assert entry.address == "192.0.2.7:2"
    assert entry.tls is not None
    assert (str(entry.tls.cert), entry.tls.server_name) == ("/tls/c.crt", "b")


def test_a_board_that_dials_in_has_no_address(latfarm: Latfarm, home: Path) -> None:
    for wrong in (("192.0.2.7:1",), ("--insecure",)):
        said = latfarm("boards", "add", "hidden", *wrong, "--dials-in")
        assert (said.code, "--dials-in" in said.line) == (2, True)
    assert latfarm("boards", "add", "hidden").code == 2  # neither an address nor --dials-in
    assert latfarm("boards", "add", "hidden", "--dials-in").code == 0
    assert latfarm("boards", "add", "other", "--dials-in").code == 0
    registry = Registry(home / "boards.json")
    entry = registry.get("hidden")
    assert (entry.dials_in, entry.address, entry.where) == (True, "", "dials in")
    registry.pin("hidden", "an-id")
    assert latfarm("boards", "accept", "hidden").code == 0
    assert registry.get("hidden").board_id == ""
    assert accepted_in_log(home) == [("hidden", {"board_id": "", "before": "an-id"})]
    assert latfarm("boards", "add", "hidden", "192.0.2.7:1", "--insecure", "--replace").code == 0
    assert not registry.get("hidden").dials_in


def test_a_board_that_dials_in_is_not_well_while_nobody_serves(latfarm: Latfarm) -> None:
    assert latfarm("boards", "add", "hidden", "--dials-in").code == 0
    said = latfarm("boards", "check", "hidden", "--timeout", "0")
    assert said.code == 1
    assert "latfarm serve --listen" in said.err


def test_a_board_that_serves_is_well(latfarm: Latfarm, address: str) -> None:
    assert latfarm("boards", "add", "toy", address).code == 0
    found = json.loads(latfarm("boards", "check", "toy", "--json").out)
    assert (found["well"], found["health"], found["state"]) == (True, "SERVING", "idle")
    assert found["platforms"] == [PROFILE["platform"]]
    plain = latfarm("boards", "check", "toy")
    assert plain.code == 0
    assert "SERVING" in plain.out


def test_the_id_of_a_board_is_noted_and_another_one_must_be_accepted(
    latfarm: Latfarm, home: Path, address: str
) -> None:
    registry = Registry(home / "boards.json")
    registry.add("toy", address)
    assert latfarm("boards", "check", "toy").code == 0
    own = registry.get("toy").board_id
    assert len(own) == 32
    registry.pin("toy", "before", again=True)
    refused = latfarm("boards", "check", "toy", "--timeout", "0.1", "--json")
    assert refused.code == 1
    assert "the inventory says before" in json.loads(refused.out)["error"]
    accepted = latfarm("boards", "accept", "toy")
    assert (accepted.code, registry.get("toy").board_id) == (0, own)
    assert f"its id is {own} from now on; before it was before" in accepted.err
    assert accepted_in_log(home) == [("toy", {"board_id": own, "before": "before"})]
    registry.add("twin", "127.0.0.1:1")
    registry.remove("toy")
    registry.pin("twin", own)
    registry.add("toy", address)
    twice = latfarm("boards", "accept", "toy")
    assert (twice.code, "that of board twin" in twice.line) == (1, True)
    assert len(accepted_in_log(home)) == 1, "what was refused is not in the log"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_can_name_the_id_of_its_board(latfarm: Latfarm, home: Path) -> None:
    assert latfarm("certs", "init").code == 0
    words = ("certs", "issue", "board-7", "--role")
    assert latfarm(*words, "agent", "--board-id", "0123abcd").code == 0
    shown = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", "tls/issued/board-7.crt"],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "URI:urn:latfarm:board:0123abcd" in shown
    for wrong in (("agent", "--board-id", "a,b"), ("viewer", "--board-id", "0123abcd")):
        ended = latfarm(*words, *wrong, "--replace")
        assert (ended.code, "board id" in ended.line) == (2, True)


def test_a_board_that_does_not_answer_is_not_well(latfarm: Latfarm) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert latfarm("boards", "add", "gone", address).code == 0
    ended = latfarm("boards", "check", "gone", "--timeout", "0.1", "--json")
    assert ended.code == 1
    found = json.loads(ended.out)
    assert not found["well"]
    assert address in found["error"]
    assert latfarm("boards", "check", "nobody").code == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--python", "3.7", "--arch", "aarch64"), "3.8 or newer"),
        (("--python", "3.9", "--arch", "mips"), "must be one of x86_64"),
        (("--python", "3.9", "--arch", "x86_64", "--glibc", "musl"), "--glibc"),
    ],
)
def test_wheels_refuses_what_no_agent_runs_on(
    latfarm: Latfarm, words: tuple[str, ...], why: str
) -> None:
    ended = latfarm("boards", "wheels", *words)
    assert ended.code == 2
    assert why in ended.line
