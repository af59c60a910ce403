"""Reads the console blocks of a tutorial, and compares what commands print with what it shows.

A console block holds commands, which begin with `$ `, further lines of a command, which begin with
`> `, and what the command prints. Of what is shown, `...` stands for anything: alone in a line for
any number of lines, within a line for any text. A number with a decimal point stands for any such
number. All else must be printed as it is shown, apart from the number of spaces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ANYTHING = "..."
"""Stands in a page for anything that a command prints."""

ASKS_FOR_CODE = "echo $?"
"""The command that shows the exit code of the one before it."""

_NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")


class PageError(ValueError):
    """A console block cannot be understood."""


@dataclass(frozen=True)
class Step:
    """A command of a page.

    Attributes:
        command: the command, which may have several lines.
        shown: the lines that the page shows below it.
        line: the number of its line in the page, from 1.
        code: the exit code that the page shows with the next command; 0 where it shows none.
    """

    command: str
    shown: tuple[str, ...]
    line: int
    code: int = 0


def steps_of(page: Path) -> list[Step]:
    """The commands of a page's console blocks, in their order.

    Raises:
        PageError: a block begins with output, or is not closed.
    """
    steps: list[Step] = []
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            inside = line == "```console"
            begins = inside
        elif not inside:
            continue
        elif line.startswith("$ "):
            steps.append(Step(line[2:], (), number))
            begins = False
        elif begins:
            raise PageError(f"{page.name}:{number}: a console block begins with a command")
        elif line.startswith(">") and not steps[-1].shown:
            last = steps.pop()
            steps.append(Step(f"{last.command}\n{line[2:]}", (), last.line))
        else:
            last = steps.pop()
            steps.append(Step(last.command, (*last.shown, line), last.line))
    if inside:
        raise PageError(f"{page.name}: a console block is not closed")
    return [_with_code(step, following) for step, following in zip_longest(steps, steps[1:])]


def _with_code(step: Step, following: Step | None) -> Step:
    if following is None or following.command != ASKS_FOR_CODE:
        return step
    return Step(step.command, step.shown, step.line, int(following.shown[0]))


def agrees(shown: Sequence[str], printed: str) -> bool:
    """Whether a command printed what its page shows."""
    lines = [_plain(line) for line in printed.splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    parts: list[list[re.Pattern[str]]] = [[]]
    for line in shown:
        if line.strip() == ANYTHING:
            parts.append([])
        else:
            parts[-1].append(_pattern(line))
    first, *others = parts
    if not _stands_at(first, lines, 0):
        return False
    place = len(first)
    if not others:
        return place == len(lines)
    *between, last = others
    for part in between:  # the earliest place leaves most lines for what follows
        found = next((i for i in range(place, len(lines) + 1) if _stands_at(part, lines, i)), None)
        if found is None:
            return False
        place = found + len(part)
    return len(lines) - len(last) >= place and _stands_at(last, lines, len(lines) - len(last))


def _stands_at(part: Sequence[re.Pattern[str]], lines: Sequence[str], place: int) -> bool:
    there = lines[place : place + len(part)]
    return len(there) == len(part) and all(
        pattern.fullmatch(line) for pattern, line in zip(part, there, strict=True)
    )


def _plain(line: str) -> str:
    return " ".join(line.split())


def _pattern(line: str) -> re.Pattern[str]:
    """The lines that a shown line stands for."""
    texts = _plain(line).split(ANYTHING)
    return re.compile(".*".join(_without_numbers(text.strip()) for text in texts))


def _without_numbers(text: str) -> str:
    return _NUMBER.pattern.join(re.escape(part) for part in _NUMBER.split(text))
