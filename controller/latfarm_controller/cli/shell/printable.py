"""The one door of all output: what a terminal would obey is shown, and not obeyed.

Names in models, bundles and stores come from anywhere. An escape sequence in one of them could
change the colours of a terminal, its title, or lines that were printed before. So control
characters are written as `\\x1b`, and so are characters that change the direction of text. Colours
of our own pass, because they are no part of the text.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

_KEPT = frozenset("\n\t")
"""Control characters that lay out our own text."""


def printable(text: str) -> str:
    """The text, with `\\x..` or `\\u....` for each character that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in _KEPT else _shown(char) for char in text)


def _shown(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class PrintableStream(io.TextIOBase):
    """A text stream that writes only printable text to another one; all else is the other's."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.raw_stream = stream
        """The other stream, for whoever has made its text printable, and adds colours."""

    def write(self, text: str) -> int:
        """Write a text; returns its length."""
        self.raw_stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flush the other stream."""
        self.raw_stream.flush()

    def writable(self) -> bool:
        """Whether the stream can be written."""
        return True

    def isatty(self) -> bool:
        """Whether the other stream is a terminal."""
        return self.raw_stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the other stream."""
        return self.raw_stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class has a plain attribute
        """The encoding of the other stream."""
        return self.raw_stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        """What the other stream does with characters that it cannot encode."""
        return self.raw_stream.errors

    def close(self) -> None:
        """Leave the other stream open."""

    def __getattr__(self, name: str) -> Any:
        """Any other attribute of the other stream, such as its buffer."""
        return getattr(self.__dict__["raw_stream"], name)


@contextmanager
def printable_streams() -> Iterator[None]:
    """Write only printable text to standard output and standard error during the block.

    What the encoding of the terminal cannot express, such as ± in a terminal of ASCII alone, is
    written as its number from then on, instead of ending the command.
    """
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if getattr(sys, "stdout", None) is not None:  # it may have been closed from the start
        sys.stdout = cast("TextIO", PrintableStream(sys.stdout))
    sys.stderr = cast("TextIO", PrintableStream(sys.stderr))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def console(*, stderr: bool = False, **options: Any) -> Console:
    """A console of rich whose texts are printable, and whose colours pass the door.

    Args:
        stderr: write to standard error instead of standard output.
        options: further arguments of rich's `Console`.
    """
    from rich.console import Console
    from rich.segment import Segment

    class PrintableConsole(Console):
        """Makes the text of each segment printable; codes of its own are no such text."""

        def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
            """The segments of something that is printed."""
            for segment in super().render(*args, **kwargs):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment(printable(segment.text), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    raw = stream.raw_stream if isinstance(stream, PrintableStream) else stream
    return PrintableConsole(file=raw, highlight=False, markup=False, emoji=False, **options)
