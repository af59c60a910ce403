"""ViT-Tiny and ViT-Small on patches of 16 pixels, as in timm (`vit_*_patch16_224`)."""

from __future__ import annotations

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import pre_norm_block

_PATCH = 16
"""Height and width of a patch, in pixels."""
_LAYERS = 12
"""Number of encoder layers."""


def vit_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """ViT-Tiny: 192 features in 3 heads (Touvron et al. 2021, table 1)."""
    return _vit(b, x, design, 192, 3)


def vit_small(b: GraphBuilder, x: str, design: Design) -> str:
    """ViT-Small: 384 features in 6 heads (Touvron et al. 2021, table 1)."""
    return _vit(b, x, design, 384, 6)


def _vit(b: GraphBuilder, x: str, design: Design, features: int, heads: int) -> str:
    """The network of Dosovitskiy et al. 2021, section 3.1, with a class token.

    Raises:
        GraphError: height or width is not a whole number of patches.
    """
    n, _, height, width = b.type_of(x).shape
    if height % _PATCH or width % _PATCH:
        raise GraphError(f"ViT cuts an image into patches of {_PATCH} pixels: {height}x{width}")
    inside = design.channels(features, heads)
    x = b.conv(x, inside, _PATCH, _PATCH, "valid", bias=True)
    patches = height * width // _PATCH**2
    x = b.transpose(b.reshape(x, (n, inside, patches)), (0, 2, 1))
    token = b.weight((1, 1, inside))
    if n > 1:
        token = b.op("Expand", [token, b.weight((3,), "int64", (n, 1, inside))])
    x = b.add(b.concat([token, x]), b.weight((1, patches + 1, inside)))
    for _ in range(_LAYERS):
        x = pre_norm_block(b, x, design, heads, features=features, ratio=4)
    x = b.layer_norm(x)
    first = b.op("Gather", [x, b.weight((), "int64", (0,))], {"axis": 1})
    return b.fc(first, design.classes())
