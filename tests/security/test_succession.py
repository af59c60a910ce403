"""A new authority replaces the old one: nobody with up-to-date files is ever refused."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import grpc
import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.certificates.ca_rotation import CaRotation, RotationStep
from latfarm_controller.agents.tls import ControllerTlsFiles, meet_board
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.cli.main import run
from latfarm_controller.errors import CertificateError, ControllerError, UsageError
from latfarm_protos.trust.gate import Gate
from latfarm_protos.trust.identity import CONTROLLER

from tests.security.conftest import Home, channel


def outsider(folder: Path, home: Home, name: str, role: str) -> ControllerTlsFiles:
    """Make the files of another machine: a certificate, its key, and the authority."""
    folder.mkdir()
    files = ControllerTlsFiles(
        folder / "ca.crt", folder / "own.crt", folder / "own.key", server_name=name
    )
    give_certificate(files, home, name, role)
    give_authority(files, home)
    return files


def give_certificate(files: ControllerTlsFiles, home: Home, name: str, role: str) -> None:
    made = home.authority.issue(name, role)
    shutil.copy(made.with_suffix(".key"), files.key)
    shutil.copy(made, files.cert)


def give_authority(files: ControllerTlsFiles, home: Home) -> None:
    shutil.copy(home.authority.cert, files.ca)


@asynccontextmanager
async def board_behind_gate(files: ControllerTlsFiles) -> AsyncIterator[str]:
    """Run a gate like that of an agent, in front of a server without methods."""
    gate = Gate(files.files, (CONTROLLER,))
    server = grpc.aio.server()
    server.add_insecure_port(f"unix:{gate.inner}")
    port = gate.listen("127.0.0.1", 0)
    await server.start()
    gate.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await asyncio.to_thread(gate.close)
        await server.stop(None)


@dataclass
class Farm:
    """A controller and a board that serve during the whole test, and the files of a viewer."""

    home: Home
    server: ControllerServer
    address: str
    board: ControllerTlsFiles
    viewer: ControllerTlsFiles
    stations: list[str] = field(default_factory=list)

    async def step(self, name: str, does: Callable[[], object] | None = None) -> None:
        """Do a step, then check that the viewer can read and the controller can reach its board."""
        if does is not None:
            does()
        await asyncio.to_thread(self.read, self.viewer)
        await self.meet()
        self.stations.append(name)

    def read(self, files: ControllerTlsFiles) -> None:
        """Read as a viewer does, with the certificate in these files."""
        config = self.home.config.model_copy(
            update={"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
        )
        with channel(self.server, config) as opened:
            ControllerClient(opened).campaigns()

    async def meet(self) -> None:
        """Connect as the controller does before it calls a board."""
        tls = self.home.config.tls_dir
        ours = (tls / "ca.crt", tls / "controller.crt", tls / "controller.key")
        await meet_board(self.address, ControllerTlsFiles(*ours, server_name="board-7"))


def test_nobody_is_kept_out_while_the_authority_changes(own_home: Home, tmp_path: Path) -> None:
    succession = CaRotation(own_home.authority)
    board = outsider(tmp_path / "board", own_home, "board-7", "agent")
    viewer = outsider(tmp_path / "ada", own_home, "ada", "viewer")
    late = ControllerTlsFiles(viewer.ca, tmp_path / "late.crt", tmp_path / "late.key")
    shutil.copy(viewer.cert, late.cert)
    shutil.copy(viewer.key, late.key)
    old_board = board.cert.read_text(), board.key.read_text()

    async def play() -> None:
        async with own_home.serving() as server, board_behind_gate(board) as address:
            farm = Farm(own_home, server, address, board, viewer)
            await farm.step("before")
            await farm.step("begun", succession.begin)
            await farm.step("told the board", lambda: give_authority(board, own_home))
            await farm.step("told the viewer", lambda: give_authority(viewer, own_home))
            await farm.step("switched", succession.switch)
            assert succession.left_behind() == ["ada", "board-7"]
            await farm.step(
                "new to the board", lambda: give_certificate(board, own_home, "board-7", "agent")
            )
            with pytest.raises(UsageError, match=r"still signed by the old authority: ada;"):
                succession.finish()
            await farm.step(
                "new to the viewer", lambda: give_certificate(viewer, own_home, "ada", "viewer")
            )
            await asyncio.to_thread(farm.read, late)  # the old authority is trusted until the end
            await farm.step("finished", succession.finish)
            for files in (board, viewer):
                await farm.step("told", partial(give_authority, files, own_home))
            with pytest.raises(ControllerError, match=r"does not know the CA .* \[wrong_ca\]"):
                await asyncio.to_thread(farm.read, late)
            board.key.write_text(old_board[1])
            board.cert.write_text(old_board[0])
            with pytest.raises(CertificateError, match=r"of another CA \[wrong_ca\]"):
                await farm.meet()

    asyncio.run(play())
    assert succession.step is RotationStep.SINGLE
    assert len(succession.trusted()) == 1


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "tls")
    made.init(["farm.example.org", "192.0.2.1"])
    return made


def test_the_old_authority_signs_until_the_switch(authority: Authority) -> None:
    succession = CaRotation(authority)
    (old,) = succession.trusted()
    succession.begin()
    first, second = succession.trusted()
    assert first == old
    assert second.name.startswith("latfarm farm ")
    assert not second.signs
    authority.issue("ada", "viewer")
    assert succession.left_behind() == []
    succession.switch()
    assert [one.fingerprint for one in succession.trusted()] == [
        second.fingerprint,
        old.fingerprint,
    ]
    assert succession.left_behind() == ["ada"]
    assert (authority.folder / "ca.key").stat().st_mode & 0o777 == 0o600
    assert not (authority.folder / "ca-next.key").exists()
    # Revoked and expired certificates do not count as left behind.
    authority.revoke("ada")
    assert succession.left_behind() == []
    succession.finish()
    assert [one.fingerprint for one in succession.trusted()] == [second.fingerprint]


def names_in(cert: Path) -> set[str]:
    """Return the host names and addresses in a certificate, as openssl prints them."""
    command = ["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", str(cert)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?:DNS|IP Address):([^,\s]+)", printed))


def test_this_machines_own_certificate_keeps_its_names(authority: Authority) -> None:
    succession = CaRotation(authority)
    before = names_in(authority.folder / "controller.crt")
    assert {"farm.example.org", "192.0.2.1", "localhost"} <= before
    succession.begin()
    succession.switch()
    assert names_in(authority.folder / "controller.crt") == before


def test_steps_are_taken_in_turn(authority: Authority, tmp_path: Path) -> None:
    succession = CaRotation(authority)
    with pytest.raises(UsageError, match=r"begin first \(state: single\)"):
        succession.switch()
    with pytest.raises(UsageError, match=r"begin and switch first \(state: single\)"):
        succession.finish()
    succession.begin()
    with pytest.raises(UsageError, match=r"under way \(state: begun\)"):
        succession.begin()
    with pytest.raises(UsageError, match=r"begin and switch first \(state: begun\)"):
        succession.finish()
    with pytest.raises(UsageError, match="there is no authority here"):
        CaRotation(Authority(tmp_path / "none")).begin()


def test_an_interrupted_switch_is_done_again(authority: Authority) -> None:
    succession = CaRotation(authority)
    succession.begin()
    key = (authority.folder / "ca-next.key").read_bytes()
    old = authority.key.read_bytes()
    succession.switch()
    signing = succession.trusted()[0]
    # A switch that stops halfway leaves the new order of certificates with the old keys.
    (authority.folder / "ca-next.key").write_bytes(key)
    authority.key.write_bytes(old)
    assert succession.step is RotationStep.BEGUN
    succession.switch()
    assert succession.trusted()[0] == signing
    assert authority.key.read_bytes() == key
    authority.issue("ada", "viewer")
    assert succession.left_behind() == []


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LATFARM_HOME", str(tmp_path))
    words = ("certs", "authority")

    def step() -> str:
        capsys.readouterr()
        assert run([*words, "show", "--json"]) == 0
        return str(json.loads(capsys.readouterr().out)["step"])

    assert run(["certs", "init"]) == 0
    assert run(["certs", "issue", "ada", "--role", "viewer"]) == 0
    steps = [step()]
    for verb in ("begin", "switch"):
        assert run([*words, verb]) == 0
        steps.append(step())
    assert run([*words, "show"]) == 0
    assert "not signed by the first authority: ada" in capsys.readouterr().err
    assert run([*words, "finish"]) == 2
    assert "still signed by the old authority: ada" in capsys.readouterr().err
    assert run([*words, "finish", "--force"]) == 0
    assert [*steps, step()] == ["single", "begun", "switched", "single"]
