"""What somebody put into models and into the home ends in one line, and never on the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import onnx
import pytest
from latfarm_controller.cli.main import run
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.printable import PrintableStream, printable, printable_streams
from latfarm_controller.store.base import BoardEvent, CampaignRecord
from latfarm_controller.store.duckdb import DuckDBStore
from onnx import TensorProto, helper

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe\r"
"""Sets the title of a terminal, clears it, colours it, turns text around, and goes back."""
SHOWN = "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m\\u202egnp.exe\\x0d"
DEEP = 200_000
"""Levels of nesting: more than any parser follows."""

Shell = Callable[..., str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("LATFARM_HOME", str(folder))
    monkeypatch.setenv("LATFARM_LOCAL_AGENT", "0")
    before = os.umask(0o077)  # so that nothing in the home has to be put right first
    yield folder
    os.umask(before)


@pytest.fixture
def refused(home: Path, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command that must fail in one line; returns the line."""

    def call(*words: str) -> str:
        assert run(list(words)) in (1, 2)
        told = capfd.readouterr()
        assert told.out == ""
        (line,) = told.err.splitlines()
        assert line.startswith("latfarm: ")
        assert len(line) < 1000
        return line

    return call


def model(path: Path) -> Path:
    info = helper.make_tensor_value_info
    node = helper.make_node("Relu", [EVIL], ["y"], name=EVIL)
    graph = helper.make_graph(
        [node],
        EVIL,
        [info(EVIL, TensorProto.FLOAT, (1, 8))],
        [info("y", TensorProto.FLOAT, (1, 8))],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)]), path)
    return path


@pytest.mark.parametrize("command", ["show", "hash"])
def test_control_characters_of_a_model_are_shown_and_not_obeyed(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    path = str(model(tmp_path / "evil.onnx"))
    assert run(["graph", command, path]) == 0
    told = capfd.readouterr()
    for text in (told.out, told.err):
        assert not {char for char in text if not char.isprintable()} - {"\n"}
    if command == "show":
        # rich leaves out some control characters, such as that of a bell, by itself.
        assert "input \\x1b]0;owned\\x1b[2J\\x9b31m\\u202egnp.exe" in told.out


def test_colours_of_our_own_pass_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with printable_streams():
        print(f"plain {EVIL}")
        output.out().print(f"bold {EVIL}", style="bold")
        output.table(EVIL, ["name", EVIL], [["a", EVIL]])
        assert isinstance(sys.stdout, PrintableStream)
        assert sys.stdout.encoding == terminal.encoding
    text = terminal.getvalue()
    assert f"plain {SHOWN}" in text
    assert "\x1b[1m" in text
    for part in ("\x1b]0", "\x07", "\x1b[2J", "\x9b", "\u202e", "\r"):
        assert part not in text


def test_text_that_a_terminal_shows_stays_as_it_is() -> None:
    kept = "ResNet-18 (\u00b5s)\n\tline \u4e2d \U0001f600"
    assert printable(kept) == kept
    assert printable("\U000e0041\u2028\x7f") == "\\U000e0041\\u2028\\x7f"


BOARDS = [
    '{"version": 1, "boards": ' + '{"a":' * DEEP,
    "[" * DEEP,
    "1" * 5000,
    '{"version": 1, "boards": {"a": {"address": ' + "[" * 500 + "]" * 500 + "}}}",
    '{"version": 1, "boards": {"a": {"address": {"b": "c"}}}}',
    '{"version": 1, "boards": {"a": {"address": "h:1", "tls": [1]}}}',
    '{"version": 1, "boards": {"a": {"address": "h:1", "insecure": [1]}}}',
    json.dumps({"version": 1, "boards": {"a": {"address": "h:1", "tls": dict.fromkeys(
        ("ca", "cert", "key"), "a\0b")}}}),
    json.dumps({"version": 1, "boards": {EVIL: {"address": "h:1"}}}),
    "\ufeff{",
]  # fmt: skip


@pytest.mark.parametrize("text", BOARDS, ids=range(len(BOARDS)))
def test_a_hostile_inventory_is_one_line(home: Path, refused: Shell, text: str) -> None:
    (home / "boards.json").write_text(text, encoding="utf-8")
    line = refused("boards", "remove", "toy")
    assert "boards.json" in line
    assert line.isprintable()


SETTINGS = [
    "lease_ms = " + "[" * DEEP,
    "lease_ms = " + "{a=" * 5000,
    "lease_ms = " + "9" * 5000,
    "lease_ms = " + "[" * 100 + "]" * 100,
    'lease_ms = "' + "x" * 100_000 + '"',
    "[lease_ms]\na.b.c = 1",
    '"\\u001b[31m" = 1',
    "lease_ms = 1979-05-27",
]


@pytest.mark.parametrize("text", SETTINGS, ids=range(len(SETTINGS)))
def test_hostile_settings_are_one_line(home: Path, refused: Shell, text: str) -> None:
    (home / "latfarm.toml").write_text(text, encoding="utf-8")
    line = refused("boards", "remove", "toy")
    assert "latfarm.toml" in line
    assert line.isprintable()


@pytest.mark.parametrize(
    "name", ["latfarm.toml", "boards.json", "store.duckdb", "store.duckdb.wal", "controller.lock"]
)
def test_a_fifo_in_the_home_is_refused_and_not_waited_for(
    home: Path, refused: Shell, name: str
) -> None:
    if name.endswith(".wal"):
        DuckDBStore(home / "store.duckdb").close()
    os.mkfifo(home / name, 0o600)
    line = refused(*(("boards", "remove", "a") if "boards" in name else ("boards", "events")))
    assert str(home) in line


def test_a_store_that_is_a_folder_or_a_device_is_refused(home: Path, refused: Shell) -> None:
    (home / "store.duckdb").mkdir()
    assert "is no regular file" in refused("boards", "events")


def damage(home: Path, statement: str) -> None:
    with duckdb.connect(str(home / "store.duckdb")) as connection:
        connection.execute(statement)


VALUES = ["{", "[1, 2]", "5", "null", '"a"', "[" * 50_000]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("column", ["config", "outcome", "details"])
def test_bad_json_in_a_row_of_the_store_is_one_line(
    home: Path, refused: Shell, value: str, column: str
) -> None:
    store = DuckDBStore(home / "store.duckdb")
    store.put_campaign(CampaignRecord("c1", "c1", "kernels", "p", started_at_s=1.0))
    store.add_board_event(BoardEvent("toy", "id", "drained", "r", "me", 1.0))
    store.close()
    table = "board_events" if column == "details" else "campaigns"
    damage(home, f"UPDATE {table} SET {column} = '{value}'")
    command = ("boards", "events") if column == "details" else ("campaign", "show", "c1")
    line = refused(*command)
    assert f"{home / 'store.duckdb'}: a row is damaged" in line
    assert "move it away" in line
