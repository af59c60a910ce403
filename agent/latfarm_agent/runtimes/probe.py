"""The probe: a fixed piece of arithmetic that is timed beside the runs of a model.

A core of a virtual machine may share its execution units with other work that the machine cannot
see. A busy neighbour then lengthens wall time and CPU time alike. A loop of plain Python hardly
notices the neighbour, because it leaves most of the core idle; a small matrix product slows down as
much as a network does.
"""

from __future__ import annotations

from typing import Callable

SIZE = 96
"""Rows and columns of the matrices. Three float32 matrices of 36 KB each exceed a first-level cache
and leave most of a second-level cache untouched."""
PAGE_BYTES = 4096
"""Size of a memory page; the matrices are aligned to it."""


def matrix_probe() -> Callable[[], None]:
    """Return a function that computes one matrix product of fixed size (about 20 us).

    The matrices begin at page boundaries. Otherwise their place in memory would change the time of
    the probe by a third from one session to the next.
    """
    import numpy as np

    size_bytes = SIZE * SIZE * 4
    step = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
    store = np.zeros(3 * step + PAGE_BYTES, dtype=np.uint8)
    first = -store.ctypes.data % PAGE_BYTES
    left, right, out = (
        store[first + index * step :][:size_bytes].view(np.float32).reshape(SIZE, SIZE)
        for index in range(3)
    )
    left[:] = np.linspace(-1.0, 1.0, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    right[:] = left.T

    def run() -> None:
        np.matmul(left, right, out=out)

    return run
