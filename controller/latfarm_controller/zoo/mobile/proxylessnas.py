"""ProxylessNAS (Cai et al. 2019): inverted residuals searched for one kind of device each."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import (
    channels_of,
    classifier,
    conv_bn,
    inverted_residual,
    relu6,
)
from latfarm_controller.zoo.design import Design

# Stages of (channels, stride, blocks), a block being (kernel, expansion): figure 4.
_Stages = tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]
_CPU: _Stages = (
    (32, 2, ((3, 6), (3, 3), (3, 3), (3, 3))),
    (48, 2, ((3, 6), (3, 3), (3, 3), (5, 3))),
    (88, 2, ((3, 6), (3, 3))),
    (104, 1, ((5, 6), (3, 3), (3, 3), (3, 3))),
    (216, 2, ((5, 6), (5, 3), (5, 3), (3, 3))),
    (360, 1, ((5, 6),)),
)
_GPU: _Stages = (
    (32, 2, ((5, 3),)),
    (56, 2, ((7, 3), (3, 3))),
    (112, 2, ((7, 6), (5, 3))),
    (128, 1, ((5, 6), (3, 3), (5, 3))),
    (256, 2, ((7, 6), (7, 6), (7, 6), (5, 6))),
    (432, 1, ((7, 6),)),
)
_MOBILE: _Stages = (
    (32, 2, ((5, 3), (3, 3))),
    (40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
    (80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
    (96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
    (192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
    (320, 1, ((7, 6),)),
)


def proxyless_cpu(b: GraphBuilder, x: str, design: Design) -> str:
    """Searched for a server's CPU: small kernels."""
    return _proxyless(b, x, design, 40, 24, _CPU, 1432)


def proxyless_gpu(b: GraphBuilder, x: str, design: Design) -> str:
    """Searched for a GPU: shallow and wide, large kernels."""
    return _proxyless(b, x, design, 40, 24, _GPU, 1728)


def proxyless_mobile(b: GraphBuilder, x: str, design: Design) -> str:
    """Searched for a phone's CPU."""
    return _proxyless(b, x, design, 32, 16, _MOBILE, 1280)


def _proxyless(
    b: GraphBuilder, x: str, design: Design, stem: int, first: int, stages: _Stages, head: int
) -> str:
    x = conv_bn(b, x, design.channels(stem), design.kernel(3), 2, act=relu6)
    x = inverted_residual(b, x, channels_of(b, x), design.channels(first), 3, 1, act=relu6)
    for base, stride, blocks in stages:
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
    return classifier(b, conv_bn(b, x, design.channels(head), act=relu6), design.classes())
