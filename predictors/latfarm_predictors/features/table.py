"""Table: a batch of workloads as columns, so that every model is vectorised over kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.op_sets import FREE_OPS, MULTIPLYING
from latfarm_predictors.kernels.workload import NUMBER_FIELDS, TEXT_FIELDS, Workload

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]

ELEMENT_BYTES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "int16": 2,
}
"""Bytes of an element; types not named here take one."""

MOST_SIZE = 1e18
"""The largest size, count of multiply-adds or of bytes that a kernel may have: with 20 GMAC/s it
would run for a year. Products of a few of these are still far from what a double holds."""

_CONVOLUTIONS = ("conv", "grouped_conv", "dwconv")
"""The families of convolutions."""

_SIZES = 14
"""Number of leading number fields of a Workload that are sizes: batch to groups."""


@cache
def main_op(kernel_type: str) -> str:
    """The op of a kernel type whose sizes its workload tells (see `parts.main_index`)."""
    ops = kernel_type.split("+")
    for op in ops:
        if op in MULTIPLYING:
            return op
    return next((op for op in ops if op not in FREE_OPS), ops[0])


@cache
def appended_ops(kernel_type: str) -> tuple[str, ...]:
    """The working ops of a kernel type besides the main one."""
    ops = kernel_type.split("+")
    ops.remove(main_op(kernel_type))
    return tuple(op for op in ops if op not in FREE_OPS)


class _Once(cached_property[Array]):
    """A property that `Table.once` works out."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Array: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return self if instance is None else instance.once(self.func)


@dataclass(frozen=True)
class Table:
    """A batch of workloads as columns, each of shape (n,).

    Sizes are at least 1 and bytes at least 0, so that logarithms are finite for every op.

    What is worked out of the columns is kept, and rows taken from a table have theirs from there:
    kernels of a network are few, so that to work out a column takes as long for one group of them
    as for all.
    """

    types: tuple[str, ...]
    families: tuple[str, ...]
    element_bytes: Array
    batch: Array
    in_h: Array
    in_w: Array
    in_channels: Array
    out_h: Array
    out_w: Array
    out_channels: Array
    kernel_h: Array
    kernel_w: Array
    stride_h: Array
    stride_w: Array
    dilation_h: Array
    dilation_w: Array
    groups: Array
    macs: Array
    input_bytes: Array
    output_bytes: Array
    weight_bytes: Array
    inputs: Array
    fused_ops: Array

    def __len__(self) -> int:
        """How many workloads."""
        return len(self.types)

    def take(self, rows: Rows) -> Table:
        """The given rows, in the given order."""
        columns = [getattr(self, name) for name in _COLUMNS]
        types, families, places = self.types, self.families, rows.tolist()
        taken = Table(
            tuple([types[i] for i in places]),
            tuple([families[i] for i in places]),
            *[column[rows] for column in columns],
        )
        whole, own = self.__dict__.get(_WHOLE, (self, None))
        taken.__dict__[_WHOLE] = whole, rows if own is None else own[rows]
        return taken

    def __reduce__(self) -> tuple[type[Table], tuple[Any, ...]]:
        """For pickle and copy: the columns alone."""
        return type(self), tuple([getattr(self, field.name) for field in fields(self)])

    def once(self, make: Callable[[Table], Array]) -> Array:
        """What a function makes of this table, row by row, kept under the function's name.

        Args:
            make: each of its rows follows from that row of the table alone; its name is no
                other's.
        """
        name = make.__name__
        found = self.__dict__.get(name)
        if found is None:
            whole = self.__dict__.get(_WHOLE)
            found = make(self) if whole is None else whole[0].once(make).take(whole[1], axis=0)
            self.__dict__[name] = found  # as a cached property does: nothing else is changed
        return np.asarray(found)

    def of_family(self, *names: str) -> npt.NDArray[np.bool_]:
        """Which workloads are of one of these families, shape (n,)."""
        # not np.isin, which takes 30 us to make an array of the names, however few there are
        wanted = frozenset(names)
        return np.array([family in wanted for family in self.families], dtype=np.bool_)

    @cached_property
    def main_ops(self) -> tuple[str, ...]:
        """The op whose sizes are told, per workload."""
        return tuple(main_op(name) for name in self.types)

    @cached_property
    def appended_ops(self) -> tuple[tuple[str, ...], ...]:
        """The working ops besides the main one, per workload."""
        return tuple(appended_ops(name) for name in self.types)

    @_Once
    def conv_groups(self) -> Array:
        """Groups of a convolution, 1 for everything else."""
        return np.where(self.of_family(*_CONVOLUTIONS), self.groups, 1.0)

    @_Once
    def group_in(self) -> Array:
        """Input channels that one output channel reads; 1 where channels are not mixed."""
        mixing = self.of_family(*_CONVOLUTIONS, "fc")
        return np.where(mixing, np.maximum(self.in_channels / self.conv_groups, 1.0), 1.0)

    @_Once
    def area(self) -> Array:
        """Elements of the window."""
        return self.kernel_h * self.kernel_w

    @_Once
    def positions(self) -> Array:
        """Places the window is put at: output positions, a transposed convolution's input ones."""
        backwards = np.array([op == "ConvTranspose" for op in self.main_ops], dtype=np.bool_)
        outputs, inputs = self.out_h * self.out_w, self.in_h * self.in_w
        return self.batch * np.where(backwards, inputs, outputs)

    @_Once
    def reduction(self) -> Array:
        """Products summed into one output element."""
        return self.group_in * self.area

    @_Once
    def elements(self) -> Array:
        """The larger of the elements read and written."""
        return np.maximum(np.maximum(self.input_bytes, self.output_bytes) / self.element_bytes, 1.0)

    @_Once
    def total_bytes(self) -> Array:
        """Bytes moved when everything is touched once."""
        return np.maximum(self.input_bytes + self.output_bytes + self.weight_bytes, 1.0)

    @_Once
    def extra_bytes(self) -> Array:
        """Bytes of data operands beyond the first (an Add fused behind a Conv reads one)."""
        first = self.batch * self.in_h * self.in_w * self.in_channels * self.element_bytes
        return np.where(self.inputs > 1, np.maximum(self.input_bytes - first, 0.0), 0.0)

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], Rows]:
        """Types of kernels, each once, and the place of each workload's among them, shape (n,)."""
        place = {name: at for at, name in enumerate(dict.fromkeys(self.types))}
        codes = np.array([place[name] for name in self.types], dtype=np.intp)
        return tuple(place), codes.reshape(len(self))


