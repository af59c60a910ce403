"""Models of smart padding (Wess et al. 2024, section III-B, Fig. 5): padding-only and padded.

A pad at an input makes a tensor of the layer under measurement (LUM) from a tensor of one channel;
a pad at an output does the reverse. It is a 1x1 convolution and a non-linearity, so that no
compiler can simplify it away, and hardly any data goes into the model or out of it. Matrices and
sequences of tokens are padded by a product with a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.features.table import main_op
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, TensorType
from latfarm_predictors.graph.op_sets import FREE_OPS, POOLS
from latfarm_predictors.kernels.composites import LAYER_NORM, RMS_NORM
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel
from latfarm_predictors.kernels.workload import workload

Separator = Literal["", "MaxPool", "AveragePool"]
"""A pooling after a pad at an input; empty for none. Without it, an op might run in one kernel with
the pad's convolution."""

Form = Literal["base", "fork", "twin"]
"""The form of a padding-only model. `base`: one pad at an input, one at an output, as in the paper.
`fork`: one pad at an input, two at outputs. `twin`: the base model twice.

The differences of their times show the cost of a pad at an output (fork - base) and of a pad at an
input (twin - fork).
"""

_CHANNELS_FIRST = frozenset({"Conv", "ConvTranspose", "BatchNormalization", *POOLS})
"""Ops whose tensors of three axes are (batch, channels, length)."""
_MOST_AXES = 6
"""The largest number of axes of a tensor that a pad makes."""
_FLOATS = frozenset({"float32", "float16"})
"""Element types that pads can make."""
_IMAGE_CHANNELS = 4
"""Largest number of channels of an image."""
_IMAGE_PIXELS = 32 * 32
"""Smallest number of pixels of an image."""


@dataclass(frozen=True, slots=True)
class Pad:
    """A pad: the tensor of the LUM that it makes or reads.

    Attributes:
        shape: the shape of the tensor.
        dtype: the element type of the tensor.
        features: whether the last axis, instead of axis 1, is reduced to one channel.
        separator: the op between the pad and the LUM, which the LUM does not fuse with: a pooling,
            or a softmax where `features` is set.
    """

    shape: tuple[int, ...]
    dtype: str
    features: bool = False
    separator: Separator = ""


@dataclass(frozen=True)
class Padded:
    """A padded model (Fig. 5c).

    Attributes:
        graph: the model.
        pads_in: the pads at the LUM's inputs.
        pads_out: the pads at the LUM's outputs.
        own: the names of the LUM's nodes.
    """

    graph: Graph
    pads_in: tuple[Pad, ...]
    pads_out: tuple[Pad, ...]
    own: frozenset[str]

    def fuses(self, rules: FusionRules) -> bool:
        """Whether a part of the LUM runs in one kernel with a part of a pad.

        A view does no work in its kernel, so that a LUM of views alone never does.
        """
        if all(node.op in FREE_OPS for node in self.graph.nodes if node.name in self.own):
            return False
        return any(
            0 < len(self.own.intersection(kernel.node_names)) < len(kernel.node_names)
            for kernel in split(self.graph, rules)
        )


def padding_only(pad: Pad, form: Form) -> Graph:
    """A model without the LUM (Fig. 5b): all pads belong to one tensor of the LUM.

    Raises:
        GraphError: the pads do not fit the tensor.
    """
    b = GraphBuilder(f"padding-{form}")
    chains = 2 if form == "twin" else 1
    outputs = []
    for _ in range(chains):
        x = _enter(b, pad)
        outputs += [_leave(b, pad, x) for _ in range(2 if form == "fork" else 1)]
    return b.build(outputs)


def is_image(kind: TensorType) -> bool:
    """Whether a tensor looks like the image that a network reads: few channels, many pixels."""
    if len(kind.shape) != 4:
        return False
    _, channels, height, width = kind.shape
    return channels <= _IMAGE_CHANNELS and height * width >= _IMAGE_PIXELS


