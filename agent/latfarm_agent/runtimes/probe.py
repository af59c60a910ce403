"""Probe: a fixed piece of arithmetic like a network's own, timed beside the runs of a model.

On a core that shares its execution units with somebody else's work (a virtual machine's hidden
sibling), a busy neighbour stretches wall and CPU time alike. A loop of plain Python hardly feels
it, as it leaves most of the core idle; a small matrix product feels it as a network does.
"""

from __future__ import annotations

from typing import Callable

SIZE = 96
"""Three matrices of 36 KB: past the first cache, and no harm to what the second one holds."""


def matrix_probe() -> Callable[[], None]:
    """A matrix product of fixed size; call it to run it once (about 20 us)."""
    import numpy as np

    values = np.linspace(-1.0, 1.0, SIZE * SIZE, dtype=np.float32).reshape(SIZE, SIZE)
    out = np.empty_like(values)

    def run() -> None:
        np.matmul(values, values, out=out)

    return run
