"""ProxylessNAS (Cai et al. 2019): networks of inverted residuals, searched for kinds of devices."""

from __future__ import annotations

from dataclasses import dataclass

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    classifier,
    conv_bn,
    inverted_residual,
    relu6,
)
from latfarm_controller.zoo.design import Design


@dataclass(frozen=True)
class _Searched:
    """The sizes of a network (figure 4).

    Attributes:
        stem: channels of the first convolution.
        first: channels of the first inverted residual.
        stages: the channels, the stride and the blocks of each stage; a block is given by its
            kernel size and its expansion.
        head: channels before the classifier.
    """

    stem: int
    first: int
    stages: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
    head: int


_CPU = _Searched(
    40,
    24,
    (
        (32, 2, ((3, 6), (3, 3), (3, 3), (3, 3))),
        (48, 2, ((3, 6), (3, 3), (3, 3), (5, 3))),
        (88, 2, ((3, 6), (3, 3))),
        (104, 1, ((5, 6), (3, 3), (3, 3), (3, 3))),
        (216, 2, ((5, 6), (5, 3), (5, 3), (3, 3))),
        (360, 1, ((5, 6),)),
    ),
    1432,
)
_GPU = _Searched(
    40,
    24,
    (
        (32, 2, ((5, 3),)),
        (56, 2, ((7, 3), (3, 3))),
        (112, 2, ((7, 6), (5, 3))),
        (128, 1, ((5, 6), (3, 3), (5, 3))),
        (256, 2, ((7, 6), (7, 6), (7, 6), (5, 6))),
        (432, 1, ((7, 6),)),
    ),
    1728,
)
_MOBILE = _Searched(
    32,
    16,
    (
        (32, 2, ((5, 3), (3, 3))),
        (40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
        (80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
        (96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
        (192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
        (320, 1, ((7, 6),)),
    ),
    1280,
)


def proxyless_cpu(b: GraphBuilder, x: str, design: Design) -> str:
    """The network searched for a server's CPU: it has small kernels."""
    return _proxyless(b, x, design, _CPU)


def proxyless_gpu(b: GraphBuilder, x: str, design: Design) -> str:
    """The network searched for a GPU: shallow and wide, with large kernels."""
    return _proxyless(b, x, design, _GPU)


def proxyless_mobile(b: GraphBuilder, x: str, design: Design) -> str:
    """The network searched for a phone's CPU."""
    return _proxyless(b, x, design, _MOBILE)


def _proxyless(b: GraphBuilder, x: str, design: Design, searched: _Searched) -> str:
    x = conv_bn(b, x, design.channels(searched.stem), design.kernel(3), 2, act=relu6)
    x = inverted_residual(b, x, channels_of(b, x), design.channels(searched.first), 3, 1, act=relu6)
    for base, stride, blocks in searched.stages:
        channels = design.channels(base)
        for index, (kernel, expansion) in enumerate(blocks):
            x = inverted_residual(
                b,
                x,
                expansion * channels_of(b, x),
                channels,
                design.kernel(kernel),
                1 if index else stride,
                act=relu6,
            )
    return classifier(b, conv_bn(b, x, design.channels(searched.head), act=relu6), design.classes())
