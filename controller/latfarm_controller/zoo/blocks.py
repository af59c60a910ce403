"""Blocks of layers that several families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder, Pads

from latfarm_controller.zoo.design import divisible

Activation = Callable[[GraphBuilder, str], str]
"""Adds an activation that reads a tensor; gives the name of the result."""
Size = int | tuple[int, int]
"""Height and width of a window, or one number for both."""


def relu(b: GraphBuilder, x: str) -> str:
    """ReLU: max(x, 0)."""
    return b.relu(x)


def relu6(b: GraphBuilder, x: str) -> str:
    """ReLU6: x clipped to the range from 0 to 6."""
    return b.relu6(x)


def hard_swish(b: GraphBuilder, x: str) -> str:
    """MobileNetV3's hard swish."""
    return b.hard_swish(x)


def swish(b: GraphBuilder, x: str) -> str:
    """EfficientNet's swish: x * sigmoid(x)."""
    return b.mul(x, b.sigmoid(x))


def leaky(b: GraphBuilder, x: str) -> str:
    """Leaky ReLU with DarkNet's slope 0.1."""
    return b.leaky_relu(x, 0.1)


def hard_sigmoid(b: GraphBuilder, x: str) -> str:
    """The gate in the squeeze-and-excite blocks of MobileNetV3 and GhostNet."""
    return b.hard_sigmoid(x)


def sigmoid(b: GraphBuilder, x: str) -> str:
    """The gate in the squeeze-and-excite blocks of EfficientNet."""
    return b.sigmoid(x)


def global_mean(b: GraphBuilder, x: str) -> str:
    """The mean of a map, (N, C, 1, 1), as a global pool."""
    return b.global_avg_pool(x)


def reduced_mean(b: GraphBuilder, x: str) -> str:
    """The mean of a map, (N, C, 1, 1), as torch exports `x.mean((2, 3), keepdim=True)`."""
    return b.reduce_mean(x, (2, 3))


def gelu(b: GraphBuilder, x: str) -> str:
    """The Gaussian error linear unit, computed with erf."""
    return b.gelu(x)


def tanh(b: GraphBuilder, x: str) -> str:
    """The hyperbolic tangent."""
    return b.tanh(x)


