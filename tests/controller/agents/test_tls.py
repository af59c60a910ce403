"""Both sides prove who they are, with certificates made on the spot."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import shutil
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import grpc
import pytest
from latfarm_controller.agents.client import AgentClient
from latfarm_controller.agents.connection import Patience
from latfarm_controller.agents.tls import ControllerTlsFiles, home_files
from latfarm_controller.errors import AgentLostError, CertificateError, IdentityError
from latfarm_protos.trust.gate import Gate
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

from tests.faults.relay import LinkRelay
from tests.ports import free_port

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
PATIENCE = Patience(call_ms=10_000)
IMPATIENT = Patience(call_ms=500)


class Describing(agent_pb2_grpc.AgentServiceServicer):
    async def Describe(
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(board=pb.Board(board_id="b", name="proven"))

    async def AcquireLease(
        self, request: pb.AcquireLeaseRequest, context: grpc.aio.ServicerContext
    ) -> pb.Lease:
        return pb.Lease(token=1, ttl_ms=request.ttl_ms)


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def authority(folder: Path) -> Path:
    """A new authority's folder, with `ca.pem` and its key."""
    folder.mkdir()
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    made = ("-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-days", "2")
    openssl(*new, *made, "-subj", "/CN=farm")
    return folder


def issue(
    ca: Path, name: str, role: str = "agent", days: int = 2, board_id: str = ""
) -> ControllerTlsFiles:
    """A certificate for `name` under an authority."""
    key, ask, cert = ca / f"{name}.key", ca / f"{name}.csr", ca / f"{name}.pem"
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(*new, "-keyout", key, "-out", ask, "-subj", f"/CN={name}")
    names = ca / f"{name}.ext"
    named = f"DNS:{name},URI:urn:latfarm:role:{role}" if role else f"DNS:{name}"
    named += f",URI:urn:latfarm:board:{board_id}" if board_id else ""
    names.write_text(f"subjectAltName={named}\n")
    signer = ("-CA", ca / "ca.pem", "-CAkey", ca / "ca.key", "-CAcreateserial")
    openssl(
        "x509", "-req", "-in", ask, *signer, "-out", cert, "-days", str(days), "-extfile", names
    )
    return ControllerTlsFiles(ca / "ca.pem", cert, key, server_name="board-7")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("tls") / "farm")


@asynccontextmanager
async def serving(board: ControllerTlsFiles, port: int = 0) -> AsyncIterator[int]:
    """A board behind a gate under `board`'s certificate, as an agent is; gives its port."""
    gate = Gate(board.files, ("controller",))
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(Describing(), server)
    server.add_insecure_port(f"unix:{gate.inner}")
    port = gate.listen("127.0.0.1", port)
    await server.start()
    gate.start()
    try:
        yield port
    finally:
        await asyncio.to_thread(gate.close)
        await server.stop(None)


async def describe(
    board: ControllerTlsFiles, ours: ControllerTlsFiles | None, patience: Patience
) -> str:
    """The name that a board under `board`'s certificate tells to a client with `ours`."""
    async with (
        serving(board) as port,
        AgentClient(f"127.0.0.1:{port}", "me", ours, patience=patience) as client,
    ):
        return (await client.describe()).name


def test_both_proven(farm: Path) -> None:
    board, ours = issue(farm, "board-7"), issue(farm, "controller", "controller")
    assert asyncio.run(describe(board, ours, PATIENCE)) == "proven"


def test_a_certificate_that_names_an_id_is_for_that_board_alone(farm: Path) -> None:
    ours = issue(farm, "controller", "controller")
    its_own = issue(farm, "board-7", board_id="b")
    assert asyncio.run(describe(its_own, ours, PATIENCE)) == "proven"
    another = issue(farm, "board-7", board_id="other")
    with pytest.raises(IdentityError, match="its id is b, but its certificate says other"):
        asyncio.run(describe(another, ours, PATIENCE))


def test_a_client_without_a_certificate_is_not_served(farm: Path) -> None:
    with pytest.raises(AgentLostError):
        asyncio.run(describe(issue(farm, "board-7"), None, IMPATIENT))


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("other_name", "its certificate is for another name [wrong_name]"),
        ("other_ca", "its certificate is of another CA [wrong_ca]"),
        ("expired", "its certificate is expired; are both clocks right? [expired]"),
        ("revoked", "is revoked [revoked]"),
        ("controller", "has the role controller, not agent [wrong_role]"),
        ("no_role", "has the role none, not agent [wrong_role]"),
        ("ours_expired", "it says that our certificate is expired [expired]"),
        ("ours_other_ca", "it does not know the CA of our certificate [wrong_ca]"),
    ],
)
def test_a_board_that_is_not_to_be_trusted_is_refused_and_the_log_says_why(
    farm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str, told: str
) -> None:
    shutil.copytree(farm, tmp_path / "mine")  # with a list of revoked certificates of its own
    mine, other = tmp_path / "mine", authority(tmp_path / "other")
    ours = issue(mine, "controller", "controller", days=-1 if case == "ours_expired" else 2)
    board = {
        "other_name": lambda: issue(mine, "board-8"),
        "other_ca": lambda: issue(other, "board-7"),
        "expired": lambda: issue(mine, "board-7", days=-1),
        "controller": lambda: issue(mine, "board-7", "controller"),
        "no_role": lambda: issue(mine, "board-7", ""),
    }.get(case, lambda: issue(mine, "board-7"))()
    if case == "other_ca":
        # What the board trusts is not the point here.
        board = ControllerTlsFiles(mine / "ca.pem", board.cert, board.key)
    if case == "ours_other_ca":
        stranger = issue(other, "controller", "controller")
        ours = ControllerTlsFiles(ours.ca, stranger.cert, stranger.key, "board-7")
    if case == "revoked":
        shut_out(mine, board)
    with pytest.raises(CertificateError, match=re.escape(told)):
        asyncio.run(describe(board, ours, PATIENCE))
    assert told in caplog.text


