"""Chains of convolutions: Network-in-Network, DarkNet-19, RepVGG, SqueezeNet."""

from __future__ import annotations

from latfarm_predictors.graph_builder import GraphBuilder, Pads

from latfarm_controller.zoo.blocks import classifier, conv_bn, leaky, max_pool_up
from latfarm_controller.zoo.design import Design


def nin_imagenet(b: GraphBuilder, x: str, design: Design) -> str:
    """Network-in-Network for ImageNet, as in Caffe's model zoo (Lin et al. 2014)."""
    x = _mlpconv(b, x, design, (96, 96, 96), 11, 4, "valid")
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (256, 256, 256), 5, 1, "same")
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (384, 384, 384), 3, 1, "same")
    x = _mlpconv(b, max_pool_up(b, x, 3, 2), design, (1024, 1024), 3, 1, "same")
    x = b.relu(b.conv(x, design.classes(), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def nin_cifar(b: GraphBuilder, x: str, design: Design) -> str:
    """Network-in-Network for CIFAR-10 (Lin et al. 2014, section 4.1)."""
    x = _mlpconv(b, x, design, (192, 160, 96), 5, 1, "same")
    x = _mlpconv(b, b.max_pool(x, 3, 2, 1), design, (192, 192, 192), 5, 1, "same")
    x = _mlpconv(b, b.avg_pool(x, 3, 2, 1), design, (192, 192), 3, 1, "same")
    x = b.relu(b.conv(x, design.classes(10), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def _mlpconv(
    b: GraphBuilder,
    x: str,
    design: Design,
    widths: tuple[int, ...],
    kernel: int,
    stride: int,
    pads: Pads,
) -> str:
    """A conv and 1x1 convs behind it (section 3.1)."""
    size = design.kernel(kernel) if pads == "same" else kernel
    x = b.relu(b.conv(x, design.channels(widths[0]), size, stride, pads, bias=True))
    for channels in widths[1:]:
        x = b.relu(b.conv(x, design.channels(channels), 1, bias=True))
    return x


def darknet19(b: GraphBuilder, x: str, design: Design) -> str:
    """DarkNet-19 (Redmon and Farhadi 2017, table 6)."""
    stages = ((32,), (64,), (128, 64, 128), (256, 128, 256), (512, 256, 512, 256, 512))
    for stage in stages:
        x = b.max_pool(_thin_and_wide(b, x, design, stage), 2)
    x = _thin_and_wide(b, x, design, (1024, 512, 1024, 512, 1024))
    x = b.conv(x, design.classes(), 1, bias=True)
    return b.softmax(b.flatten(b.global_avg_pool(x)))


def _thin_and_wide(b: GraphBuilder, x: str, design: Design, widths: tuple[int, ...]) -> str:
    """3x3 convs with 1x1 bottlenecks between them."""
    for index, channels in enumerate(widths):
        kernel = 1 if index % 2 else design.kernel(3)
        x = conv_bn(b, x, design.channels(channels), kernel, act=leaky)
    return x


def repvgg_a0(b: GraphBuilder, x: str, design: Design) -> str:
    """RepVGG-A0 (Ding et al. 2021, table 2) after re-parameterisation: 3x3 convs with bias."""
    for base, repeats in ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)):
        channels = design.channels(base)
        for index in range(repeats):
            kernel = design.kernel(3)
            x = b.relu(b.conv(x, channels, kernel, 1 if index else 2, kernel // 2, bias=True))
    return classifier(b, x, design.classes())


def squeezenet(b: GraphBuilder, x: str, design: Design) -> str:
    """SqueezeNet 1.1 (Iandola et al. 2016 and its repository)."""
    x = b.relu(b.conv(x, design.channels(64), 3, 2, "valid", bias=True))
    stages = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192),) * 2 + ((64, 256),) * 2)
    for stage in stages:
        x = b.max_pool(x, 3, 2)
        for squeezed, expanded in stage:
            x = b.relu(b.conv(x, design.channels(squeezed), 1, bias=True))
            ones = b.relu(b.conv(x, design.channels(expanded), 1, bias=True))
            threes = b.conv(x, design.channels(expanded), design.kernel(3), bias=True)
            x = b.concat([ones, b.relu(threes)])
    x = b.relu(b.conv(x, design.classes(), 1, bias=True))
    return b.softmax(b.flatten(b.global_avg_pool(x)))
