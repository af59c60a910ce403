"""Both sides prove who they are, with certificates made on the spot."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import grpc
import pytest
from latfarm_controller.agents.client import AgentClient, Patience
from latfarm_controller.agents.tls import TlsFiles
from latfarm_controller.errors import AgentLostError
from latfarm_protos.v1 import agent_pb2 as pb
from latfarm_protos.v1 import agent_pb2_grpc

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
PATIENCE = Patience(call_ms=10_000)
IMPATIENT = Patience(call_ms=500)


class Describing(agent_pb2_grpc.AgentServiceServicer):
    async def Describe(
        self, request: pb.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DescribeResponse:
        return pb.DescribeResponse(board=pb.Board(name="proven"))


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


def authority(folder: Path) -> Path:
    """A new authority's folder, with `ca.pem` and its key."""
    folder.mkdir()
    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    made = ("-keyout", folder / "ca.key", "-out", folder / "ca.pem", "-days", "2")
    openssl(*new, *made, "-subj", "/CN=farm")
    return folder


def issue(ca: Path, name: str) -> TlsFiles:
    """A certificate for `name` under an authority."""
    key, ask, cert = ca / f"{name}.key", ca / f"{name}.csr", ca / f"{name}.pem"
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(*new, "-keyout", key, "-out", ask, "-subj", f"/CN={name}")
    names = ca / f"{name}.ext"
    names.write_text(f"subjectAltName=DNS:{name}\n")
    signer = ("-CA", ca / "ca.pem", "-CAkey", ca / "ca.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", ask, *signer, "-out", cert, "-days", "2", "-extfile", names)
    return TlsFiles(ca / "ca.pem", cert, key, server_name="board-7")


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return authority(tmp_path_factory.mktemp("tls") / "farm")


async def describe(board: TlsFiles, ours: TlsFiles | None, patience: Patience) -> str:
    """The name that a board under `board`'s certificate tells to a client with `ours`."""
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(Describing(), server)
    credentials = grpc.ssl_server_credentials(
        [(board.key.read_bytes(), board.cert.read_bytes())],
        root_certificates=board.ca.read_bytes(),
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        async with AgentClient(f"127.0.0.1:{port}", "me", ours, patience=patience) as client:
            return (await client.describe()).name
    finally:
        await server.stop(None)


def test_both_proven(farm: Path) -> None:
    board, ours = issue(farm, "board-7"), issue(farm, "controller")
    assert asyncio.run(describe(board, ours, PATIENCE)) == "proven"


def test_a_client_without_a_certificate_is_not_served(farm: Path) -> None:
    with pytest.raises(AgentLostError):
        asyncio.run(describe(issue(farm, "board-7"), None, IMPATIENT))


def test_a_board_of_another_name_or_farm_is_not_spoken_to(farm: Path, tmp_path: Path) -> None:
    ours = issue(farm, "controller")
    other = authority(tmp_path / "other")
    for board in (issue(farm, "board-8"), issue(other, "board-7")):
        with pytest.raises(AgentLostError):
            asyncio.run(describe(board, ours, IMPATIENT))
