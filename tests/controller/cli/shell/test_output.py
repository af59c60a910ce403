"""What reaches the terminal."""

from __future__ import annotations

import io
import json
import logging
import sys
from functools import partial

import pytest
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.printable import console, printable, printable_streams

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


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns."""
    terminal = partial(console, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "out", terminal)
    monkeypatch.setenv("TERM", "xterm")


HEADER = [
    *("graph", "kernel", "platform", "purpose", "measured at"),
    *("corrected, ms", "MAD, ms", "outcome"),
]
ROW = [
    *("493ce224dc2f", "Conv+Relu", "toy-fp32", "kernel", "2026-11-22 23:02"),
    *("0.1287", "0.0011", "ok"),
]


def test_numbers_are_never_broken_in_a_narrow_terminal(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "guessed from kernels of the same family that are much larger than this one"
    output.table("", ["kernel", "ms", "interval", "source"], [["Conv", "0.1287", "1 to 2", source]])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[1].split()[:3] == ["Conv", "0.1287", "1"]
    assert len(lines) > 2, "only the long text takes several lines"


def test_a_table_that_does_not_fit_is_printed_row_by_row(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    output.table("newest first", HEADER, [ROW, [*ROW[:-1], ""]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "newest first"
    assert lines[1] == "graph          493ce224dc2f"
    assert lines[6] == "corrected, ms  0.1287"
    assert lines[9] == "", "an empty line between two rows"
    assert len(lines) == 1 + 8 + 1 + 7, "empty cells are left out"


def test_what_is_no_terminal_has_room_for_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    output.table("", HEADER * 3, [ROW * 3])
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == " ".join(HEADER * 3).split()
    assert row.split() == " ".join(ROW * 3).split()


@pytest.mark.parametrize("text", [":family:fc", "fallback:family:fc", "[bold]x[/bold]", ":smile:"])
def test_texts_that_look_like_emoji_or_markup_stay_as_they_are(
    text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output.table(text, ["source"], [[text]])
    output.out().print(text)
    output.err().print(text)
    told = capsys.readouterr()
    assert [line.strip() for line in told.out.splitlines()] == [text, "source", text, text]
    assert told.err == f"{text}\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_an_empty_table_tells_a_terminal_what_makes_rows(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(output, "out", lambda: console(width=80, force_terminal=terminal))
    output.table("", ["board"], [], empty="no board yet; latfarm boards add adds one")
    printed = capsys.readouterr().out
    assert ("no board yet" in printed) == terminal
    assert ("board\n" in printed) != terminal, "programs find the same titles as ever"


def test_columns_move_together_before_a_table_is_given_up(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["network", "as timed, ms", "corrected, ms", "predicted, ms", "error"]
    header += ["90 % interval, ms", "inside?"]
    row = ["squeezenet_old", "366.38", "366.38 ±12.34", "350.12", "-12.1 %"]
    row += ["314.50 to 413.34", "yes"]
    output.table("", header, [row])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].split() == " ".join(row).split()


def test_a_terminal_of_ascii_alone_shows_numbers_of_other_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    with printable_streams():
        output.table("", ["network", "ms"], [["Gerät", "1.25 ±0.02"]])
        print("Gerät")
        sys.stdout.flush()
    shown = raw.getvalue().decode("ascii")
    assert "Ger\\xe4t" in shown
    assert "1.25 \\xb10.02" in shown


def test_longer_names_are_broken_before_a_table_is_given_up(
    narrow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    header = ["layer", "op", "output", "MMACs", "params", "KiB", "intensity"]
    row = ["features.0.conv.relu.bn1", "BatchNormalization", "1x1280x112x112", "21.291"]
    output.table("", header, [[*row, "1792", "3675.2", "5.66"]])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert lines[0].split() == header
    assert lines[1].split()[-4:] == ["21.291", "1792", "3675.2", "5.66"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_terminal_gets_warnings_for_people_and_a_service_gets_json(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    output.set_verbosity(0)
    logging.getLogger("latfarm_controller").warning("Ray is away")
    told = stream.getvalue()
    if terminal:
        assert told == "latfarm: warning: Ray is away\n"
    else:
        assert json.loads(told)["message"] == "Ray is away"
