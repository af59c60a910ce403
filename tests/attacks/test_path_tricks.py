"""Names that are paths: none of them leads a board or a controller to another file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from latfarm_controller.agents import wire
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.errors import BadAnswerError, ControllerError, UsageError
from latfarm_controller.training.bundles import next_path
from latfarm_protos.trust.identity import AGENT
from latfarm_protos.v1 import agent_pb2 as pb

from tests.agent.service.calls import drain
from tests.agent.service.conftest import Client, Farm

MODEL = b"the model"
SHA = "0" * 64
TRICKS = [
    *("..", ".", "/", "../../escaped", "/tmp/escaped", "a/../../escaped", "./escaped", "~/escaped"),
    *("escaped\0.onnx", "%2e%2e/escaped", "..\\..\\escaped", "C:\\escaped", "//escaped"),
    *("..%00/escaped", "\u2025/escaped", "\uff0e\uff0e/escaped", "." * 255, "a/" * 100),
]


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    (tmp_path / "deep" / "inside").mkdir(parents=True)
    started = Farm(tmp_path / "deep" / "inside")
    yield started
    started.close()


@pytest.fixture
def client(farm: Farm) -> Client:
    return farm.client(farm.start())


@contextmanager
def nothing_outside(tmp_path: Path, *inside: Path) -> Iterator[None]:
    """Nothing may appear beside these folders in the block, and nothing be named after a trick."""

    def outside() -> set[Path]:
        found = set(tmp_path.rglob("*"))
        return {path for path in found if not any(path.is_relative_to(each) for each in inside)}

    before = outside()
    yield
    assert outside() == before
    assert not [path for path in tmp_path.rglob("*") if "escaped" in path.name]
    assert not Path("/tmp/escaped").exists()


def refused(call: Callable[..., Any], *arguments: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        drain(call(*arguments))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value


@pytest.mark.parametrize("trick", [*TRICKS, "", SHA[:-1] + "\n", "A" * 64, "\uff10" * 64])
def test_a_model_is_named_by_its_hash_alone(
    farm: Farm, client: Client, tmp_path: Path, trick: str
) -> None:
    token = client.acquire()
    with nothing_outside(tmp_path, farm.state_dir):
        refused(client.blob, trick)
        claim = pb.UploadBlobRequest(token=token, sha256=trick, size_bytes=1, data=b"x")
        refused(client.send, [claim])
        refused(client.measure, token, trick)


@pytest.mark.parametrize("trick", TRICKS)
def test_a_companion_has_a_plain_name(
    farm: Farm, client: Client, tmp_path: Path, trick: str
) -> None:
    token = client.acquire()
    sha256 = client.upload(token, MODEL)
    with nothing_outside(tmp_path, farm.state_dir):
        for companions in ({trick: sha256}, {"weights": trick}):
            request = client.request(token, sha256)
            request.companions.update(companions)
            refused(client.stub.Measure, request)


@pytest.mark.parametrize("trick", [trick for trick in TRICKS if trick.isascii()])
def test_a_result_is_kept_under_no_name_that_somebody_chose(
    farm: Farm, client: Client, tmp_path: Path, trick: str
) -> None:
    token = client.acquire()
    sha256 = client.upload(token, MODEL)
    with nothing_outside(tmp_path, farm.state_dir):
        if trick.isprintable() and len(trick) <= 128:
            assert client.result(token, sha256, trick).outcome == "ok"
            assert [result.request_id for result in client.spooled()] == [trick]
        else:
            refused(client.measure, token, sha256, trick)
    spool = farm.state_dir / "spool"
    assert {path.parent for path in spool.rglob("*.result")} <= {spool}


def test_a_link_in_the_place_of_a_model_is_no_model(farm: Farm, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(MODEL)
    blobs = farm.state_dir / "blobs"
    (blobs / "partial").mkdir(parents=True)
    (blobs / SHA).symlink_to(secret)
    (blobs / ("1" * 64)).mkdir()
    os.mkfifo(blobs / ("2" * 64))
    client = farm.client(farm.start())
    for digit in "012":
        assert not client.blob(digit * 64).complete
    assert secret.read_bytes() == MODEL


@pytest.mark.parametrize("trick", TRICKS)
def test_a_platform_of_a_board_has_no_path_as_its_name(tmp_path: Path, trick: str) -> None:
    with pytest.raises(BadAnswerError):
        wire.platform_from_pb(pb.Platform(name=trick))
    with pytest.raises(UsageError, match="not a valid name"):
        next_path(tmp_path, trick)


@pytest.mark.parametrize("trick", [*TRICKS, ""])
def test_boards_and_certificates_have_plain_names(tmp_path: Path, trick: str) -> None:
    with pytest.raises(ControllerError):
        BoardEntry(trick, "127.0.0.1:1")
    folder = tmp_path / "tls"
    with nothing_outside(tmp_path), pytest.raises(UsageError, match="letters, digits"):
        Authority(folder).issue(trick, AGENT, ["127.0.0.1"])
