"""RepVGG (Ding et al. 2021) in its inference form."""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import classifier
from latfarm_controller.zoo.design import Design


def repvgg_a0(b: GraphBuilder, x: str, design: Design) -> str:
    """RepVGG-A0 (Ding et al. 2021, table 2) after re-parameterisation, as 3x3 convolutions."""
    for base, repeats in ((48, 1), (48, 2), (96, 4), (192, 14), (1280, 1)):
        channels = design.channels(base)
        for index in range(repeats):
            kernel = design.kernel(3)
            x = b.relu(b.conv(x, channels, kernel, 1 if index else 2, kernel // 2, bias=True))
    return classifier(b, x, design.classes())
