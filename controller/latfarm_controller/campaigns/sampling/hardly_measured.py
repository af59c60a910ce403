"""Layers of networks whose op has hardly been measured.

A regressor that has seen no kernel of an op falls back to other ops of the same family, and no
interval tells how wrong that is. Draws and profiled networks miss ops that few families have, for
example the HardSigmoid that stands alone where a runtime does not fuse MobileNet-v3's activations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from latfarm_predictors.kernels.kernel import Kernel

from latfarm_controller.campaigns.sampling.zoo_kernels import ZooKernel
from latfarm_controller.zoo.draws.kernel_kinds import op_of

LEAST_OF_AN_OP = 2
"""An op has hardly been measured if fewer kernels than this have it."""


def hardly_measured(
    layers: Sequence[ZooKernel], known: Iterable[Kernel], most: int
) -> list[Kernel]:
    """Kernels of ops that fewer than `LEAST_OF_AN_OP` known kernels have.

    Ops that more networks have come first. Of each op, the kernel that moves most data comes first,
    then the one in the middle.

    Args:
        layers: the candidates, none of them measured.
        known: the kernels that were measured, or will be.
        most: largest number of kernels.
    """
    counts = Counter(op_of(kernel) for kernel in known)
    rare: dict[tuple[str, str], list[ZooKernel]] = {}
    for layer in layers:
        if counts[op_of(layer.kernel)] < LEAST_OF_AN_OP:
            rare.setdefault(op_of(layer.kernel), []).append(layer)
    common_first = sorted(rare, key=lambda op: (-len(_networks(rare[op])), op))
    found: list[Kernel] = []
    for number in range(LEAST_OF_AN_OP):
        for op in common_first:
            members = sorted(rare[op], key=_moved_bytes, reverse=True)
            place = number * len(members) // LEAST_OF_AN_OP
            if counts[op] < LEAST_OF_AN_OP and (number == 0 or place > 0):
                found.append(members[place].kernel)
                counts[op] += 1
    return found[: max(most, 0)]


def _networks(layers: Iterable[ZooKernel]) -> set[int]:
    """The numbers of all networks that have one of these layers."""
    return {network for layer in layers for network in layer.networks}


def _moved_bytes(layer: ZooKernel) -> tuple[float, str]:
    """Size of all data that a kernel reads and writes; equal sizes go by the kernel's id."""
    work = layer.workload
    return work.input_bytes + work.output_bytes + work.weight_bytes, layer.kernel.kernel_id
