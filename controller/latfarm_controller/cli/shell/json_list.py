"""A long list as JSON on standard output: each entry is printed as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from latfarm_controller.cli.shell import output

IN_MEMORY_BYTES = 1 << 20
"""Size of a waiting part from which on it is kept in a temporary file."""
COPIED_CHARACTERS = 1 << 16
"""Number of characters of a waiting part that are printed at a time."""
_INDENT = "\n  "
"""What begins the line of an entry, as `output.json_text` indents a list."""


class JsonList:
    """Prints a list as `output.json_text` does, without holding its entries; see `json_list`.

    Args:
        waiting: a file for each part but the first.
    """

    def __init__(self, waiting: Sequence[IO[str]]) -> None:
        self._waiting = waiting
        self._begun = [False] * (1 + len(waiting))

    def add(self, entry: Any, part: int = 0) -> None:
        """Add an entry at the end of a part."""
        text = output.json_of(entry).replace("\n", _INDENT)  # no string in JSON has a line break
        if part:
            self._waiting[part - 1].write(("," if self._begun[part] else "") + _INDENT + text)
        else:
            print(("," if self._begun[0] else "[") + _INDENT + text, end="")
        self._begun[part] = True

    def end(self) -> None:
        """Print the parts that wait, and close the list."""
        if not self._begun[0]:
            print("[", end="")
        any_yet = self._begun[0]
        for begun, file in zip(self._begun[1:], self._waiting, strict=True):
            if begun and any_yet:
                print(",", end="")
            any_yet = any_yet or begun
            file.seek(0)
            while text := file.read(COPIED_CHARACTERS):
                print(text, end="")
        print("\n]" if any_yet else "]")


@contextmanager
def json_list(parts: int = 1) -> Iterator[JsonList]:
    """A list that is printed while it grows.

    It consists of parts, which grow side by side and follow one another in the list. The first part
    is printed at once, and each of the others waits in a temporary file until the part before has
    ended. Without `JsonList.end`, for example after an interruption, the list lacks its closing
    bracket, so that nobody takes it for a whole one.

    Args:
        parts: number of parts.
    """
    with ExitStack() as stack:
        files = [
            stack.enter_context(
                SpooledTemporaryFile(IN_MEMORY_BYTES, "w+", encoding="ascii", newline="")
            )
            for _ in range(1, parts)
        ]
        yield JsonList(files)