async def broken_off(met: asyncio.Event, times: int, port: int = 0) -> asyncio.Server:
    """Somebody who resets each connection in its handshake, as an agent that is killed does."""
    left = times

    async def die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        await reader.read(16)
        plain = writer.get_extra_info("socket")
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        left -= 1
        if left == 0:
            met.set()

    return await asyncio.start_server(die, "127.0.0.1", port)


def test_a_board_that_dies_in_the_handshake_is_met_again(farm: Path) -> None:
    board, ours = issue(farm, "board-7"), issue(farm, "controller", "controller")

    async def play() -> str:
        met = asyncio.Event()
        # A port that no connection of another process can take before it is bound again.
        port = free_port()
        dying = await broken_off(met, times=3, port=port)
        async with AgentClient(f"127.0.0.1:{port}", "me", ours, patience=PATIENCE) as client:
            told = asyncio.create_task(client.describe())
            await asyncio.wait(
                [told, asyncio.create_task(met.wait())], return_when="FIRST_COMPLETED"
            )
            dying.close()
            await dying.wait_closed()
            async with serving(board, port):
                return (await told).name

    assert asyncio.run(play()) == "proven"


def test_a_board_that_only_dies_in_the_handshake_is_lost(farm: Path) -> None:
    ours = issue(farm, "controller", "controller")

    async def play() -> None:
        dying = await broken_off(asyncio.Event(), times=1)
        port = dying.sockets[0].getsockname()[1]
        async with (
            dying,
            AgentClient(f"127.0.0.1:{port}", "me", ours, patience=IMPATIENT) as client,
        ):
            await client.describe()

    with pytest.raises(AgentLostError, match="went away during the handshake"):
        asyncio.run(play())


class SlowLink(LinkRelay):
    """A link whose second connection, the one after the proof of the board, is silent at first."""

    connections = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.connections == 2:
            self.silence(silent=True)
            asyncio.get_running_loop().call_later(0.6, partial(self.silence, silent=False))
        await super()._accept(reader, writer)


def test_a_board_whose_handshake_takes_a_while_is_asked_once(farm: Path) -> None:
    board, ours = issue(farm, "board-7"), issue(farm, "controller", "controller")

    async def play() -> str:
        link = SlowLink()
        await link.open()
        async with (
            serving(board) as port,
            AgentClient(link.address, "me", ours, patience=PATIENCE) as client,
        ):
            link.target = f"127.0.0.1:{port}"
            await client.acquire(1000)  # a call that is never made again
            name = (await client.describe()).name
        await link.close()
        assert link.connections == 2
        return name

    assert asyncio.run(play()) == "proven"


def shut_out(folder: Path, files: ControllerTlsFiles) -> None:
    der = ssl.PEM_cert_to_DER_cert(files.cert.read_text())
    listed = {"version": 1, "sha256": [hashlib.sha256(der).hexdigest()]}
    (folder / "revoked.json").write_text(json.dumps(listed))


def test_a_board_revoked_while_it_is_connected_is_not_called_again(
    farm: Path, tmp_path: Path
) -> None:
    shutil.copytree(farm, tmp_path / "mine")
    mine = tmp_path / "mine"
    board, ours = issue(mine, "board-7"), issue(mine, "controller", "controller")

    async def play() -> None:
        async with (
            serving(board) as port,
            AgentClient(f"127.0.0.1:{port}", "me", ours, patience=PATIENCE) as client,
        ):
            assert (await client.describe()).name == "proven"
            shut_out(mine, board)
            with pytest.raises(CertificateError, match="is revoked"):
                await client.describe()

    asyncio.run(play())


def test_new_certificates_of_either_side_are_taken_up_without_a_restart(
    farm: Path, tmp_path: Path
) -> None:
    shutil.copytree(farm, tmp_path / "mine")
    mine = tmp_path / "mine"
    ours = issue(mine, "controller", "controller")

    async def play() -> None:
        port = free_port()
        async with serving(issue(mine, "board-7"), port):
            client = AgentClient(f"127.0.0.1:{port}", "me", ours, patience=PATIENCE)
            assert (await client.describe()).name == "proven"
        issue(mine, "controller", "controller")
        async with serving(issue(mine, "board-7"), port), client:
            assert (await client.describe()).name == "proven"

    asyncio.run(play())


@pytest.mark.parametrize("address", ["192.0.2.7:50051", "board-7:50051", "[2001:db8::7]:50051"])
def test_a_board_beyond_loopback_is_not_spoken_to_in_the_clear(address: str) -> None:
    async def call(*, insecure: bool) -> None:
        patience = Patience(call_ms=1)
        async with AgentClient(address, "me", patience=patience, insecure=insecure) as client:
            await client.describe()

    with pytest.raises(CertificateError, match=r"beyond loopback.*latfarm certs init"):
        asyncio.run(call(insecure=False))
    with pytest.raises(AgentLostError):
        asyncio.run(call(insecure=True))


def test_the_homes_own_files_are_used_where_nothing_else_is_said(farm: Path) -> None:
    assert home_files(farm) is None
    for name in ("ca.crt", "controller.crt", "controller.key"):
        (farm / name).write_text("")
    found = home_files(farm)
    assert found is not None
    assert found.files.revoked == farm / "revoked.json"