_WHOLE = "_whole"
_COLUMNS = tuple(f.name for f in fields(Table) if f.name not in ("types", "families"))


def as_table(workloads: Sequence[Workload] | Table) -> Table:
    """Columns of `workloads`; a Table is handed through.

    Raises:
        GraphError: a size is larger than any board could run; names the kernel and the size.
    """
    if isinstance(workloads, Table):
        return workloads
    try:
        numbers = np.array([work[TEXT_FIELDS:] for work in workloads], dtype=np.float64)
    except OverflowError:  # an integer that no double holds
        numbers = np.array([[min(n, 1e300) for n in work[TEXT_FIELDS:]] for work in workloads])
    numbers = numbers.reshape(len(workloads), len(NUMBER_FIELDS))
    if numbers.max(initial=0.0) > MOST_SIZE:
        at, column = np.argwhere(numbers > MOST_SIZE)[0]
        raise GraphError(
            f"{workloads[at].type} of {numbers[at, column]:.3g} {NUMBER_FIELDS[column]}: no board "
            f"could run it; sizes up to {MOST_SIZE:.0e} are predicted"
        )
    columns = zip(NUMBER_FIELDS, numbers.T, strict=True)
    named = {name: np.maximum(column, 0.0) for name, column in columns}
    for name in NUMBER_FIELDS[:_SIZES]:
        named[name] = np.maximum(named[name], 1.0)
    element = np.array([ELEMENT_BYTES.get(work.dtype, 1) for work in workloads], dtype=np.float64)
    return Table(
        tuple([work.type for work in workloads]),
        tuple([work.family for work in workloads]),
        element.reshape(len(workloads)),
        **named,
    )
