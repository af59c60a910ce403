"""Kinds of kernels: what a draw takes shares of."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from latfarm_predictors.features.table import main_op
from latfarm_predictors.graph.op_sets import FREE_OPS
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.parts import main_node
from latfarm_predictors.kernels.workload import workload

from latfarm_controller.zoo.draws.windows import has_wide_window, window_of

SHARES: Mapping[str, float] = MappingProxyType(
    {
        "conv": 0.29,
        "grouped_conv": 0.025,
        "grouped_pointwise": 0.025,
        "dwconv": 0.06,
        "unaligned_conv": 0.05,
        "unaligned_dwconv": 0.05,
        "wide_conv": 0.03,
        "unit_wide_conv": 0.05,
        "wide_dwconv": 0.0525,
        "fc": 0.02,
        "pool": 0.025,
        "global_pool": 0.01,
        "eltwise": 0.03,
        "concat": 0.0175,
        "norm": 0.015,
        "lrn": 0.015,
        "softmax": 0.005,
        "move": 0.03,
        "reduce": 0.01,
        "view": 0.03,
        "row_fc": 0.065,
        "row_norm": 0.02,
        "row_eltwise": 0.02,
        "row_softmax": 0.015,
        "matmul": 0.03,
        "attention": 0.01,
    }
)
"""Share of each kind of kernel in a draw. Kinds are workload families, and besides them kernels for
which a runtime has other code and which plain draws hardly contain: grouped convolutions of 1 x 1
(ShuffleNet has them; those of k x k are RegNet's), convolutions whose channels 4 does not divide,
windows beyond the 3 x 3 and 5 x 5 for which libraries have special code (LiteRT's quantised
depthwise convolution of 9 x 9 takes several times as long as its work suggests), and windows beyond
3 x 3 of stride 1, for which some libraries have Winograd's scheme (MNN for 5 x 5 and 7 x 7). Kinds
of rows are those of transformers: linear layers on tokens, norms, activations and softmaxes over
the last axis. A view (Reshape) is a kernel only where the runtime's rules do not attach it to
another."""
_UNALIGNED, _WIDE, _UNIT, _ROWS = "unaligned_", "wide_", "unit_", "row_"
"""Beginnings of the names of kinds with unaligned channels, with wide windows, with wide
windows of stride 1, and of work on the rows of a matrix."""
_LANES = 4
"""Channels that this number does not divide are unaligned."""
_OWN_CODE = 5 * 5
"""Windows with more elements than this are wide: libraries have no special code for them."""


def kind_of(kernel: Kernel) -> str:
    """The kind of a kernel, a key of `SHARES`, for networks of batch size 1."""
    work = workload(kernel)
    family, op = work.family, main_op(kernel.type)
    if family in ("fc", "eltwise", "norm", "softmax"):
        flat = work.batch > 1 and work.in_h == work.in_w == 1
        return _ROWS + family if flat else family
    if family == "move" and op in FREE_OPS:
        return "view"
    main = main_node(kernel.graph)
    if family == "grouped_conv" and main.attrs.get("kernel_shape") == (1, 1):
        return "grouped_pointwise"
    if family in ("conv", "dwconv"):
        if family == "conv" and has_wide_window(main):
            return _UNIT + _WIDE + family
        if math.prod(window_of(main)) > _OWN_CODE:
            return _WIDE + family
        tensors = (main.inputs[0], main.outputs[0])
        channels = [kernel.graph.type_of(tensor).shape[1] for tensor in tensors]
        if any(count % _LANES and count > _LANES for count in channels):
            return _UNALIGNED + family
    return family


def op_of(kernel: Kernel) -> tuple[str, str]:
    """Family and main op of a kernel: regressors know both."""
    return workload(kernel).family, main_op(kernel.type)


def base_of(kind: str) -> str:
    """The kind as a user names it, without the beginning for unaligned, wide or row kernels."""
    plain = kind.removeprefix(_UNALIGNED).removeprefix(_UNIT).removeprefix(_WIDE)
    return plain.removeprefix(_ROWS)
