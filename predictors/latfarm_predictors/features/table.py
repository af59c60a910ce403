"""Table: a batch of workloads as columns, so that models compute all kernels at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, Self, overload

import numpy as np
import numpy.typing as npt

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.families import CONVOLUTION_FAMILIES, main_place
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
"""Size in bytes of an element, by its type; every other type takes one byte."""

MOST_SIZE = 1e18
"""The largest size, number of multiply-adds or of bytes of a kernel that is predicted.

At 20 GMAC/s so many multiply-adds take more than a year. Products of a few such numbers are still
far below the largest double."""

_PRODUCTS = ("fc", "matmul", "attention")
"""The families of matrix products."""

_SIZES = 14
"""Number of leading number fields of a Workload that are sizes: batch to groups."""


@cache
def main_op(kernel_type: str) -> str:
    """The main op of a kernel type: the one whose sizes a workload has (`families.main_place`)."""
    ops = kernel_type.split("+")
    return ops[main_place(ops)]


@cache
def appended_ops(kernel_type: str) -> tuple[str, ...]:
    """The ops of a kernel type that do work, besides the main one."""
    ops = kernel_type.split("+")
    ops.remove(main_op(kernel_type))
    return tuple(op for op in ops if op not in FREE_OPS)


class _Once(cached_property[Array]):
    """A property of a Table that is computed by `Table.once`."""

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Array: ...
    def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
        return self if instance is None else instance.once(self.func)


@dataclass(frozen=True)
class Table:
    """A batch of workloads as columns, each of shape (n,).

    The columns are the fields of a `Workload`; `element_bytes` stands for its dtype. Sizes are at
    least 1 and bytes at least 0, so that logarithms are finite for every op.

    Columns that are computed from others are kept, and a table of some of the rows takes its values
    from them: a network has so few kernels that computing a column for one group of them takes as
    long as for all.
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
    contiguous: Array

    def __len__(self) -> int:
        """Number of workloads."""
        return len(self.types)

    def take(self, rows: Rows) -> Table:
        """A table of the given rows, in the given order."""
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

    def once(self, make: Callable[..., Array], *given: int) -> Array:
        """The value that a function computes from this table; it is computed once and kept.

        Args:
            make: returns an array with a row for each row of the table, which depends on that row
                alone; no other function that is given here has its name.
            given: further arguments of the function; the value is kept for each of them apart.
        """
        name = f"{make.__name__}{given}" if given else make.__name__
        found = self.__dict__.get(name)
        if found is None:
            whole = self.__dict__.get(_WHOLE)
            if whole is None:
                found = make(self, *given)
            else:
                found = whole[0].once(make, *given).take(whole[1], axis=0)
            self.__dict__[name] = found  # where cached properties are kept too
        return np.asarray(found)

    def of_family(self, *names: str) -> npt.NDArray[np.bool_]:
        """Which workloads are of one of these families, shape (n,)."""
        # np.isin is slower: it takes 30 us to make an array of the names, however few there are
        wanted = frozenset(names)
        return np.array([family in wanted for family in self.families], dtype=np.bool_)

    @cached_property
    def main_ops(self) -> tuple[str, ...]:
        """The main op of each workload."""
        return tuple(main_op(name) for name in self.types)

    @cached_property
    def appended_ops(self) -> tuple[tuple[str, ...], ...]:
        """The ops that do work besides the main one, of each workload."""
        return tuple(appended_ops(name) for name in self.types)

    @_Once
    def conv_groups(self) -> Array:
        """Groups of a convolution, 1 for everything else."""
        return np.where(self.of_family(*CONVOLUTION_FAMILIES), self.groups, 1.0)

    @_Once
    def group_in(self) -> Array:
        """Input channels that one output channel reads; 1 where channels are not mixed."""
        mixing = self.of_family(*CONVOLUTION_FAMILIES, *_PRODUCTS)
        return np.where(mixing, np.maximum(self.in_channels / self.conv_groups, 1.0), 1.0)

    @_Once
    def area(self) -> Array:
        """Number of elements of the window."""
        return self.kernel_h * self.kernel_w

    @_Once
    def positions(self) -> Array:
        """Number of positions of the window: those of the output, or of a ConvTranspose's input."""
        backwards = np.array([op == "ConvTranspose" for op in self.main_ops], dtype=np.bool_)
        outputs, inputs = self.out_h * self.out_w, self.in_h * self.in_w
        return self.batch * np.where(backwards, inputs, outputs)

    @_Once
    def reduction(self) -> Array:
        """Number of products that are summed into one output element."""
        return self.group_in * self.area

    @_Once
    def elements(self) -> Array:
        """Number of elements read or written, whichever is larger."""
        return np.maximum(np.maximum(self.input_bytes, self.output_bytes) / self.element_bytes, 1.0)

    @_Once
    def total_bytes(self) -> Array:
        """Bytes moved when each input, output and weight is moved once."""
        return np.maximum(self.input_bytes + self.output_bytes + self.weight_bytes, 1.0)

    @_Once
    def extra_bytes(self) -> Array:
        """Bytes of activations read besides the first (an Add fused behind a Conv reads one)."""
        first = self.batch * self.in_h * self.in_w * self.in_channels * self.element_bytes
        return np.where(self.inputs > 1, np.maximum(self.input_bytes - first, 0.0), 0.0)

    @cached_property
    def kinds(self) -> tuple[tuple[str, ...], Rows]:
        """All different kernel types, and each workload's index among them, shape (n,)."""
        place = {name: at for at, name in enumerate(dict.fromkeys(self.types))}
        codes = np.array([place[name] for name in self.types], dtype=np.intp)
        return tuple(place), codes.reshape(len(self))


_WHOLE = "_whole"
"""Where a table of some rows keeps the table that they are from, and their indices in it."""
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
    for name in (*NUMBER_FIELDS[:_SIZES], "contiguous"):
        named[name] = np.maximum(named[name], 1.0)
    element = np.array([ELEMENT_BYTES.get(work.dtype, 1) for work in workloads], dtype=np.float64)
    return Table(
        tuple([work.type for work in workloads]),
        tuple([work.family for work in workloads]),
        element.reshape(len(workloads)),
        **named,
    )
