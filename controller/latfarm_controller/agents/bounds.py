"""The bounds of what a board may say, and the checks of single fields.

A board is not believed: its agent may be broken, or somebody else may speak in its place. `wire.py`
and `results.py` turn the messages of boards into the controller's own types, and pass every field
through one of these checks. A name that does not fit is refused, because a changed name would be
another one. A text for people is made printable and is cut.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from latfarm_controller.errors import BadAnswerError

NAME_LETTERS = 200
"""Letters of the longest name: of a board, a platform, a fingerprint, a format, an error code."""
TEXT_BYTES = 4096
"""UTF-8 bytes of the longest text for people, for example of an error; longer ones are cut."""
VALUE_BYTES = 1024
"""UTF-8 bytes of the longest value among conditions, settings and hardware; longer ones are cut."""
CUT = " [...]"
"""The mark at the end of a text that was cut."""
MOST_RUNTIMES = 64
"""Runtimes that one board may name."""
MOST_PLATFORMS = 500
"""Platforms that one board may offer."""
MOST_CAPABILITIES = 64
"""Capabilities that one agent may name."""
MOST_PAIRS = 256
"""Conditions, settings of a platform, or facts about the hardware."""
MOST_SESSIONS = 10_000
"""Sessions of one measurement."""
MOST_RUNS = 1_000_000
"""Runs of all sessions of one measurement; the tier "publish" has 500,000 at most."""
MOST_LAYERS = 20_000
"""Layers of one profile; the largest networks of the zoo have some thousand nodes."""
MOST_MS = 1e10
"""The longest time that a board may report, in milliseconds: 116 days."""
LEAST_RUN_MS = 1e-9
"""The shortest run that a board may report, in milliseconds; no clock resolves it."""
MOST_FACTOR = 1e6
"""The largest slowdown of a core."""
MOST_AMOUNT = 1e15
"""The largest energy in mJ, and the largest power in mW."""
MOST_S = 253_402_300_799.0
"""The latest Unix time: the end of the year 9999, where Python's dates end."""
INT32 = 2**31 - 1
"""The largest number in an INTEGER column of the store."""
INT64 = 2**63 - 1
"""The largest number in a BIGINT column of the store."""


def name(value: str, what: str, *, empty: bool = False, longest: int = NAME_LETTERS) -> str:
    """Return a name that programs compare: one line of printable letters.

    Args:
        value: the name, as the board gave it.
        what: what it names, for the message.
        empty: whether there may be none.
        longest: the most letters.

    Raises:
        BadAnswerError: it is too long, is empty and must not be, or has unprintable letters.
    """
    if not value and not empty:
        raise BadAnswerError(f"the board gave no {what}")
    if len(value) > longest:
        raise BadAnswerError(f"the board gave a {what} of {len(value)} letters, {longest} at most")
    if not value.isprintable():
        raise BadAnswerError(f"the board gave a {what} that is not printable: {value!a}")
    return value


def platform_name(value: str) -> str:
    """Return the name of a platform, which also becomes the name of a folder for its bundles.

    Raises:
        BadAnswerError: as `name`; or the name leads to another folder, or to a hidden one.
    """
    what = "name of a platform"
    if "/" in value or "\\" in value or value.startswith("."):
        raise BadAnswerError(f"the board gave a {what} that is a path: {value[:NAME_LETTERS]!a}")
    return name(value, what)


def text(value: str, most_bytes: int = TEXT_BYTES) -> str:
    """A text for people in one printable line, cut to `most_bytes` with a mark at its end.

    Line breaks become " / ", tabs become spaces, and other characters that are not printable, such
    as those of escape sequences, become backslash escapes.
    """
    begin = value[: most_bytes + 1]  # a letter has one byte at least
    if not begin.isprintable():
        lines = (line.replace("\t", " ").strip() for line in begin.splitlines())
        joined = " / ".join(line for line in lines if line)
        begin = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in joined)
    data = begin.encode()
    if len(data) <= most_bytes and len(value) <= most_bytes:
        return begin
    return data[: most_bytes - len(CUT)].decode(errors="ignore") + CUT


def texts(values: Mapping[str, str], what: str) -> dict[str, str]:
    """Named values for people; names are checked by `name`, values are made printable and cut.

    Raises:
        BadAnswerError: there are too many, or a name is not printable.
    """
    count(values, MOST_PAIRS, what)
    return {
        name(key, f"name among its {what}"): text(value, VALUE_BYTES)
        for key, value in values.items()
    }


def whole(value: int, what: str, most: int = INT64) -> int:
    """A whole number from 0 to `most`.

    Raises:
        BadAnswerError: it is out of this range.
    """
    if not 0 <= value <= most:
        raise BadAnswerError(f"the board reported {value} as {what}, {most} at most")
    return int(value)


def real(value: float, what: str, *, least: float = 0.0, most: float = MOST_MS) -> float:
    """A finite number from `least` to `most`.

    Raises:
        BadAnswerError: it is out of this range, infinite or not a number.
    """
    if not least <= value <= most:  # a comparison with NaN is false
        raise BadAnswerError(f"the board reported an impossible {what}: {value:g}")
    return float(value)


def reals(
    values: Iterable[float], what: str, *, least: float = 0.0, most: float = MOST_MS
) -> tuple[float, ...]:
    """Finite numbers from `least` to `most`.

    Raises:
        BadAnswerError: one of them is out of this range, infinite or not a number.
    """
    found = tuple(values)
    if not all(least <= value <= most for value in found):
        wrong = next(value for value in found if not least <= value <= most)
        raise BadAnswerError(f"the board reported an impossible {what}: {wrong:g}")
    return found


def count(values: Collection[object], most: int, what: str) -> None:
    """Check the number of elements.

    Raises:
        BadAnswerError: there are more than `most`.
    """
    at_most(len(values), most, what)


def at_most(number: int, most: int, what: str) -> None:
    """Check a number of elements that was counted elsewhere.

    Raises:
        BadAnswerError: there are more than `most`.
    """
    if number > most:
        raise BadAnswerError(f"the board gave {number} {what}, {most} at most")


def finite(*values: float) -> bool:
    """Whether all numbers are finite, not negative and at most `MOST_AMOUNT`."""
    return all(math.isfinite(value) and 0 <= value <= MOST_AMOUNT for value in values)
