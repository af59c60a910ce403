"""Messages of the Ray process: what goes in comes out, and nothing else can be made of them."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
from latfarm_controller.agents.board import BoardInfo, PlatformInfo, RuntimeInfo
from latfarm_controller.agents.registry import BoardEntry
from latfarm_controller.agents.tls import ControllerTlsFiles
from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.interfaces import BoardRequest, GraphName, Order, ShardSettings
from latfarm_controller.farm.boards.model_builder import BuiltModel, NotBuilt
from latfarm_controller.farm.boards.shard_events import (
    BoardConnected,
    BoardRestarted,
    BoardUnreachable,
    ShardEvent,
)
from latfarm_controller.farm.processes import codec
from latfarm_controller.farm.processes.child_messages import (
    MESSAGES,
    BuildModels,
    ChildAnswer,
    ChildCall,
    ChildOptions,
    DispatchOrders,
    OpenBoards,
    RestartPart,
    ShardHeard,
    StartShard,
    StoredModel,
)
from latfarm_controller.farm.scheduling.messages import ModelSpec, ResultReceived
from latfarm_predictors.measurement import Measurement, Outcome, ProfiledLayer, Settings

MODEL = ModelSpec("g", "onnx", "fp32")
MEASURED = Measurement(
    "r1",
    "g",
    "p",
    "kernel",
    Outcome.OK,
    latency_ms=0.1,
    session_ms=(0.1, float("inf")),
    layers=(ProfiledLayer("conv", "Conv", 0.1),),
    settings=Settings(sessions=2),
    conditions={"load": "0.1"},
)
TLS = ControllerTlsFiles(Path("/a/ca.crt"), Path("/a/c.crt"), Path("/a/c.key"))
INFO = BoardInfo(
    "b", "b", runtimes=(RuntimeInfo("r", True, platforms=(PlatformInfo("p", "o", "f"),)),)
)
SENT = [
    ChildOptions(Path("/run"), Path("/models"), cpus=2),
    ChildCall(1, 2.5, BuildModels(((MODEL, '{"name": "g"}'),))),
    ChildAnswer(1, (BuiltModel(MODEL, "ab", 3, b"\x00\xff\n"), NotBuilt(MODEL, "no", lost=True))),
    ChildAnswer(2, BuiltModel(MODEL, "ab", 3, StoredModel(Path("/models/ab")))),
    ChildCall(3, 1.0, StartShard(1, ShardSettings("holder"), here=True)),
    ChildCall(4, 1.0, OpenBoards(1, (BoardEntry("b", "192.0.2.7:1", TLS),))),
    ChildCall(
        5,
        1.0,
        DispatchOrders(
            1,
            (
                Order(
                    "b",
                    BoardRequest("r1", "p", "k", Settings(), True, GraphName("g")),
                    "ab",
                    b"",
                    0,
                ),
            ),
        ),
    ),
    ShardHeard(1, (BoardConnected("b", INFO, False), ResultReceived("b", MEASURED, 1.5))),
    ShardHeard(1, (BoardUnreachable("b", "r\udcffson", foreign=True),)),
    ChildCall(6, 1.0, RestartPart(1, "b", "worker")),
    ShardHeard(1, (BoardRestarted("b", "worker", True, "done"),)),
]


@pytest.mark.parametrize("message", SENT, ids=lambda message: type(message).__name__)
def test_what_goes_in_comes_out(message: object) -> None:
    assert codec.loads(codec.dumps(message)) == message


def test_every_message_and_event_can_be_sent() -> None:
    assert {kind.__name__ for kind in (*MESSAGES, *get_args(ShardEvent))} <= codec.CLASSES.keys()


@dataclass
class Stranger:
    """A dataclass that is no part of a message."""

    text: str = ""


@pytest.mark.parametrize("value", [Stranger(), object(), {1}, print, ChildAnswer(1, Stranger())])
def test_nothing_else_can_be_sent(value: object) -> None:
    with pytest.raises(FarmError, match="cannot be sent"):
        codec.dumps(value)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"a": 1}',
        b'["d"]',
        b'["d", "Stranger", ""]',
        b'["d", "Path", "/"]',
        b'["d", "Outcome", "ok"]',
        b'["d", "RayLost"]',
        b'["d", "RayLost", "a", "b"]',
        b'["d", "BoardEntry", "../b", "192.0.2.7:1", null, false, ""]',
        b'["d", ["d"], "a"]',
        b'["e", "RayLost", "a"]',
        b'["e", "Outcome", "perfect"]',
        b'["b", "*"]',
        b'["p", 1]',
        b'["m", 1]',
        b'["x", 1]',
        b"[" * 100_000,
        pickle.dumps(Path("/")),
    ],
    ids=lambda text: text[:20].decode(errors="replace"),
)
def test_what_is_no_message_is_refused(text: bytes) -> None:
    with pytest.raises(FarmError, match="a message cannot be read"):
        codec.loads(text)


def test_text_is_plain_json() -> None:
    assert json.loads(codec.dumps(ChildAnswer(7))) == ["d", "ChildAnswer", 7, None, ""]
