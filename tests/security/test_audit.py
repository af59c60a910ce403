"""Events and the audit log say who did what, and nobody can act under the name of another."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.home_socket import HomeSocket
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.api.service import ControllerService
from latfarm_controller.audit import AuditLog, unix_user
from latfarm_controller.cli.main import run
from latfarm_controller.errors import StoreError
from latfarm_controller.store.base import CampaignRecord
from latfarm_protos.trust.identity import OPERATOR
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

from tests.security.conftest import Home, channel

ME = unix_user(os.getuid())
FORGER = """
import grpc, sys
from latfarm_protos.v1 import controller_pb2 as pb, controller_pb2_grpc
with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = controller_pb2_grpc.ControllerServiceStub(channel)
    stub.DrainBoard(
        pb.BoardRequest(name="toy", reason="a lie"), metadata=(("latfarm-actor-bin", b"ada"),)
    )
"""
"""A program that calls the socket of the home under the name of somebody else."""


def served(home: Home, look: Callable[[ControllerServer], Any]) -> Any:
    """Run `look` in a thread beside the controller, and return its result."""

    async def play() -> Any:
        async with home.serving() as server:
            return await asyncio.to_thread(look, server)

    return asyncio.run(play())


def test_the_user_behind_the_socket_is_told_and_cannot_be_forged(own_home: Home) -> None:
    ada = own_home.client("ada", OPERATOR)

    def look(server: ControllerServer) -> list[str]:
        with channel(server, ada) as opened:
            ControllerClient(opened).drain_board("toy", "through the gate")
            ControllerClient(opened).resume_board("toy", "", False)
        done = subprocess.run(
            [sys.executable, "-c", FORGER, server.address], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        with grpc.insecure_channel(server.address) as opened:
            return [event.actor for event in ControllerClient(opened).board_events("toy")]

    assert served(own_home, look) == [ME, "ada", "ada"]
    log = AuditLog(own_home.config.audit_file).entries()
    assert [(entry.actor, entry.action, entry.subject) for entry in log] == [
        ("ada", "board.drained", "toy"),
        ("ada", "board.resumed", "toy"),
        (ME, "board.drained", "toy"),
    ]
    assert log[-1].details == {"reason": "a lie"}


class FakeCampaigns:
    """Answers the calls of a service about campaigns."""

    async def start(
        self, kind: str, platform: str, config: Any, name: str, user: str
    ) -> CampaignRecord:
        assert user == ME
        return CampaignRecord("c1", name, kind, platform, started_at_s=time.time())

    async def resume(self, name: str) -> CampaignRecord:
        return CampaignRecord(name, name, "k", "p", started_at_s=time.time())

    async def cancel(self, name: str) -> CampaignRecord:
        return CampaignRecord(name, name, "k", "p", started_at_s=time.time())


def test_campaigns_are_in_the_audit_log(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")

    async def play() -> None:
        socket = HomeSocket(tmp_path / "s")
        server = grpc.aio.server()
        controller: Any = SimpleNamespace(campaigns=FakeCampaigns())
        service = ControllerService(controller, log, socket.user)
        controller_pb2_grpc.add_ControllerServiceServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{socket.inner}")
        await server.start()
        await socket.open()
        try:
            async with grpc.aio.insecure_channel(f"unix:{tmp_path / 's'}") as opened:
                stub = controller_pb2_grpc.ControllerServiceStub(opened)
                start = pb.StartCampaignRequest(kind="k", platform="p", config_json="{}")
                await stub.StartCampaign(start)
                await stub.ResumeCampaign(pb.GetCampaignRequest(campaign_id="c1"))
                await stub.CancelCampaign(pb.GetCampaignRequest(campaign_id="c1"))
        finally:
            await server.stop(None)
            await socket.close()

    asyncio.run(play())
    assert [(entry.actor, entry.action, entry.subject) for entry in log.entries()] == [
        (ME, "campaign.started", "c1"),
        (ME, "campaign.resumed", "c1"),
        (ME, "campaign.cancelled", "c1"),
    ]
    assert not (tmp_path / "s").exists()


def test_certificates_and_enrolment_are_in_the_audit_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path / "home"))
    for words in (
        "certs init",
        "certs issue ada --role operator",
        "certs issue toy --role agent",
        "certs revoke ada",
        "boards add toy 127.0.0.1:1",
        "boards remove toy",
        "certs authority begin",
        "certs authority switch",
        "certs authority finish --force",
    ):
        assert run(words.split()) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert run(["audit", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)[::-1]
    assert [(entry["action"], entry["subject"]) for entry in told] == [
        ("authority.made", "latfarm farm"),
        ("certificate.issued", "ada"),
        ("certificate.issued", "toy"),
        ("certificate.revoked", "ada"),
        ("board.enrolled", "toy"),
        ("board.removed", "toy"),
        ("authority.begun", "the next authority"),
        ("authority.switched", "the next authority"),
        ("authority.finished", "the former authority"),
    ]
    assert {entry["actor"] for entry in told} == {ME}
    assert run(["audit", "--limit", "2"]) == 0
    assert "authority.switched" in capsys.readouterr().out


def test_a_damaged_log_is_read_as_far_as_it_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    assert log.entries() == []
    log.add("unix:a", "one", "x")
    with log.path.open("a") as file:
        file.write("[" * 100_000 + '\n{"at_s": 1}\nhalf a li')
    assert [entry.action for entry in log.entries()] == ["one"]
    assert caplog.text.count("is no entry of an audit log") == 3


def test_a_log_that_cannot_be_written_fails_no_command(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    os.mkfifo(tmp_path / "audit.jsonl")
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("unix:a", "one", "x")
    assert "not in the audit log: one of x by unix:a" in caplog.text
    with pytest.raises(StoreError, match="is no file"):
        log.entries()
