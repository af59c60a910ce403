"""What reaches the terminal."""

from __future__ import annotations

import pytest
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.printable import printable

HOSTILE = "a\x1b[2J\x1b]0;owned\x07\x9b31m\u202eb\nc"
SHOWN = ("a\\x1b[2J", "\\x1b]0;owned", "\\x07", "\\x9b31m", "\\u202eb")


def test_a_table_shows_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("", ["board", "detail"], [["toy", HOSTILE]])
    printed = capsys.readouterr().out
    assert all(text in printed for text in SHOWN)
    assert printed.replace("\n", "").isprintable()


def test_an_error_shows_no_escape_sequence(capsys: pytest.CaptureFixture[str]) -> None:
    output.error(HOSTILE)
    printed = capsys.readouterr().err
    assert all(text in printed for text in SHOWN)
    assert printed.rstrip("\n").isprintable()


def test_sound_texts_stay_as_they_are() -> None:
    assert printable("3.1 ms ± 2 %\nüber") == "3.1 ms ± 2 %\nüber"
