"""Synthetic CNNs: random networks with the constructions that published mobile networks lack.

These are local response normalisation, grouped, asymmetric and large convolutions, large fully
connected layers, pools of all strides, joins of branches, dense chains, channel shuffles,
per-channel scales as separate ops, and gates. Others are what exporters write today: the mean of a
map as ReduceMean, group norms as InstanceNormalization between two views, and maps that are
enlarged, by repetition or by a transposed convolution, and joined with those before. No network is
copied: sizes are drawn uniformly by their logarithms, and a module is chosen at random at every
step.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder, Pads

from latfarm_controller.zoo.blocks import (
    Activation,
    Size,
    centred,
    channel_shuffle,
    channels_of,
    gelu,
    global_mean,
    hard_sigmoid,
    hard_swish,
    leaky,
    reduced_mean,
    relu,
    sigmoid,
    squeeze_excite,
    swish,
    tanh,
)
from latfarm_controller.zoo.design import Design

LARGEST_FC = 25088 * 4096
"""Largest number of weights of a fully connected layer: that of VGG, 411 MB of float32."""
_ACTIVATIONS = (relu, leaky, tanh, sigmoid, swish, hard_swish, gelu)
"""The activations of these networks, one for each network."""
_OFTEN = (12, 2, 1, 1, 2, 2, 1)
"""How often each of `_ACTIVATIONS` is drawn."""
_CHANNEL_CAPS = ((112, 96), (80, 160), (40, 384), (20, 768), (10, 1280), (0, 2048))
"""Sizes of maps with the most channels from that size on, so that the work of one layer stays under
a few billion multiply-adds."""


def synthetic(b: GraphBuilder, x: str, design: Design) -> str:
    """The network that `design.seed` draws, for any resolution from 32."""
    return _Synthetic(b, design).build(x)


@dataclass(frozen=True, slots=True)
class _Style:
    """What follows the convolutions of one network.

    Attributes:
        norm: "bias" for a bias, "bn" for a batch norm, "scale" for a batch norm and a scale,
            "group" for a group norm.
        act: the activation.
        pool: "max" or "avg".
        mean: takes the mean of a map.
        groups: number of groups of a group norm, where it divides the channels; otherwise 1.
    """

    norm: str
    act: Activation
    pool: str
    mean: Activation
    groups: int


class _Synthetic:
    def __init__(self, b: GraphBuilder, design: Design) -> None:
        self.b = b
        self.design = design
        self.draw = random.Random(f"synthetic {design.seed}")
        self.style = _Style(
            norm=self.draw.choices(("bias", "bn", "scale", "group"), (4, 4, 4, 1))[0],
            act=self.draw.choices(_ACTIVATIONS, _OFTEN)[0],
            pool=self.draw.choice(("max", "max", "avg")),
            mean=self.draw.choice((global_mean, reduced_mean)),
            groups=self.draw.choice((1, 8, 32)),
        )

    def build(self, x: str) -> str:
        modules: Sequence[Callable[[str], str]] = (
            self.plain,
            self.plain,
            self.asymmetric,
            self.grouped,
            self.inception,
            self.inception,
            self.fire,
            self.dense,
            self.dense,
            self.residual,
            self.shuffle,
            self.gate,
            self.excite,
            self.pyramid,
        )
        # Each network has two or three kinds of modules, so that networks differ like families.
        kinds = self.draw.sample(modules, self.draw.randint(2, 3))
        x = self.stem(x)
        for _ in range(self.draw.randint(2, 4)):
            for _ in range(self.draw.randint(1, 3)):
                x = self.draw.choice(kinds)(x)
            if self.size(x) > 7:
                x = self.shrink(x)
        return self.head(x)

    # Sizes

    def size(self, x: str) -> int:
        return min(self.b.type_of(x).shape[2:])

    def channels(self, x: str, multiple: int = 1, low: int = 16) -> int:
        """Channels for a layer on this map, drawn by their logarithms, mostly multiples of 8."""
        cap = next(cap for size, cap in _CHANNEL_CAPS if self.size(x) >= size)
        found = round(math.exp(self.draw.uniform(math.log(low), math.log(cap))))
        if self.draw.random() < 0.75 and found >= 16:
            found = found // 8 * 8
        return self.design.channels(max(multiple, found // multiple * multiple), multiple)

    # Small parts

    def after(self, x: str) -> str:
        """The norm and the activation."""
        b = self.b
        if self.style.norm == "group":
            x = self.in_groups(x)
        elif self.style.norm != "bias":
            x = b.batch_norm(x)
        if self.style.norm in ("scale", "group"):
            scale = (channels_of(b, x), 1, 1)
            x = b.add(b.mul(x, b.weight(scale)), b.weight(scale))
        return self.act(x)

    def in_groups(self, x: str) -> str:
        """A group norm without scale and bias, as torch exports it: an instance norm of rows."""
        b, shape = self.b, self.b.type_of(x).shape
        groups = self.style.groups if shape[1] % self.style.groups == 0 else 1
        rows = b.reshape(x, (shape[0], groups, -1))
        unit = [b.weight((groups,)), b.weight((groups,))]
        return b.reshape(b.op("InstanceNormalization", [rows, *unit]), shape)

    def act(self, x: str) -> str:
        return self.style.act(self.b, x)

    def mean(self, x: str) -> str:
        return self.style.mean(self.b, x)

    def conv(
        self,
        x: str,
        channels: int,
        kernel: Size = 1,
        stride: int = 1,
        groups: int = 1,
        pads: Pads | None = None,
    ) -> str:
        bias = self.style.norm == "bias"
        padding = centred(kernel) if pads is None else pads
        return self.after(
            self.b.conv(x, channels, kernel, stride, padding, groups=groups, bias=bias)
        )

    def pool(self, x: str, kernel: int, stride: int, pads: Pads) -> str:
        call = self.b.max_pool if self.style.pool == "max" else self.b.avg_pool
        return call(x, kernel, stride, pads)

    # Parts of a network

    def stem(self, x: str) -> str:
        """A first convolution, often large, with a pool and a response norm in either order."""
        size = self.size(x)
        kernel = self.draw.choice((3, 5, 7, 7, 9, 11))
        stride = 1 if size < 96 else self.draw.choice((2, 4) if kernel >= 7 else (1, 2))
        pads: Pads = self.draw.choice(("valid", "same", kernel // 2))
        room = size // stride
        low, high = (16, 48) if room > 112 else (24, 128)
        x = self.conv(
            x, self.design.channels(self.draw.randint(low, high)), kernel, stride, pads=pads
        )
        normed = self.draw.random() < 0.5
        first = self.draw.random() < 0.5
        if normed and first:
            x = self.lrn(x)
        if self.size(x) > 40:
            x = self.shrink(x)
        if normed and not first:
            x = self.lrn(x)
        if normed and self.draw.random() < 0.6:
            x = self.conv(x, self.channels(x, low=64), self.draw.choice((3, 5)))
            x = self.lrn(x)
        return x

    def lrn(self, x: str) -> str:
        return self.b.lrn(x, self.draw.choice((3, 5, 5, 5, 7)), 1e-4, 0.75)

    def shrink(self, x: str) -> str:
        """A pool with stride 2 or 3, with or without padding."""
        kernel, stride = self.draw.choice(((2, 2), (3, 2), (3, 2), (3, 3), (5, 3)))
        pads: Pads = self.draw.choice(("valid", "same", kernel // 2))
        return self.pool(x, kernel, stride, pads)

    def head(self, x: str) -> str:
        """Fully connected layers on the whole map or on its mean, or a convolution and the mean."""
        b, classes = self.b, self.design.classes(self.draw.choice((10, 100, 365, 1000, 1000)))
        if self.draw.random() < 0.5:
            while self.size(x) > 7:
                x = self.pool(x, 2, 2, "valid")
            _, c, h, w = b.type_of(x).shape
            x = b.reshape(x, (-1, c * h * w)) if self.draw.random() < 0.5 else b.flatten(x)
            for _ in range(self.draw.randint(1, 2)):
                inside = b.type_of(x).shape[1]
                most = min(4096, LARGEST_FC // inside)
                wide = round(2 ** self.draw.uniform(7, math.log2(most)))
                wide = wide // 64 * 64 if self.draw.random() < 0.7 else wide
                x = self.act(b.fc(x, min(most, self.design.channels(wide))))
            x = b.fc(x, classes)
        elif self.draw.random() < 0.5:
            x = b.flatten(self.mean(b.relu(b.conv(x, classes, 1, bias=True))))
        else:
            x = b.fc(b.flatten(self.mean(x)), classes)
        return b.softmax(x) if self.draw.random() < 0.8 else x

    # Modules

    def plain(self, x: str) -> str:
        channels = self.channels(x, low=32)
        for _ in range(self.draw.randint(1, 3)):
            x = self.conv(x, channels, self.design.kernel(self.draw.choice((1, 3, 3, 3, 5))))
        return x

    def asymmetric(self, x: str) -> str:
        """A 1 x k convolution, then a k x 1 convolution."""
        k = self.draw.choice((3, 3, 5, 7))
        x = self.conv(x, self.channels(x), (1, k))
        return self.conv(x, self.channels(x), (k, 1))

    def grouped(self, x: str) -> str:
        groups = self.draw.randint(2, 8)
        x = self.conv(x, self.channels(x, groups, low=32))
        kernel = self.design.kernel(self.draw.choice((1, 3, 3, 5)))
        return self.conv(x, self.channels(x, groups, low=32), kernel, groups=groups)

    def inception(self, x: str) -> str:
        """Two to four branches that are joined."""
        branches: list[Callable[[], str]] = [
            lambda: self.conv(x, self.branch(x)),
            lambda: self.conv(self.conv(x, self.branch(x)), self.branch(x), 3),
            lambda: self.conv(self.conv(x, self.branch(x)), self.branch(x), 5),
            lambda: self.conv(
                self.conv(self.conv(x, self.branch(x)), self.branch(x), 3), self.branch(x), 3
            ),
            lambda: self.conv(self.pool(x, 3, 1, 1), self.branch(x)),
        ]
        taken = self.draw.sample(branches, self.draw.randint(2, 4))
        return self.b.concat([branch() for branch in taken])

    def branch(self, x: str) -> int:
        """The channels of one of several branches."""
        return max(4, self.channels(x, low=32) // 2)

    def fire(self, x: str) -> str:
        """A 1x1 convolution with few channels, read by two with more channels."""
        x = self.conv(x, max(4, self.channels(x, low=64) // 4))
        wide = self.branch(x)
        return self.b.concat([self.conv(x, wide), self.conv(x, wide, 3)])

    def dense(self, x: str) -> str:
        """Layers that each append a few channels, then a 1x1 convolution that halves them."""
        b = self.b
        growth = self.design.channels(self.draw.choice((12, 16, 24, 32, 48)))
        for _ in range(self.draw.randint(2, 4)):
            y = b.conv(self.after(x), self.draw.choice((2, 4)) * growth, 1)
            y = b.conv(self.after(y), growth, 3)
            x = b.concat([x, y])
        return b.conv(self.after(x), max(8, channels_of(b, x) // 2), 1)

    def residual(self, x: str) -> str:
        """A basic or a bottleneck block; a 1x1 convolution is its shortcut if shapes differ."""
        b, stride = self.b, 2 if self.size(x) > 28 else self.draw.choice((1, 1, 2))
        channels = channels_of(b, x) if stride == 1 else self.channels(x, low=64)
        if self.draw.random() < 0.5:
            y = self.conv(x, channels, 3, stride)
        else:
            y = self.conv(self.conv(x, max(8, channels // 4)), max(8, channels // 4), 3, stride)
        y = b.batch_norm(b.conv(y, channels, 3 if channels < 256 else 1))
        if stride > 1:
            x = b.batch_norm(b.conv(x, channels, 1, stride, 0))
        total = b.op("Sum", [y, x]) if self.draw.random() < 0.3 else b.add(y, x)
        return self.act(total)

    def shuffle(self, x: str) -> str:
        """Grouped 1x1 convolutions around a channel shuffle and a depthwise convolution."""
        b, groups = self.b, self.draw.randint(2, 4)
        wide = self.channels(x, groups, low=48)
        x = self.conv(x, wide)
        y = channel_shuffle(b, self.conv(x, wide, groups=groups), groups)
        stride = 2 if self.size(y) > 28 else self.draw.choice((1, 2))
        y = b.batch_norm(b.depthwise(y, 3, stride, 1))
        y = b.batch_norm(b.conv(y, wide, groups=groups, kernel=1))
        if stride == 1:
            return self.act(b.add(x, y))
        return self.act(b.concat([b.avg_pool(x, 3, 2, 1), y]))

    def gate(self, x: str) -> str:
        """The elementwise product tanh(convolution) * sigmoid(convolution)."""
        b, channels = self.b, self.channels(x)
        signal = b.conv(x, channels, 3, bias=True)
        control = b.conv(x, channels, self.draw.choice((1, 3)), bias=True)
        return b.mul(b.tanh(signal), b.sigmoid(control))

    def excite(self, x: str) -> str:
        """A convolution, whose channels are scaled by a gate that sees the mean of the map."""
        x = self.conv(x, self.channels(x, low=32), self.draw.choice((1, 3)))
        squeezed = max(4, channels_of(self.b, x) // self.draw.choice((4, 8, 16)))
        gate = hard_sigmoid if self.draw.random() < 0.5 else sigmoid
        return squeeze_excite(self.b, x, squeezed, gate=gate, mean=self.style.mean)

    def pyramid(self, x: str) -> str:
        """A convolution on a map of half the size, enlarged again and joined with the map."""
        if self.size(x) < 8 or any(side % 2 for side in self.b.type_of(x).shape[2:]):
            return self.plain(x)
        coarse = self.conv(self.pool(x, 2, 2, "valid"), self.channels(x, low=32), 3)
        wide = self.enlarge(coarse)
        if self.draw.random() < 0.5:
            return self.conv(self.b.concat([wide, x]), self.channels(x, low=32))
        return self.b.add(wide, self.conv(x, channels_of(self.b, wide)))

    def enlarge(self, x: str) -> str:
        """A map of twice the size: pixels that are repeated, or a transposed convolution."""
        if self.draw.random() < 0.5:
            return self.b.resize(x, 2)
        kernel, pads = self.draw.choice(((2, 0), (4, 1)))  # those of U-Net and of DCGAN
        wide = self.b.conv_transpose(x, self.channels(x, low=32), kernel, 2, pads, bias=True)
        return self.act(wide) if self.draw.random() < 0.5 else wide
