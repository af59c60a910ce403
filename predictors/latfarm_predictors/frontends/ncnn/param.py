"""Read the text of an ncnn network (`.param`) into its layers, without their meaning.

The format is described in ncnn's wiki, "param and model file structure": a magic number, a line
with the numbers of layers and blobs, then a line for each layer: its type, its name, the numbers
of its inputs and outputs, their names, and parameters as `key=value`. A key of -23300 and below
stands for the list with the key `-23300 - key`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from latfarm_predictors.errors import ModelFileError

MAGIC = "7767517"
"""The first line of every text in this format."""
LARGEST_FILE_BYTES = 16 << 20
"""Largest file that is read, in bytes; the largest of ncnn's own networks has 40 KB."""
MOST_LAYERS = 100_000
"""Largest number of layers that is read."""
FIRST_LIST = -23300
"""The key of the list with the number 0; the list with the number n has the key `-23300 - n`."""

Scalar = int | float


@dataclass(frozen=True, slots=True)
class NcnnLayer:
    """A layer of an ncnn network.

    Attributes:
        line: its line in the file.
        kind: its type, for example `Convolution`.
        name: its name.
        inputs: names of the blobs that it reads.
        outputs: names of the blobs that it makes.
        numbers: parameters with one value, by their key.
        lists: parameters with several values, by their key.
    """

    line: int
    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    numbers: dict[int, Scalar] = field(default_factory=dict)
    lists: dict[int, tuple[Scalar, ...]] = field(default_factory=dict)

    def whole(self, key: int, default: int = 0) -> int:
        """A parameter that is a whole number; `default` where it is not given."""
        return int(self.numbers.get(key, default))

    def real(self, key: int, default: float = 0.0) -> float:
        """A parameter that is a number; `default` where it is not given."""
        return float(self.numbers.get(key, default))

    def wholes(self, key: int) -> tuple[int, ...]:
        """A list of whole numbers; empty where it is not given."""
        return tuple(int(value) for value in self.lists.get(key, ()))


def read_layers(path: Path) -> list[NcnnLayer]:
    """The layers of a file, in order.

    Raises:
        ModelFileError: the file cannot be read, or is no ncnn network; the message names the line.
    """
    try:
        size_bytes = path.stat().st_size
        if size_bytes > LARGEST_FILE_BYTES:
            raise ModelFileError(
                f"{path}: the file has {size_bytes} bytes; {LARGEST_FILE_BYTES} are the most"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path}: the file cannot be read: {reason}") from error
    try:
        return parse_layers(text)
    except ValueError as error:
        raise ModelFileError(f"{path}: {error}") from error


def parse_layers(text: str) -> list[NcnnLayer]:
    """The layers in a text.

    Raises:
        ValueError: the text is no ncnn network; the message names the line.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    filled = [(number, words) for number, words in lines if words]
    if not filled or filled[0][1] != [MAGIC]:
        raise ValueError(f"line 1: this is no ncnn network, which begins with {MAGIC}")
    if len(filled) < 2 or len(filled[1][1]) != 2 or not all(w.isdecimal() for w in filled[1][1]):
        raise ValueError("line 2: the numbers of layers and blobs are missing")
    told = int(filled[1][1][0])
    if told > MOST_LAYERS or len(filled) - 2 > MOST_LAYERS:
        raise ValueError(f"line 2: there are {told} layers; {MOST_LAYERS} are the most")
    if told > len(filled) - 2:
        raise ValueError(f"line 2: {told} layers are announced, and {len(filled) - 2} are there")
    # ncnn reads no more layers than are announced, so that more lines say nothing.
    return [_layer(number, words) for number, words in filled[2 : 2 + told]]


def _layer(line: int, words: Sequence[str]) -> NcnnLayer:
    """The layer in the words of a line."""
    if len(words) < 4 or not words[2].isdecimal() or not words[3].isdecimal():
        raise ValueError(f"line {line}: type, name and the numbers of inputs and outputs are due")
    first, last = 4 + int(words[2]), 4 + int(words[2]) + int(words[3])
    if len(words) < last:
        raise ValueError(f"line {line}: {words[1]} has fewer inputs and outputs than it tells")
    found = NcnnLayer(line, words[0], words[1], tuple(words[4:first]), tuple(words[first:last]))
    for word in words[last:]:
        key, _, value = word.partition("=")
        try:
            _add(found, int(key), value)
        except (ValueError, OverflowError) as error:
            raise ValueError(f"line {line}: {word[:40]!r} is no parameter") from error
    return found


def _add(layer: NcnnLayer, key: int, text: str) -> None:
    """Add the parameter `key` with the value that a text tells."""
    if key > FIRST_LIST:
        layer.numbers[key] = _scalar(text)
        return
    count, *values = text.split(",")
    if int(count) != len(values):
        raise ValueError(text)
    layer.lists[FIRST_LIST - key] = tuple(_scalar(value) for value in values)


def _scalar(text: str) -> Scalar:
    """A number; those with a point or an exponent are real ones."""
    return float(text) if any(mark in text for mark in ".eE") else int(text)