def padded(kernel: Kernel, *, separator: Separator = "", images: bool = False) -> Padded:
    """The LUM between pads, one for each tensor that it reads or writes.

    Args:
        kernel: the LUM.
        separator: the op between the pads at the inputs and the LUM.
        images: read images (`is_image`) without a pad, since they are inputs of networks as well.
            There is no padding-only model that matches such a padded model.

    Raises:
        GraphError: the kernel cannot be padded; the message says why.
    """
    graph = kernel.graph
    if not graph.inputs:
        raise GraphError(f"{graph.name}: reads no activation")
    inner = [t for t in graph.inputs if not (images and is_image(graph.type_of(t)))]
    pads_in = tuple(_pad(kernel, graph.type_of(t), separator) for t in inner)
    pads_out = tuple(_pad(kernel, graph.type_of(t), separator) for t in graph.outputs)
    b = GraphBuilder(f"padded {graph.name}")
    names = {"": ""}
    pads = dict(zip(inner, pads_in, strict=True))
    for tensor in graph.inputs:
        kind, pad = graph.type_of(tensor), pads.get(tensor)
        names[tensor] = b.input(kind.shape, kind.dtype) if pad is None else _enter(b, pad)
    for tensor, weight in graph.weights.items():
        names[tensor] = b.weight(weight.type.shape, weight.type.dtype, weight.values)
    before = set(names.values())
    for node in graph.nodes:
        operands = [names[t] for t in node.inputs]
        if len(node.outputs) == 1:
            names[node.outputs[0]] = b.op(node.op, operands, node.attrs)
        else:
            made = b.op(node.op, operands, node.attrs, len(node.outputs))
            names.update(zip(node.outputs, made, strict=True))
    own = {name for tensor, name in names.items() if tensor and name not in before}
    outputs = [
        _leave(b, pad, names[tensor]) for tensor, pad in zip(graph.outputs, pads_out, strict=True)
    ]
    whole = b.build(outputs)
    nodes = frozenset(node.name for node in whole.nodes if own.intersection(node.outputs))
    return Padded(whole, pads_in, pads_out, nodes)


def _pad(kernel: Kernel, kind: TensorType, separator: Separator) -> Pad:
    rank = len(kind.shape)
    if kind.dtype not in _FLOATS:
        raise GraphError(f"{kernel.graph.name}: no pad makes {kind.dtype}")
    if rank < 2 or rank > _MOST_AXES:
        raise GraphError(f"{kernel.graph.name}: no pad makes a tensor of {rank} axes")
    # Three axes are (batch, channels, length) of a 1-D convolution, or (batch, tokens, features).
    # Six axes are windows of tokens.
    ops = {node.op for node in kernel.graph.nodes}
    if rank == 3:
        features = not ops & _CHANNELS_FIRST
    else:
        features = rank in (2, _MOST_AXES) or "MatMul" in ops or _is_on_rows(kernel, rank)
    return Pad(kind.shape, kind.dtype, features, separator)


def _is_on_rows(kernel: Kernel, rank: int) -> bool:
    """Whether a kernel normalises over the last axis, as a softmax or a norm of tokens does."""
    if main_op(kernel.type) not in ("Softmax", LAYER_NORM, RMS_NORM):
        return False
    work = workload(kernel)
    return rank == 4 and work.batch > 1 and work.in_h == work.in_w == 1


def _enter(b: GraphBuilder, pad: Pad) -> str:
    """Add an input of one channel and the ops that make the pad's tensor from it."""
    shape = pad.shape
    if not pad.features:
        x = b.relu(b.conv(b.input((shape[0], 1, *shape[2:]), pad.dtype), shape[1], 1))
        if pad.separator == "AveragePool":
            return b.avg_pool(x, 3, 1, "same")
        return b.max_pool(x, 3, 1, "same") if pad.separator else x
    x = b.input((*shape[:-1], 1), pad.dtype)
    if len(shape) == 2:
        x = b.fc(x, shape[-1], bias=False)
    else:
        x = b.matmul(x, b.weight((1, shape[-1]), pad.dtype))
    x = b.relu(x)
    return b.softmax(x) if pad.separator else x


def _leave(b: GraphBuilder, pad: Pad, x: str) -> str:
    """Add the ops that make an output of one channel from the pad's tensor."""
    if not pad.features:
        return b.relu(b.conv(x, 1, 1))
    if len(pad.shape) == 2:
        return b.relu(b.fc(x, 1, bias=False))
    return b.relu(b.matmul(x, b.weight((pad.shape[-1], 1), pad.dtype)))
