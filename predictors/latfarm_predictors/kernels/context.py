"""Marks: numbers about the neighbours of a kernel in its network, on which its latency may depend.

A compiler that plans a whole network does not run a kernel alone. It keeps tensors in fast memory
where they fit beside all others that are still needed, runs a chain of kernels strip by strip, and
chooses the layout of a tensor for the kernel that reads it. So a kernel that writes its result at
an odd channel of a concatenation, or reads a part of a split, may take several times as long as the
same kernel with other neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2, prod

import numpy as np

from latfarm_predictors.graph.graph import Graph, Node
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.families import FAMILIES, family_of
from latfarm_predictors.kernels.parts import Part

Marks = tuple[float, ...]
"""The marks of one kernel: a value for each of `NAMES`."""

NAMES = (
    "reads_input",
    "writes_output",
    "read_aligned",
    "read_parts",
    "read_again",
    "write_aligned",
    "write_share",
    "write_joins",
    "readers",
    "alive_log",
    "first_family",
    "first_window",
    "before_family",
    "before_window",
    "before_log",
    "before_twice_log",
    "before_thrice_log",
    "after_family",
    "after_window",
    "after_stride",
    "after_log",
    "after_twice_log",
    "after_thrice_log",
    "since_input",
)
"""Names of the marks. Those that end in `_log` are sizes: log2(bytes + 1), 0 without a tensor.

- `reads_input`, `writes_output`: whether it reads an input or writes an output of the network.
- `read_aligned`, `read_parts`, `read_again`: about its largest operand, if a concatenation or a
  split makes it: how often 2 divides the channels at which the parts begin (6 for other operands),
  the number of parts, and the number of kernels that read it.
- `write_aligned`, `write_share`, `write_joins`: the same alignment for the concatenations that read
  its result, its smallest share of one of them, and their number.
- `readers`: number of kernels that read its largest result.
- `alive_log`: all tensors that have to be kept while it runs, besides its own.
- `before_*`: about the kernel that makes its largest operand: family (position in `FAMILIES`, -1
  for none), height of the window, size of what it reads; `twice` and `thrice` are the kernels one
  and two steps before that one.
