"""nn-Meter's kernel predictors: a random forest for each kind of kernel, on its Table 6's features.

Zhang et al. 2021, section 5.3: "For each kernel, we train and save the predictor". All kernels that
begin with a convolution share a predictor, and all that begin with a depthwise convolution share
another (section 7.1). The data are split 7:1:2, and the middle part tunes the forest. A kind that
Table 6 does not list gets the features of its elementwise kernels. `trees/forest.py` is the same
regressor on the wider groups of our own models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

import numpy as np

from latfarm_predictors.features.table import Array, Table, as_table
from latfarm_predictors.kernels.workload import Workload
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.trees.forest import Forest

TREES = 100
"""Number of trees of a kernel kind's forest."""

_SIZES = ("HW", "C_in")
_WINDOW = ("HW", "C_in", "K", "S")

FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conv": ("HW", "C_in", "C_out", "K", "S", "FLOPs", "params"),
        # not in the paper, whose networks have no grouped convolutions
        "grouped_conv": ("HW", "C_in", "C_out", "K", "S", "FLOPs", "params", "groups"),
        "dwconv": ("HW", "C_in", "K", "S", "FLOPs", "params"),
        "fc": ("C_in", "C_out", "FLOPs", "params"),
        "maxpool": _WINDOW,
        "avgpool": _WINDOW,
        "se": (*_SIZES, "params"),  # C_in and params together say the ratio
        "hswish": _SIZES,
        "channelshuffle": _SIZES,
        "bn": _SIZES,
        "add": _SIZES,
        # the paper has up to four C_in; their sum is C_out, and "operands" says how many there are
        "concat": ("HW", "C_in", "C_out", "operands"),
    }
)
"""Features of each kind of kernel of Table 6; a kind that is not here has `_SIZES`."""

_BY_OP: Mapping[str, str] = MappingProxyType(
    {
        "MaxPool": "maxpool",
        "AveragePool": "avgpool",
        "GlobalAveragePool": "avgpool",
        "BatchNormalization": "bn",
        "Add": "add",
    }
)
_BY_FAMILY = frozenset({"conv", "grouped_conv", "dwconv", "fc", "concat"})


def kernel_kinds(table: Table) -> list[str]:
    """The kind of each kernel, which names the predictor of nn-Meter that it belongs to.

    Where a runtime's rules make one kernel of a chain of ops, the kernel's kind is the block that
    the chain computes: squeeze and excitation (pooling, two products, a product with the input),
    hard swish, channel shuffle (reshape, transpose, reshape).
    """
    rows = zip(table.types, table.families, table.main_ops, strict=True)
    return [_kind(kind, family, op) for kind, family, op in rows]


def _kind(kernel_type: str, family: str, op: str) -> str:
    ops = kernel_type.split("+")
    if len(ops) >= 4 and ops[0] in ("GlobalAveragePool", "ReduceMean") and "Mul" in ops:
        return "se"
    if "Transpose" in ops and set(ops) <= {"Reshape", "Transpose"} and len(ops) >= 2:
        return "channelshuffle"
    if ops in (
        ["HardSigmoid", "Mul"],
        ["Add", "Clip", "Mul", "Div"],
        ["Add", "Clip", "Div", "Mul"],
    ):
        return "hswish"
    if op == "HardSwish":
        return "hswish"
    return family if family in _BY_FAMILY else _BY_OP.get(op, op)


class KernelForest(Forest):
    """The forest of one kind of kernel. Needs 3 rows; tuned from 40 rows on.

    Args:
        kernel_kind: the kind, as `kernel_kinds` names it.
        trees: number of trees.
        seed: random seed of bootstraps and of the choice of features.
    """

    kind = "nn-meter-forest"

    def __init__(self, kernel_kind: str = "", *, trees: int = TREES, seed: int = 0) -> None:
        super().__init__(trees=trees, seed=seed)
        self.kernel_kind = kernel_kind

    def refit(self, workloads: Sequence[Workload] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        del noise  # not used, as in the paper
        table = as_table(workloads)
        other = type(self)(self.kernel_kind, trees=self._trees, seed=self._seed)
        other.feature_share = self.feature_share
        other._grow(other.features(table), latency_ms)
        return other

    def state(self) -> ModelState:
        """See `Regressor.state`."""
        state = super().state()
        return ModelState(
            self.kind, {**state.values, "kernel_kind": self.kernel_kind}, state.arrays
        )

    @classmethod
    def from_state(cls, state: ModelState) -> Self:
        """See `Regressor.from_state`."""
        model = super().from_state(state)
        model.kernel_kind = str(state.values["kernel_kind"])
        return model

    def features(self, table: Table) -> Array:
        """The columns by which the trees decide, shape (n, f), of single precision in value."""
        columns = _columns(table)
        names = FEATURES.get(self.kernel_kind, _SIZES)
        # scikit-learn decides in single precision
        chosen = np.stack([columns[name] for name in names], axis=1)
        return chosen.astype(np.float32).astype(np.float64)


def _columns(table: Table) -> dict[str, Array]:
    """The features of Table 6 by name, each of shape (n,)."""
    return {
        "HW": np.sqrt(table.in_h * table.in_w),
        "C_in": table.in_channels,
        "C_out": table.out_channels,
        "K": np.sqrt(table.area),
        "S": np.sqrt(table.stride_h * table.stride_w),
        "FLOPs": 2.0 * table.macs,
        "params": table.weight_bytes / table.element_bytes,
        "groups": table.groups,
        "operands": table.inputs,
    }
