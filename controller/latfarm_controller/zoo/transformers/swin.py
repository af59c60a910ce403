"""Swin Transformer (Liu et al. 2021): attention in windows, shifted in every other layer."""

from __future__ import annotations

from latfarm_predictors.errors import GraphError
from latfarm_predictors.graph.builder import GraphBuilder

from latfarm_controller.zoo.blocks import gelu
from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.transformers.attention import in_heads, linear, mixed, scores_of

_PATCH = 4
"""Height and width of a patch, in pixels."""
_WINDOWS = (7, 8, 6, 5, 4)
"""Heights and widths of a window, in patches: the published one first, then for other maps."""
_HEAD_SIZE = 32
"""Features of each head."""


def swin_tiny(b: GraphBuilder, x: str, design: Design) -> str:
    """Swin-T: 96 features, layers 2, 2, 6 and 2."""
    return _swin(b, x, design, (96, 192, 384, 768), (2, 2, 6, 2))


def _swin(
    b: GraphBuilder,
    x: str,
    design: Design,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
) -> str:
    """The network of section 3.1.

    Raises:
        GraphError: the map of a stage cannot be halved.
    """
    n, _, height, width = b.type_of(x).shape
    if height % (_PATCH * 8) or width % (_PATCH * 8):
        raise GraphError(f"Swin halves a map of patches three times: {height}x{width}")
    outside = design.channels(widths[0])
    x = b.conv(x, outside, _PATCH, _PATCH, "valid", bias=True)
    high, wide = height // _PATCH, width // _PATCH
    x = b.transpose(b.reshape(x, (n, outside, high * wide)), (0, 2, 1))
    x = b.layer_norm(x)
    for stage, (features, depth) in enumerate(zip(widths, depths, strict=True)):
        if stage:
            x, high, wide = _merged(b, x, high, wide, design.channels(features))
        for layer in range(depth):
            x = _layer(b, x, design, (high, wide), features, shifted=layer % 2 == 1)
    x = b.reduce_mean(b.layer_norm(x), (1,), keepdims=False)
    return b.fc(x, design.classes())


def _merged(b: GraphBuilder, x: str, high: int, wide: int, features: int) -> tuple[str, int, int]:
    """Patch merging: four neighbours become one token; gives the tokens and the size of the map."""
    n, _, inside = b.type_of(x).shape
    grid = b.reshape(x, (n, high, wide, inside))
    parts = []
    rows = [b.slice(grid, (row,), (high,), (1,), (2,)) for row in (0, 1)]
    for row, column in ((0, 0), (1, 0), (0, 1), (1, 1)):
        parts.append(b.slice(rows[row], (column,), (wide,), (2,), (2,)))
    high, wide = high // 2, wide // 2
    joined = b.reshape(b.concat(parts, axis=3), (n, high * wide, 4 * inside))
    return linear(b, b.layer_norm(joined), features, bias=False), high, wide


def _layer(
    b: GraphBuilder,
    x: str,
    design: Design,
    size: tuple[int, int],
    features: int,
    *,
    shifted: bool,
) -> str:
    """Two residual branches: attention in windows, and a perceptron."""
    outside = b.type_of(x).shape[-1]
    heads = design.heads(features // _HEAD_SIZE)
    inside = design.channels(features, heads)
    window = _window(size)
    move = window // 2 if shifted and min(size) > window else 0
    tokens = _into_windows(b, b.layer_norm(x), size, window, move)
    joined = linear(b, tokens, 3 * inside)
    query, key, value = b.split(joined, (inside, inside, inside), axis=2)
    scores = scores_of(b, in_heads(b, query, heads), in_heads(b, key, heads))
    area = window**2
    scores = b.add(scores, b.weight((1, heads, area, area)))
    if move:
        scores = _masked(b, scores, size, window)
    made = linear(b, mixed(b, scores, value, heads), outside)
    x = b.add(x, _from_windows(b, made, b.type_of(x).shape, size, window, move))
    hidden = gelu(b, linear(b, b.layer_norm(x), design.channels(4 * features)))
    return b.add(x, linear(b, hidden, outside))


def _window(size: tuple[int, int]) -> int:
    """Height and width of the windows of a map; a small map is one window."""
    fitting = [w for w in _WINDOWS if size[0] % w == 0 and size[1] % w == 0]
    return fitting[0] if fitting else min(size)


def _masked(b: GraphBuilder, scores: str, size: tuple[int, int], window: int) -> str:
    """Scores with the mask that keeps pixels of shifted windows apart that are not neighbours."""
    shape = b.type_of(scores).shape
    count = size[0] // window * (size[1] // window)
    apart = b.reshape(scores, (shape[0] // count, count, *shape[1:]))
    apart = b.add(apart, b.weight((1, count, 1, *shape[2:])))
    return b.reshape(apart, shape)


def _into_windows(b: GraphBuilder, x: str, size: tuple[int, int], window: int, move: int) -> str:
    """Tokens (N, T, C) as (N * windows, pixels of a window, C)."""
    n, _, c = b.type_of(x).shape
    high, wide = size
    grid = _rolled(b, b.reshape(x, (n, high, wide, c)), move)
    parts = b.reshape(grid, (n, high // window, window, wide // window, window, c))
    return b.reshape(b.transpose(parts, (0, 1, 3, 2, 4, 5)), (-1, window**2, c))


def _from_windows(
    b: GraphBuilder, x: str, shape: tuple[int, ...], size: tuple[int, int], window: int, move: int
) -> str:
    """The reverse of `_into_windows`."""
    n, _, c = shape
    high, wide = size
    parts = b.reshape(x, (n, high // window, wide // window, window, window, c))
    grid = b.reshape(b.transpose(parts, (0, 1, 3, 2, 4, 5)), (n, high, wide, c))
    return b.reshape(_rolled(b, grid, -move), shape)


def _rolled(b: GraphBuilder, x: str, move: int) -> str:
    """A map (N, H, W, C) rolled by `move` rows and columns, as slices that are joined again."""
    for axis in (1, 2) if move else ():
        size = b.type_of(x).shape[axis]
        at = move % size
        head, tail = b.slice(x, (0,), (at,), (axis,)), b.slice(x, (at,), (size,), (axis,))
        x = b.concat([tail, head], axis=axis)
    return x
