"""Breaks TFLite models at random, in the same way for the same seed.

Part of the damage ignores the format: changed bytes, truncation, moved pieces. The other part knows
the format: it finds the fields, offsets, lengths, shapes, indices, codes and constants of a file
and replaces them by values that often cause errors.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from typing import Callable, Sequence

from latfarm_agent.runtimes.flatbuffer import VECTORS, Flatbuffer
from latfarm_agent.runtimes.tflite_format import schema

_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"), 0.05)
_INTS = (-1, 0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 127, 255, 256, 1000, 4096, 65535, 65536, 1 << 20)
_EDGES = (-(1 << 31), -(1 << 31) + 1, (1 << 31) - 1, 1 << 30, 1 << 28, -2, -7, -128, -(1 << 16))
_MOST_CODE = 210  # codes of operators are drawn below this number
_FORMAT = ("offset", "offset to vtable", "vtable", "length")


@dataclass(frozen=True)
class Site:
    """A number in a file.

    `position`: where it stands. `width`: its bytes. `meaning`: what it is, for example "tensor.0"
    (field 0 of a tensor), "offset" or "constant".
    """

    position: int
    width: int
    meaning: str


def sites(data: bytes) -> list[Site]:
    """Return the numbers in a valid model."""
    found: list[Site] = []
    flat = Flatbuffer(data)
    seen: set[tuple[int, str]] = set()

    def note(position: int, width: int, meaning: str) -> None:
        found.append(Site(position, width, meaning))

    def table(position: int, layout: str, name: str) -> tuple[int, ...]:
        fields = flat.table(position, layout)
        if (position, layout) in seen:
            return fields
        seen.add((position, layout))
        vtable = position - flat.i32(position)
        note(position, 4, "offset to vtable")
        for index in range(flat.u32(vtable) % 65536 // 2):
            note(vtable + 2 * index, 2, "vtable")
        for index, (field, kind) in enumerate(zip(fields, layout)):
            if not field:
                continue
            if kind in "1248g":
                note(field, 4 if kind == "g" else int(kind), f"{name}.{index}")
                continue
            note(field, 4, "offset")
            if kind != "o":
                vector(field, VECTORS.get(kind, 4), f"{name}.{index}", kind)
        return fields

    def vector(field: int, width: int, name: str, kind: str) -> None:
        start, count = flat.vector(field, width)
        note(start - 4, 4, "length")
        for index in range(min(count, 8 if kind in "sb" else 64)):
            note(start + index * width, width, name)

    def tables(field: int, layout: str, name: str) -> list[tuple[int, ...]]:
        if not field:
            return []
        vector(field, 4, "offset", "o")
        return [table(position, layout, name) for position in flat.tables(field)]

    note(0, 4, "offset")
    root = table(flat.root(), schema.MODEL, "model")
    tables(root[1], schema.OPERATOR_CODE, "code")
    for fields in tables(root[4], schema.BUFFER, "buffer"):
        start, count = flat.vector(fields[0], 1)
        # Small constants may be shapes, axes or paddings.
        width = 4 if count % 4 == 0 else 1
        for place in range(start, start + min(count, 64), width):
            note(place, width, "constant")
    for subgraph in tables(root[2], schema.SUBGRAPH, "subgraph"):
        for fields in tables(subgraph[0], schema.TENSOR, "tensor"):
            if fields[4]:
                table(flat.follow(fields[4]), schema.QUANTIZATION, "quantization")
        for fields in tables(subgraph[3], schema.OPERATOR, "operator"):
            if fields[4]:
                layout = schema.OPTIONS.get(flat.u8(fields[3]), "")
                table(flat.follow(fields[4]), layout, "options")
    return found


class Mutator:
    """Makes mutants of some models, one after the other, from one random seed."""

    def __init__(self, models: Sequence[bytes], seed: int = 0) -> None:
        self._draw = random.Random(seed)
        self._models = list(models)
        self._sites: dict[int, dict[str, list[Site]]] = {}
        self._ways: Sequence[tuple[Callable[[bytearray], None], int]] = (
            (self._flip_bits, 2),
            (self._overwrite, 1),
            (self._truncate, 1),
            (self._splice, 2),
        )

    def mutant(self) -> bytes:
        """Return one mutant. Sometimes the damage does no harm, so that the model still runs."""
        draw = self._draw
        which = draw.randrange(len(self._models))
        data = bytearray(self._models[which])
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            if draw.random() < 0.7:
                self._change_a_number(which, data)
            else:
                ways = [way for way, weight in self._ways for _ in range(weight)]
                draw.choice(ways)(data)
        return bytes(data)

    def _change_a_number(self, which: int, data: bytearray) -> None:
        groups = self._sites.get(which)
        if groups is None:
            groups = self._sites[which] = {}
            for site in sites(self._models[which]):
                groups.setdefault(site.meaning, []).append(site)
        # Damage to the format itself is found early, so damage to other numbers is more frequent.
        weights = [1 if meaning in _FORMAT else 3 for meaning in sorted(groups)]
        (meaning,) = self._draw.choices(sorted(groups), weights)
        site = self._draw.choice(groups[meaning])
        if site.position + site.width > len(data):
            return
        end = site.position + site.width
        old = int.from_bytes(data[site.position : end], "little")
        value = self._number(which, site, old) % (1 << 8 * site.width)
        data[site.position : end] = value.to_bytes(site.width, "little")

    def _number(self, which: int, site: Site, old: int) -> int:
        """Return another value for a number, which the caller cuts to its width."""
        draw = self._draw
        if site.meaning.startswith("code."):
            return draw.randrange(_MOST_CODE)
        way = draw.randrange(6)
        if way == 0:
            return draw.choice(_INTS)
        if way == 1:
            return draw.choice(_EDGES)
        if way == 2:
            return old + draw.choice((-4, -2, -1, 1, 2, 4))
        if way == 3:
            return old ^ (1 << draw.randrange(8 * site.width))
        if way == 4 and site.width == 4:
            return int.from_bytes(struct.pack("<f", draw.choice(_FLOATS)), "little")
        # The value of another place with the same meaning, for example another valid index.
        other = draw.choice(self._sites[which][site.meaning])
        there = self._models[which][other.position : other.position + other.width]
        return int.from_bytes(there, "little")

    def _flip_bits(self, data: bytearray) -> None:
        for _ in range(self._draw.choice((1, 1, 2, 4, 16))):
            if data:
                data[self._draw.randrange(len(data))] ^= 1 << self._draw.randrange(8)

    def _overwrite(self, data: bytearray) -> None:
        if data:
            at = self._draw.randrange(len(data))
            size = min(self._draw.choice((1, 4, 4, 8, 64)), len(data) - at)
            data[at : at + size] = bytes(
                self._draw.choice((0, 0, 255, 128, 127)) for _ in range(size)
            )

    def _truncate(self, data: bytearray) -> None:
        del data[self._draw.randrange(len(data) + 1) :]

    def _splice(self, data: bytearray) -> None:
        source = self._draw.choice(self._models)
        size = self._draw.choice((1, 2, 4, 8, 16, 32, 128, 512))
        begin = self._draw.randrange(len(source))
        piece = source[begin : begin + size]
        at = self._draw.randrange(len(data) + 1)
        gone = self._draw.choice((0, len(piece), len(piece), 4))
        data[at : at + gone] = piece
