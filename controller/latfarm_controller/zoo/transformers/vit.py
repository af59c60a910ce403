"""ViT and DeiT on patches of 16 pixels, as in timm (`vit_*_patch16_224`, `deit_*_distilled_*`)."""

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


def deit_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """DeiT-Tiny with distillation: a second token and a second head."""
    return _vit(b, x, design, 192, 3, tokens=2)


def deit_small(b: GraphBuilder, x: str, design: Design) -> str:
    """DeiT-Small with distillation."""
    return _vit(b, x, design, 384, 6, tokens=2)


def _vit(
    b: GraphBuilder, x: str, design: Design, features: int, heads: int, *, tokens: int = 1
) -> str:
    """The network of Dosovitskiy et al. 2021, section 3.1, with a class token.

    Two tokens are those of DeiT (Touvron et al. 2021, section 4); its heads are averaged.

    Raises:
        GraphError: height or width is not a whole number of patches.
    """
    n, _, height, width = b.type_of(x).shape
    if height % _PATCH or width % _PATCH:
        raise GraphError(f"ViT cuts an image into patches of {_PATCH} pixels: {height}x{width}")
    heads = design.heads(heads)
    inside = design.channels(features, heads)
    x = b.conv(x, inside, _PATCH, _PATCH, "valid", bias=True)
    patches = height * width // _PATCH**2
    x = b.transpose(b.reshape(x, (n, inside, patches)), (0, 2, 1))
    own = [b.weight((1, 1, inside)) for _ in range(tokens)]
    if n > 1:
        whole = b.weight((3,), "int64", (n, 1, inside))
        own = [b.op("Expand", [token, whole]) for token in own]
    x = b.add(b.concat([*own, x]), b.weight((1, patches + tokens, inside)))
    for _ in range(_LAYERS):
        x = pre_norm_block(b, x, design, heads, features=features, ratio=4)
    x = b.layer_norm(x)
    found = [_head(b, x, place, design) for place in range(tokens)]
    if tokens == 1:
        return found[0]
    total = b.add(*found)
    return b.div(total, b.scalar_like(total, 2.0))


def _head(b: GraphBuilder, x: str, place: int, design: Design) -> str:
    """The classifier on the token at a place."""
    token = b.op("Gather", [x, b.weight((), "int64", (place,))], {"axis": 1})
    return b.fc(token, design.classes())
