"""The changelog says each thing once, and each of its lines belongs to an entry."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"


def entries(text: str) -> list[str]:
    """The entries of all lists, each as one line; a heading or an empty line ends an entry."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("- "):
            found.append(line[2:])
            inside = True
        elif line.startswith("  ") and inside:
            found[-1] += " " + line.strip()
        else:
            inside = False
            assert not line.startswith(" "), f"this line belongs to no entry: {line}"
    return found


def test_no_entry_and_no_sentence_is_there_twice() -> None:
    told = entries(CHANGELOG.read_text(encoding="utf-8"))
    assert len(told) > 100
    sentences = Counter(
        sentence
        for entry in told
        for sentence in re.split(r"(?<=[.:]) ", entry)
        if len(sentence) > 40
    )
    assert [sentence for sentence, count in sentences.items() if count > 1] == []


def test_no_subject_has_two_entries() -> None:
    told = entries(CHANGELOG.read_text(encoding="utf-8"))
    subjects = Counter(match[1] for entry in told if (match := re.match(r"\*\*(.+?)\*\*", entry)))
    assert [subject for subject, count in subjects.items() if count > 1] == []


def test_every_list_is_in_one_piece() -> None:
    lines = CHANGELOG.read_text(encoding="utf-8").splitlines()
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        assert line or not (before.startswith(("- ", "  ")) and after.startswith("- ")), after