def centred(kernel: Size) -> Pads:
    """PyTorch's padding, k // 2 on all sides; TensorFlow's padding is called "same"."""
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    return (high // 2, wide // 2, high // 2, wide // 2)


def conv_bn(
    b: GraphBuilder,
    x: str,
    channels: int,
    kernel: Size = 1,
    stride: int = 1,
    *,
    groups: int = 1,
    act: Activation | None = relu,
    pads: Pads | None = None,
) -> str:
    """Convolution, batch norm and activation; the padding is centred unless `pads` is given."""
    x = b.conv(x, channels, kernel, stride, centred(kernel) if pads is None else pads, groups)
    x = b.batch_norm(x)
    return x if act is None else act(b, x)


def depthwise_bn(
    b: GraphBuilder,
    x: str,
    kernel: Size,
    stride: int = 1,
    *,
    act: Activation | None = relu,
    pads: Pads | None = None,
) -> str:
    """Depthwise convolution, batch norm and activation."""
    return conv_bn(
        b,
        x,
        channels_of(b, x),
        kernel,
        stride,
        groups=channels_of(b, x),
        act=act,
        pads=pads,
    )


def channels_of(b: GraphBuilder, x: str) -> int:
    """The number of channels of a tensor: the size of axis 1."""
    return b.type_of(x).shape[1]


def squeeze_excite(
    b: GraphBuilder,
    x: str,
    squeezed: int,
    act: Activation = relu,
    gate: Activation = hard_sigmoid,
    mean: Activation = global_mean,
) -> str:
    """Squeeze-and-excite (Hu et al. 2018): two 1x1 convolutions on the mean, then a product.

    Args:
        b: where to build.
        x: the tensor to read.
        squeezed: number of channels after the first convolution.
        act: activation after the first convolution.
        gate: activation after the second convolution.
        mean: takes the mean of a map.
    """
    s = act(b, b.conv(mean(b, x), squeezed, 1, bias=True))
    s = gate(b, b.conv(s, channels_of(b, x), 1, bias=True))
    return b.mul(x, s)


@dataclass(frozen=True, slots=True)
class Excite:
    """The squeeze-and-excite part of an inverted residual.

    Attributes:
        ratio: squeezed channels as a share of the block's expanded channels.
        of_input: `ratio` is a share of the block's input channels instead.
        divisor: what the squeezed channels are rounded to multiples of.
        act: activation after the first convolution.
        gate: activation after the second convolution.
    """

    ratio: float
    of_input: bool = False
    divisor: int = 8
    act: Activation = relu
    gate: Activation = hard_sigmoid


def inverted_residual(
    b: GraphBuilder,
    x: str,
    expanded: int,
    channels: int,
    kernel: int,
    stride: int,
    *,
    act: Activation = relu,
    pads: Pads | None = None,
    excite: Excite | None = None,
) -> str:
    """MBConv (MobileNetV2, section 3.3): expand, depthwise, squeeze-and-excite, project, add.

    The input is added where shapes agree.

    Args:
        b: where to build.
        x: the tensor to read.
        expanded: channels after the expansion, which is left out if the input has as many.
        channels: channels of the result.
        kernel: kernel size of the depthwise convolution.
        stride: stride of the depthwise convolution.
        act: activation of expansion and depthwise convolution.
        pads: padding of the depthwise convolution; None: centred.
        excite: the squeeze-and-excite part; None: there is none.
    """
    inside = channels_of(b, x)
    y = x if expanded == inside else conv_bn(b, x, expanded, act=act)
    y = depthwise_bn(b, y, kernel, stride, act=act, pads=pads)
    if excite is not None:
        wanted = (inside if excite.of_input else expanded) * excite.ratio
        squeezed = divisible(wanted, excite.divisor) if excite.divisor > 1 else max(1, int(wanted))
        y = squeeze_excite(b, y, squeezed, excite.act, excite.gate)
    y = conv_bn(b, y, channels, act=None)
    return b.add(x, y) if stride == 1 and inside == channels else y


def classifier(b: GraphBuilder, x: str, classes: int, *, softmax: bool = False) -> str:
    """Global average pool, flatten and fully connected layer, with a softmax if wanted."""
    x = b.fc(b.flatten(b.global_avg_pool(x)), classes)
    return b.softmax(x) if softmax else x


def hidden_layers(b: GraphBuilder, x: str, widths: Sequence[int]) -> str:
    """Fully connected layers of these widths, each with a ReLU."""
    for width in widths:
        x = b.relu(b.fc(x, width))
    return x


def shortcut(b: GraphBuilder, x: str, channels: int, stride: int) -> str:
    """The shortcut of a residual block: its input, through a 1x1 convolution if shapes differ."""
    if stride == 1 and channels_of(b, x) == channels:
        return x
    return conv_bn(b, x, channels, 1, stride, act=None)


def pool_to(b: GraphBuilder, x: str, size: int) -> str:
    """Average pool to `size` x `size`, as exporters write adaptive pooling; small maps stay."""
    edges = b.type_of(x).shape[2:]
    if max(edges) <= size:
        return x
    strides = tuple(max(1, edge // size) for edge in edges)
    kernels = [
        max(1, edge - (size - 1) * stride) for edge, stride in zip(edges, strides, strict=True)
    ]
    return b.avg_pool(x, kernels, strides)


def max_pool_up(b: GraphBuilder, x: str, kernel: int, stride: int) -> str:
    """Max pool whose output size is rounded up, as in Caffe, by padding the end of each axis."""
    ends = [(kernel - size) % stride for size in b.type_of(x).shape[2:]]
    return b.max_pool(x, kernel, stride, (0, 0, *ends))


def channel_shuffle(b: GraphBuilder, x: str, groups: int) -> str:
    """ShuffleNet's channel shuffle: reshape, transpose, reshape."""
    n, c, h, w = b.type_of(x).shape
    y = b.reshape(x, (n, groups, c // groups, h, w))
    return b.reshape(b.transpose(y, (0, 2, 1, 3, 4)), (n, c, h, w))
