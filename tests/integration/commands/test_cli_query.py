"""Questions to a running server: measured once, then known, and asked by hash first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_many_questions_are_measured_once_and_then_known(
    farm: Any, models: Callable[..., Path]
) -> None:
    board = farm.board("asked")
    shell = farm.shell("asking", board)
    folder = models(2)
    paths = sorted(folder.iterdir())
    command = ("query", *paths, "-p", farm.platform, "--survey", "--json")
    with shell.start("serve") as serve:
        assert "serves on" in serve.line()
        (folder / "broken.onnx").write_bytes(b"no model")
        first = shell.run("query", folder, *command[3:])
        assert first.code == 2, first
        assert "broken.onnx" in first.err
        assert board.measured == 2
        again = shell.run(*command)
        assert [each["hit"] for each in again.json] == [True, True]
        assert {each["settings"]["tier"] for each in again.json} == {"survey"}
        # One that cannot be answered ends alone.
        mixed = shell.run(*command, "-p", "toy-sim1.1-fp32-1t")
        assert mixed.code == 2, mixed
        assert mixed.err.count(f"did you mean {farm.platform} (it differs in its version)?") == 2
        repeated = shell.run("query", paths[0], *command[3:], "--repeat", "3").json
        assert len(repeated["repeats"]) == 3
        latencies = sorted(each["latency_ms"] for each in repeated["repeats"])
        assert repeated["latency_ms"] == latencies[1]
        assert board.measured == 5
        published = shell.run("query", paths[0], "-p", farm.platform, "--publish", "--json").json
        assert published["hit"] is False
        assert published["settings"]["tier"] == "publish"
        fresh = shell.run(*command[:2], *command[3:], "--refresh").json
        assert fresh["hit"] is False
        assert board.measured == 7