- `after_*`: the same for the kernel that reads its result and writes most, with what it writes.
- `first_*`: the kernel before it or, where there is none, the kernel behind it.
- `since_input`: number of kernels between the network's input and this one, at most 6.
"""

_CONCAT, _PARTS = "Concat", frozenset({"Split", "Slice"})
_ALIGNED = 6
"""The alignment of a whole tensor, and the largest that is distinguished: 2 divides it 6 times."""
_MOST_STEPS = 6
"""The largest number of kernels between input and kernel that is distinguished."""
_NO_FAMILY = -1.0
"""Stands for the family of a neighbour that does not exist."""
_PLACE = {name: float(place) for place, name in enumerate(FAMILIES)}


def marks_of(graph: Graph, parts: Sequence[Part]) -> list[Marks]:
    """The marks of each part of a network, in their order.

    Args:
        graph: the network.
        parts: all its kernels, in an order in which they can run.
    """
    return _Surroundings(graph, parts).marks()


class _Surroundings:
    """The kernels of a network and their neighbours; a kernel is an index into `parts`."""

    def __init__(self, graph: Graph, parts: Sequence[Part]) -> None:
        self._graph = graph
        self._parts = parts
        self._maker = {t: at for at, part in enumerate(parts) for t in part.outputs}
        self._readers: dict[str, list[int]] = {}
        for at, part in enumerate(parts):
            for tensor in part.inputs:
                self._readers.setdefault(tensor, []).append(at)
        crossing = dict.fromkeys(t for part in parts for t in (*part.inputs, *part.outputs))
        self._bytes = {t: graph.type_of(t).size_bytes for t in crossing}
        self._read = [max(part.inputs, key=self._held, default="") for part in parts]
        self._written = [max(part.outputs, key=self._held, default="") for part in parts]
        self._before = [self._maker.get(tensor, -1) for tensor in self._read]
        self._after = [self._heaviest_reader(tensor) for tensor in self._written]
        mains = [graph.nodes[part.main] for part in parts]
        self._families = [_PLACE[family_of(graph, node)] for node in mains]
        self._windows = [_along(node, "kernel_shape") for node in mains]
        self._strides = [_along(node, "strides") for node in mains]

    def marks(self) -> list[Marks]:
        """The marks of all kernels, in their order."""
        alive = self._alive()
        depth = self._depths()
        wanted = frozenset(self._graph.outputs)
        return [self._of(at, alive[at], depth[at], wanted) for at in range(len(self._parts))]

    def _of(self, at: int, alive: int, depth: int, wanted: frozenset[str]) -> Marks:
        part = self._parts[at]
        read, written = self._read[at], self._written[at]
        before, after = self._before[at], self._after[at]
        first = before if before >= 0 else after
        before2 = self._before[before] if before >= 0 else -1
        after2 = self._after[after] if after >= 0 else -1
        return (
            float(any(t in self._graph.inputs for t in part.inputs)),
            float(not wanted.isdisjoint(part.outputs)),
            *self._reading(read),
            float(len(self._readers.get(read, ()))),
            *self._writing(part),
            float(len(self._readers.get(written, ()))),
            _log(alive),
            self._families[first] if first >= 0 else _NO_FAMILY,
            self._windows[first] if first >= 0 else 0.0,
            self._families[before] if before >= 0 else _NO_FAMILY,
            self._windows[before] if before >= 0 else 0.0,
            self._log_read(before),
            self._log_read(before2),
            self._log_read(self._before[before2] if before2 >= 0 else -1),
            self._families[after] if after >= 0 else _NO_FAMILY,
            self._windows[after] if after >= 0 else 0.0,
            self._strides[after] if after >= 0 else 0.0,
            self._log_written(after),
            self._log_written(after2),
            self._log_written(self._after[after2] if after2 >= 0 else -1),
            float(min(depth, _MOST_STEPS)),
        )

    def _held(self, tensor: str) -> int:
        return self._bytes[tensor]

    def _log_read(self, at: int) -> float:
        return _log(self._bytes[self._read[at]]) if at >= 0 and self._read[at] else 0.0

    def _log_written(self, at: int) -> float:
        return _log(self._bytes[self._written[at]]) if at >= 0 and self._written[at] else 0.0

    def _heaviest_reader(self, tensor: str) -> int:
        """Return the reader of a tensor that writes most; -1 if no kernel reads it."""
        readers = self._readers.get(tensor)
        if not readers:
            return -1
        if len(readers) == 1:
            return readers[0]
        return max(readers, key=lambda at: self._bytes.get(self._written[at], 0))

    def _reading(self, tensor: str) -> tuple[float, float]:
        """Alignment and number of the parts of a concatenation or split that makes a tensor."""
        graph = self._graph
        at = graph.positions.get(tensor, -1)
        while at >= 0 and graph.nodes[at].op in FREE_OPS:
            tensor = graph.nodes[at].inputs[0]
            at = graph.positions.get(tensor, -1)
        if at < 0:
            return float(_ALIGNED), 1.0
        node = graph.nodes[at]
        if node.op == _CONCAT:
            starts = _starts(graph, node.inputs)[1:]
            return min(map(_twos, starts), default=float(_ALIGNED)), float(len(node.inputs))
        if node.op in _PARTS:
            outputs = [t for t in node.outputs if t]
            start = _starts(graph, outputs)[outputs.index(tensor)]
            if node.op == "Slice":  # its start is not looked up: what it leaves out tells as much
                start = _channels(graph, node.inputs[0]) - _channels(graph, tensor)
            return _twos(start), float(len(outputs))
        return float(_ALIGNED), 1.0

    def _writing(self, part: Part) -> tuple[float, float, float]:
        """Alignment in, smallest share of, and number of concatenations that read its result."""
        graph = self._graph
        aligned, share, joins = float(_ALIGNED), 1.0, 0
        made = [t for index in part.nodes for t in graph.nodes[index].outputs if t]
        for tensor in made:
            for index in graph.readers.get(tensor, ()):
                node = graph.nodes[index]
                if node.op != _CONCAT:
                    continue
                joins += 1
                start = _starts(graph, node.inputs)[node.inputs.index(tensor)]
                aligned = min(aligned, _twos(start), _twos(_channels(graph, tensor)))
                whole = prod(graph.type_of(node.outputs[0]).shape)
                share = min(share, prod(graph.type_of(tensor).shape) / max(whole, 1))
        return aligned, share, float(joins)

    def _alive(self) -> list[int]:
        """For each kernel, bytes of the tensors that are kept while it runs, besides its own."""
        last = {tensor: readers[-1] for tensor, readers in self._readers.items()}
        found, held, total = [], dict[str, int](), 0
        for tensor in self._graph.inputs:
            if tensor in last:
                held[tensor] = self._bytes[tensor]
                total += held[tensor]
        for at, part in enumerate(self._parts):
            found.append(total - sum(held.get(tensor, 0) for tensor in part.inputs))
            for tensor in part.outputs:
                if last.get(tensor, -1) > at:
                    held[tensor] = self._bytes[tensor]
                    total += held[tensor]
            for tensor in part.inputs:
                if last.get(tensor) == at:
                    total -= held.pop(tensor, 0)
        return found

    def _depths(self) -> list[int]:
        """For each kernel, number of kernels on the shortest way from an input of the network."""
        found: list[int] = []
        for part in self._parts:
            steps = [found[self._maker[t]] + 1 if t in self._maker else 0 for t in part.inputs]
            found.append(min(steps, default=0))
        return found


def as_columns(marks: Sequence[Marks]) -> np.typing.NDArray[np.float64]:
    """Marks as an array of shape (n, len(NAMES))."""
    return np.array(marks, dtype=np.float64).reshape(len(marks), len(NAMES))


def _channels(graph: Graph, tensor: str) -> int:
    shape = graph.type_of(tensor).shape
    return shape[1] if len(shape) > 1 else shape[0] if shape else 1


def _starts(graph: Graph, tensors: Sequence[str]) -> list[int]:
    """The channel at which each of some tensors begins when they are concatenated."""
    starts, total = [], 0
    for tensor in tensors:
        starts.append(total)
        total += _channels(graph, tensor) if tensor else 0
    return starts


def _twos(count: int) -> float:
    """How often 2 divides a count, at most `_ALIGNED`; that number for 0."""
    return float(min(((count & -count).bit_length() - 1) if count else _ALIGNED, _ALIGNED))


def _along(node: Node, name: str) -> float:
    """The first number of an attribute of a window; 1 if the op has no such attribute."""
    value = node.attrs.get(name)
    return float(value[0]) if isinstance(value, tuple) and value else 1.0


def _log(size_bytes: int) -> float:
    return log2(size_bytes + 1.0)
