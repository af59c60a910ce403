"""Models of smart padding (Wess et al. 2024, section III-B, Fig. 5): padding-only and padded.

A pad leads from one channel to a tensor of the layer under measurement (LUM), or from it to one
channel: a 1x1 convolution and a non-linearity, so that no compiler can simplify it away and hardly
any data goes in or out. Matrices and sequences of tokens are padded by a product with a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph, TensorType
from latfarm_predictors.graph.op_sets import POOLS
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.kernels.fusion_search import split
from latfarm_predictors.kernels.kernel import Kernel

Separator = Literal["", "MaxPool", "AveragePool"]
"""What stands behind a pad in, where an op might otherwise run within the pad's convolution."""

Form = Literal["base", "fork", "twin"]
"""A padding-only model: one pad in and one out (the paper's); one in and two out; two of the base.

Their differences tell what a pad out (fork - base) and a pad in (twin - fork) cost.
"""

_CHANNELS_FIRST = frozenset({"Conv", "ConvTranspose", "BatchNormalization", *POOLS})
_FLOATS = frozenset({"float32", "float16"})
_IMAGE_CHANNELS = 4
_IMAGE_PIXELS = 32 * 32


@dataclass(frozen=True, slots=True)
class Pad:
    """What a pad leads to or from: a tensor's type, and along which axis it is made of one channel.

    `features`: along the last axis in place of axis 1. `separator`: a pooling (of features: a
    softmax) that the op does not join stands behind the pad in.
    """

    shape: tuple[int, ...]
    dtype: str
    features: bool = False
    separator: Separator = ""


@dataclass(frozen=True)
class Padded:
    """A padded model (Fig. 5c), the pads of its inputs and outputs, names of the LUM's nodes."""

    graph: Graph
    pads_in: tuple[Pad, ...]
    pads_out: tuple[Pad, ...]
    own: frozenset[str]

    def fuses(self, rules: FusionRules) -> bool:
        """Whether a part of the LUM runs within one kernel with a part of a pad."""
        return any(
            0 < len(self.own.intersection(kernel.node_names)) < len(kernel.node_names)
            for kernel in split(self.graph, rules)
        )


def padding_only(pad: Pad, form: Form) -> Graph:
    """A model without the LUM (Fig. 5b): both pads have the LUM tensor's shape.

    Raises:
        GraphError: the pads do not fit the tensor, as a matrix's channels.
    """
    b = GraphBuilder(f"padding-{form}")
    chains = 2 if form == "twin" else 1
    outputs = []
    for _ in range(chains):
        x = _enter(b, pad)
        outputs += [_leave(b, pad, x) for _ in range(2 if form == "fork" else 1)]
    return b.build(outputs)


def is_image(kind: TensorType) -> bool:
    """Whether networks read such a tensor from outside: few channels, many pixels."""
    if len(kind.shape) != 4:
        return False
    _, channels, height, width = kind.shape
    return channels <= _IMAGE_CHANNELS and height * width >= _IMAGE_PIXELS


def padded(kernel: Kernel, *, separator: Separator = "", images: bool = False) -> Padded:
    """The LUM between pads, one for each tensor that it reads or writes.

    Args:
        kernel: the LUM.
        separator: what stands behind the pads in.
        images: an image (`is_image`) is read as it is: inside a network, too, it is an input. Such
            a model has no padding-only model beside it.

    Raises:
        GraphError: it cannot be padded; says why.
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
    if rank < 2 or rank > 5:
        raise GraphError(f"{kernel.graph.name}: no pad makes a tensor of {rank} axes")
    # (batch, channels, length) of a 1-D convolution, (batch, tokens, features) of a transformer.
    ops = {node.op for node in kernel.graph.nodes}
    features = rank == 2 or (not ops & _CHANNELS_FIRST if rank == 3 else "MatMul" in ops)
    return Pad(kind.shape, kind.dtype, features, separator)


def _enter(b: GraphBuilder, pad: Pad) -> str:
    """From an input of one channel to the pad's tensor."""
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
    """From the pad's tensor to an output of one channel."""
    if not pad.features:
        return b.relu(b.conv(x, 1, 1))
    if len(pad.shape) == 2:
        return b.relu(b.fc(x, 1, bias=False))
    return b.relu(b.matmul(x, b.weight((pad.shape[-1], 1), pad.dtype)))
