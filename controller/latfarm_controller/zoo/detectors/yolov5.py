"""YOLOv5 n, s, m and l, version 6 and later (Ultralytics), for 80 classes.

The output is that of the exported model before suppression: decoded boxes, with the anchors of all
levels in one tensor (N, 25200, 85) at 640 pixels. Each anchor has x, y, width, height, objectness
and classes. Unlike in the reference's export, batch norms are not folded, and the three anchors of
a cell share one grid of cells instead of having a copy each.
"""

from __future__ import annotations

from latfarm_predictors.graph.builder import GraphBuilder

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

_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
"""Widths and heights of the anchors of each level, in pixels."""


def yolov5n(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv5n: depth 0.33, width 0.25."""
    return _yolov5(b, x, design, CompoundScale(0.33, 0.25))


def yolov5s(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv5s: depth 0.33, width 0.5."""
    return _yolov5(b, x, design, CompoundScale(0.33, 0.5))


def yolov5m(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv5m: depth 0.67, width 0.75."""
    return _yolov5(b, x, design, CompoundScale(0.67, 0.75))


def yolov5l(b: GraphBuilder, x: str, design: Design) -> str:
    """YOLOv5l: depth 1, width 1."""
    return _yolov5(b, x, design, CompoundScale(1.0, 1.0))


def _yolov5(b: GraphBuilder, x: str, design: Design, scale: CompoundScale) -> str:
    """CSPDarknet, then a path to finer maps and one back to coarser maps (PANet)."""
    check_sides(b, x, "YOLOv5")

    def down(x: str, base: int) -> str:
        return conv(b, x, design.channels(scale.channels(base)), design.kernel(3), 2)

    def c3(x: str, base: int, repeats: int, *, add: bool = True) -> str:
        return _c3(b, x, design, scale.channels(base), scale.repeats(repeats), add=add)

    def narrow(x: str, base: int) -> str:
        return conv(b, x, design.channels(scale.channels(base)))

    stem = b.conv(x, design.channels(scale.channels(64)), 6, 2, 2)
    stem = b.batch_norm(stem)
    x = b.mul(stem, b.sigmoid(stem))
    x = c3(down(x, 128), 128, 3)
    fine = c3(down(x, 256), 256, 6)
    middle = c3(down(fine, 512), 512, 9)
    coarse = c3(down(middle, 1024), 1024, 3)
    coarse = narrow(sppf(b, coarse, design, scale.channels(1024)), 512)
    middle = narrow(c3(b.concat([b.resize(coarse, 2), middle]), 512, 3, add=False), 256)
    fine = c3(b.concat([b.resize(middle, 2), fine]), 256, 3, add=False)
    middle = c3(b.concat([down(fine, 256), middle]), 512, 3, add=False)
    coarse = c3(b.concat([down(middle, 512), coarse]), 1024, 3, add=False)
    found: list[str] = []
    for level, stride, anchors in zip((fine, middle, coarse), STRIDES, _ANCHORS, strict=True):
        found.append(_detect(b, level, design, stride, anchors))
    return b.concat(found)


def _c3(b: GraphBuilder, x: str, design: Design, base: int, repeats: int, *, add: bool) -> str:
    """A cross-stage partial block: half the channels pass through the bottlenecks."""
    y = conv(b, x, design.channels(base // 2))
    for _ in range(repeats):
        y = bottleneck(b, y, design, (1, 3), add=add)
    side = conv(b, x, design.channels(base // 2))
    return conv(b, b.concat([y, side]), design.channels(base))


def _detect(
    b: GraphBuilder, x: str, design: Design, stride: int, anchors: tuple[tuple[int, int], ...]
) -> str:
    """The predictions of one level, decoded to pixels: (N, anchors of the level, 5 + classes)."""
    n, _, high, wide = b.type_of(x).shape
    count, told = len(anchors), 5 + design.classes(CLASSES)
    x = b.conv(x, count * told, 1, bias=True)
    x = b.transpose(b.reshape(x, (n, count, told, high, wide)), (0, 1, 3, 4, 2))
    centre, size, scores = b.split(b.sigmoid(x), (2, 2, told - 4), axis=4)
    corners = [place - 0.5 for row in range(high) for cell in range(wide) for place in (cell, row)]
    centre = b.mul(centre, b.scalar_like(centre, 2.0))
    centre = b.add(centre, b.weight((1, 1, high, wide, 2), values=corners))
    centre = b.mul(centre, b.scalar_like(centre, stride))
    size = b.mul(size, b.scalar_like(size, 2.0))
    size = b.op("Pow", [size, b.scalar_like(size, 2.0)])
    sides = [float(side) for anchor in anchors for side in anchor]
    size = b.mul(size, b.weight((1, count, 1, 1, 2), values=sides))
    return b.reshape(b.concat([centre, size, scores], 4), (n, count * high * wide, told))
