"""A served farm checks a real board before its first work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_a_board_measures_two_checks_before_the_first_question(
    farm: Any, models: Callable[..., Path]
) -> None:
    board = farm.board("checked")
    shell = farm.shell("checking", board, LATFARM_HEALTH_CHECKS="true")
    (path,) = models(1).iterdir()
    command = ("query", path, "-p", farm.platform, "--survey", "--json")
    with shell.start("serve") as serve:
        assert "serves on" in serve.line()
        assert shell.run(*command).json["hit"] is False
        assert board.measured == 3, "one operator, its sentinel, and the question"
        assert shell.run(*command, "--refresh").json["hit"] is False
        assert board.measured == 4, "it is checked once"
        (listed,) = shell.run("boards", "--json").json
        assert (listed["standing"], listed["detail"]) == ("working", "")
        events = shell.run("boards", "events", "--json").json
        assert [event["event"] for event in events] == ["id_pinned"]
        stored = shell.run("results", "--limit", "0", "--json").json
        assert stored
        assert "health" not in {each["purpose"] for each in stored}
