"""YOLOv8 n, s, m, l and x (Ultralytics), for 80 classes.

The output is that of the exported model before suppression: decoded boxes, with the cells of all
levels in one tensor (N, 84, 8400) at 640 pixels. Each cell has x, y, width, height and classes.
Unlike in the reference's export, batch norms are not folded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import AttrValue

from latfarm_controller.zoo.design import Design
from latfarm_controller.zoo.detectors.yolo import (
    CLASSES,
    STRIDES,
    CompoundScale,
    bottleneck,
    check_sides,
    conv,
    sppf,
)

_BINS = 16
"""Number of bins of the distribution over the distance of a side from the cell's centre."""
_POINTWISE: Mapping[str, AttrValue] = MappingProxyType({"kernel_shape": (1, 1)})


def yolov8n(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv8n: depth 0.33, width 0.25."""
    return _yolov8(b, x, design, CompoundScale(0.33, 0.25))


def yolov8s(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv8s: depth 0.33, width 0.5."""
    return _yolov8(b, x, design, CompoundScale(0.33, 0.5))


def yolov8m(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv8m: depth 0.67, width 0.75."""
    return _yolov8(b, x, design, CompoundScale(0.67, 0.75, 768))


def yolov8l(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv8l: depth 1, width 1, and half as many channels in the coarsest map."""
    return _yolov8(b, x, design, CompoundScale(1.0, 1.0, 512))


def yolov8x(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv8x: depth 1, width 1.25, and half as many channels in the coarsest map."""
    return _yolov8(b, x, design, CompoundScale(1.0, 1.25, 512))


def _yolov8(b: GraphBuilder, x: str, design: Design, scale: CompoundScale) -> str:
    """The layout of YOLOv5, with C2f blocks and separate heads for boxes and classes."""
    check_sides(b, x, "YOLOv8")

    def down(x: str, base: int) -> str:
        return conv(b, x, design.channels(scale.channels(base)), design.kernel(3), 2)

    def c2f(x: str, base: int, repeats: int, *, add: bool = True) -> str:
        return _c2f(b, x, design, scale.channels(base), scale.repeats(repeats), add=add)

    x = c2f(down(down(x, 64), 128), 128, 3)
    fine = c2f(down(x, 256), 256, 6)
    middle = c2f(down(fine, 512), 512, 6)
    coarse = c2f(down(middle, 1024), 1024, 3)
    coarse = sppf(b, coarse, design, scale.channels(1024))
    middle = c2f(b.concat([b.resize(coarse, 2), middle]), 512, 3, add=False)
    fine = c2f(b.concat([b.resize(middle, 2), fine]), 256, 3, add=False)
    middle = c2f(b.concat([down(fine, 256), middle]), 512, 3, add=False)
    coarse = c2f(b.concat([down(middle, 512), coarse]), 1024, 3, add=False)
    return _detect(b, (fine, middle, coarse), design, scale.channels(256))


def _c2f(b: GraphBuilder, x: str, design: Design, base: int, repeats: int, *, add: bool) -> str:
    """A cross-stage partial block that joins the results of all its bottlenecks at its end."""
    inside = design.channels(base // 2)
    parts = list(b.split(conv(b, x, 2 * inside), (inside, inside)))
    for _ in range(repeats):
        parts.append(bottleneck(b, parts[-1], design, (3, 3), add=add))
    return conv(b, b.concat(parts), design.channels(base))


def _detect(b: GraphBuilder, levels: Sequence[str], design: Design, base: int) -> str:
    """The predictions of all levels, decoded to pixels: (N, 4 + classes, cells).

    Args:
        b: where to build.
        levels: the maps, the finest first.
        design: how the published configuration is changed.
        base: published channels of the finest level, which determine the sizes of all heads.
    """
    classes = design.classes(CLASSES)
    maps: list[str] = []
    for level in levels:
        n, _, high, wide = b.type_of(level).shape
        box = _head(b, level, design, max(16, base // 4, 4 * _BINS), 4 * _BINS)
        label = _head(b, level, design, max(base, min(classes, 100)), classes)
        joined = b.concat([box, label])
        maps.append(b.reshape(joined, (n, 4 * _BINS + classes, high * wide)))
    boxes, labels = b.split(b.concat(maps, 2), (4 * _BINS, classes))
    sides = [b.type_of(level).shape[2:] for level in levels]
    return b.concat([_boxes(b, boxes, sides), b.sigmoid(labels)])


def _head(b: GraphBuilder, x: str, design: Design, base: int, outputs: int) -> str:
    """Two convolutions, and a 1x1 convolution with bias."""
    for _ in range(2):
        x = conv(b, x, design.channels(base), design.kernel(3))
    return b.conv(x, outputs, 1, bias=True)


def _boxes(b: GraphBuilder, x: str, sides: Sequence[tuple[int, ...]]) -> str:
    """Boxes (N, 4, cells) in pixels from distributions (N, 4 x bins, cells).

    The distance of a side from the cell's centre is the mean of its distribution over 0 to 15 cells
    (Li et al. 2020, Generalized Focal Loss, equation 3). A convolution with fixed weights gives the
    mean.
    """
    n, _, cells = b.type_of(x).shape
    x = b.transpose(b.reshape(x, (n, 4, _BINS, cells)), (0, 2, 1, 3))
    bins = b.weight((1, _BINS, 1, 1), values=[float(value) for value in range(_BINS)])
    mean = b.op("Conv", [b.softmax(x, 1), bins], _POINTWISE)
    before, after = b.split(b.reshape(mean, (n, 4, cells)), (2, 2))
    centres = _centres(b, sides)
    start, end = b.sub(centres, before), b.add(centres, after)
    both = b.add(start, end)
    middle = b.div(both, b.scalar_like(both, 2.0))
    strides = [
        float(stride)
        for stride, (high, wide) in zip(STRIDES, sides, strict=True)
        for _ in range(high * wide)
    ]
    box = b.concat([middle, b.sub(end, start)])
    return b.mul(box, b.weight((1, cells), values=strides))


def _centres(b: GraphBuilder, sides: Sequence[tuple[int, ...]]) -> str:
    """The centres of the cells of all levels, of shape (1, 2, cells), in units of cells."""
    across = [cell + 0.5 for high, wide in sides for _ in range(high) for cell in range(wide)]
    down = [row + 0.5 for high, wide in sides for row in range(high) for _ in range(wide)]
    return b.weight((1, 2, len(across)), values=[*across, *down])
