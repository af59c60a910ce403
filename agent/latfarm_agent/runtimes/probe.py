"""Probe: a fixed piece of arithmetic like a network's own, timed beside the runs of a model.

On a core that shares its execution units with somebody else's work (a virtual machine's hidden
sibling), a busy neighbour stretches wall and CPU time alike. A loop of plain Python hardly feels
it, as it leaves most of the core idle; a small matrix product feels it as a network does.
"""

from __future__ import annotations

from typing import Callable

SIZE = 96
"""Three matrices of 36 KB: past the first cache, and no harm to what the second one holds."""
PAGE_BYTES = 4096


def matrix_probe() -> Callable[[], None]:
    """A matrix product of fixed size; call it to run it once (about 20 us).

    Its matrices begin at page boundaries: where an allocator happens to put them would otherwise
    change the probe's time by a third from one session to the next.
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
