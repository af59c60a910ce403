"""nn-Meter's kernel predictors: a random forest a kernel kind, on the features of its Table 6.

Zhang et al. 2021, section 5.3: "For each kernel, we train and save the predictor". Conv+x share the
predictor of Conv+bn+relu and DWConv+x that of DWConv+bn+relu (section 7.1); the data are split
7:1:2 and the middle part tunes the forest. What Table 6 does not list gets the features of its
elementwise kernels. `forest.py` is the same regressor on the wider groups of our own models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

import numpy as np

from latfarm_predictors.features.table import Array, Table
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.models.trees.forest import Forest

TREES = 100

_SIZES = ("HW", "C_in")
_WINDOW = ("HW", "C_in", "K", "S")

FEATURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "conv": ("HW", "C_in", "C_out", "K", "S", "FLOPs", "params"),
        # not in the paper: groups tell apart what its convolutions do not have
        "grouped_conv": ("HW", "C_in", "C_out", "K", "S", "FLOPs", "params", "groups"),
        "dwconv": ("HW", "C_in", "K", "S", "FLOPs", "params"),
        "fc": ("C_in", "C_out", "FLOPs", "params"),
        "maxpool": _WINDOW,
        "avgpool": _WINDOW,
        "se": (*_SIZES, "params"),  # with C_in, its parameters tell the ratio
        "hswish": _SIZES,
        "channelshuffle": _SIZES,
        "bn": _SIZES,
        "add": _SIZES,
        # the paper has up to four C_in: their sum is C_out, and how many there are is told
        "concat": ("HW", "C_in", "C_out", "operands"),
    }
)
"""Columns of each kernel of Table 6; a kind that is not here has `_SIZES`."""

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
    """Which predictor of nn-Meter's each kernel goes to, shape (n,).

    A fused chain counts as the block that it computes, where a runtime's rules make one kernel of
    it: squeeze and excitation (pooled, two products, a product with the input), hard swish, channel
    shuffle (reshape, transpose, reshape).
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
    """The forest of one kernel kind. Needs 3 rows; tuned from 40 rows on.

    Args:
        kind: of the kernels, as `kernel_kinds` names it.
        trees: how many.
        seed: for bootstraps and feature draws.
    """

    kind = "nn-meter-forest"

    def __init__(self, kernel_kind: str = "", *, trees: int = TREES, seed: int = 0) -> None:
        super().__init__(trees=trees, seed=seed)
        self.kernel_kind = kernel_kind

    def refit(self, workloads: Sequence[object] | Table, latency_ms: Array, noise: Array) -> Self:
        """See `Regressor.refit`."""
        del noise  # not used, as in the paper
        from latfarm_predictors.features.table import as_table

        table = as_table(workloads)  # type: ignore[arg-type]
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
        # single precision: thresholds are halfway points of it
        chosen = np.stack([columns[name] for name in names], axis=1)
        return chosen.astype(np.float32).astype(np.float64)


def _columns(table: Table) -> dict[str, Array]:
    """Table 6's features, each of shape (n,)."""
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
