"""Network-in-Network (Lin et al. 2014): convolutions followed by 1x1 convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from latfarm_predictors.graph.builder import GraphBuilder, Pads

from latfarm_controller.zoo.blocks import max_pool_up
from latfarm_controller.zoo.design import Design

_Window = tuple[int, int, Pads]
"""Kernel size, stride and padding of a convolution."""


def nin_imagenet(b: GraphBuilder, x: str, design: Design) -> str:
    """Network-in-Network for ImageNet, as in Caffe's model zoo (Lin et al. 2014)."""
    x = _mlpconv(b, x, design, (96, 96, 96), (11, 4, "valid"))
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (256, 256, 256), (5, 1, "same"))
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (384, 384, 384), (3, 1, "same"))
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (1024, 1024), (3, 1, "same"))
    x = b.relu(b.conv(x, design.classes(), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def nin_cifar(b: GraphBuilder, x: str, design: Design) -> str:
    """Network-in-Network for CIFAR-10 (Lin et al. 2014, section 4.1)."""
    x = _mlpconv(b, x, design, (192, 160, 96), (5, 1, "same"))
    x = _mlpconv(b, b.max_pool(x, 3, 2, 1), design, (192, 192, 192), (5, 1, "same"))
    x = _mlpconv(b, b.avg_pool(x, 3, 2, 1), design, (192, 192), (3, 1, "same"))
    x = b.relu(b.conv(x, design.classes(10), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def _mlpconv(
    b: GraphBuilder, x: str, design: Design, widths: Sequence[int], window: _Window
) -> str:
    """A convolution with a window, and 1x1 convolutions after it (section 3.1)."""
    kernel, stride, pads = window
    size = design.kernel(kernel) if pads == "same" else kernel
    x = b.relu(b.conv(x, design.channels(widths[0]), size, stride, pads, bias=True))
    for channels in widths[1:]:
        x = b.relu(b.conv(x, design.channels(channels), 1, bias=True))
    return x
