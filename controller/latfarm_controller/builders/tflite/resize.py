"""Translates ops that resize images or that move data between pixels and channels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from latfarm_predictors.graph.graph import Node
from numpy.typing import NDArray

from latfarm_controller.builders.tflite.layout import IMAGE, TfliteTranslation, refuse
from latfarm_controller.builders.tflite.nn import Handler, number

Places = NDArray[np.float64]

# Functions for ONNX's coordinate_transformation_mode. They return the position in the source of
# each output element, from its index, the source's size, the output's size, and the axis's scale.
_COORDINATES: Mapping[str, Callable[[Places, int, int, float], Places]] = {
    "asymmetric": lambda x, _, __, scale: x / scale,
    "half_pixel": lambda x, _, __, scale: (x + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda x, _, out, scale: (
        (x + 0.5) / scale - 0.5 if out > 1 else np.zeros_like(x)
    ),
    "align_corners": lambda x, size, out, _: x * (size - 1) / max(out - 1, 1),
}
# Functions for ONNX's nearest_mode, which round a position to the index of a source element.
_ROUNDINGS: Mapping[str, Callable[[Places], Places]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
# Values of TFLite's options (alignCorners, halfPixelCenters), in the order in which they are tried.
_CHOICES = ((False, False), (False, True), (True, False))


def resize(t: TfliteTranslation, node: Node) -> None:
    """Translate Resize of images, with nearest or linear interpolation.

    It becomes a TFLite resize operator if one of `_CHOICES` gives the positions that ONNX
    prescribes. Otherwise, nearest interpolation becomes one GATHER per axis, and linear
    interpolation is refused.
    """
    source, result = t.shape(node.inputs[0]), t.shape(node.outputs[0])
    if len(result) != 4 or result[:2] != source[:2]:
        raise refuse(node, "a resize of other axes than height and width")
    mode = str(node.attrs.get("mode", "nearest"))
    where = str(node.attrs.get("coordinate_transformation_mode", "half_pixel"))
    if mode not in ("nearest", "linear") or where not in _COORDINATES:
        raise refuse(node, f"mode {mode} with {where} coordinates")
    places = [
        _COORDINATES[where](np.arange(out, dtype=np.float64), size, out, scale)
        for size, out, scale in zip(source[2:], result[2:], _scales(t, node), strict=True)
    ]
    if mode == "nearest":
        rounding = str(node.attrs.get("nearest_mode", "round_prefer_floor"))
        if rounding not in _ROUNDINGS:
            raise refuse(node, f"nearest mode {rounding}")
        places = [
            np.clip(_ROUNDINGS[rounding](np.round(place, 6)), 0, size - 1)
            for place, size in zip(places, source[2:], strict=True)
        ]
    own = _nearest if mode == "nearest" else _linear
    for choice in _CHOICES:
        made = [own(size, out, *choice) for size, out in zip(source[2:], result[2:], strict=True)]
        if all(np.allclose(m, p, atol=1e-4) for m, p in zip(made, places, strict=True)):
            t.apply(
                "RESIZE_NEAREST_NEIGHBOR" if mode == "nearest" else "RESIZE_BILINEAR",
                [t.data(node.inputs[0], IMAGE), t.indices(result[2:])],
                t.put(node.outputs[0], IMAGE),
                alignCorners=choice[0],
                halfPixelCenters=choice[1],
            )
            return
    if mode == "linear":
        raise refuse(node, f"linear interpolation at scales {_scales(t, node)} with {where}")
    n, channels, high, _ = result
    index = [t.indices([int(p) for p in place]) for place in places]
    rows = t.apply(
        "GATHER",
        [t.data(node.inputs[0], IMAGE), index[0]],
        shape=(n, high, source[3], channels),
        axis=1,
    )
    t.apply("GATHER", [rows, index[1]], t.put(node.outputs[0], IMAGE), axis=2)


def _scales(t: TfliteTranslation, node: Node) -> list[float]:
    """Return the scales of height and width.

    They are the node's constant scales if it has them, else the output's size divided by the
    source's.
    """
    given = node.inputs[2] if len(node.inputs) > 2 else ""
    if given and t.is_constant(given) and t.shape(given) == (4,):
        return [float(scale) for scale in t.array(given)[2:]]
    sizes = zip(t.shape(node.inputs[0])[2:], t.shape(node.outputs[0])[2:], strict=True)
    return [out / size for size, out in sizes]


def _ratio(size: int, out: int, corners: bool) -> float:
    return (size - 1) / (out - 1) if corners and out > 1 else size / out


def _nearest(size: int, out: int, corners: bool, half: bool) -> Places:
    """Return the index of the source element that TFLite takes for each output element.

    This repeats TFLite's function GetNearestNeighbor. `size` and `out` are the sizes of the source
    and of the output; `corners` and `half` are the options alignCorners and halfPixelCenters.
    """
    x = np.arange(out, dtype=np.float64) + (0.5 if half else 0.0)
    real = np.round(x * _ratio(size, out, corners), 6)
    found: Places = np.clip(np.floor(real + 0.5) if corners else np.floor(real), 0, size - 1)
    return found


def _linear(size: int, out: int, corners: bool, half: bool) -> Places:
    """Return the position in the source at which TFLite interpolates each output element.

    This repeats TFLite's function ComputeInterpolationValues. The parameters are those of
    `_nearest`.
    """
    x = np.arange(out, dtype=np.float64)
    ratio = _ratio(size, out, corners)
    found: Places = (x + 0.5) * ratio - 0.5 if half else x * ratio
    return found


def blocks(t: TfliteTranslation, node: Node, code: str) -> None:
    """Translate DepthToSpace or SpaceToDepth.

    TFLite's order of channels is ONNX's mode DCR (depth, column, row). For a DepthToSpace in mode
    CRD (column, row, depth), a GATHER puts the channels into this order first.
    """
    block = int(number(node, "blocksize", 2))
    source = t.data(node.inputs[0], IMAGE)
    if code == "DEPTH_TO_SPACE" and node.attrs.get("mode", "DCR") == "CRD":
        shape = t.model.tensors[source].shape
        order = np.arange(shape[3]).reshape(-1, block * block).T.reshape(-1)
        source = t.apply("GATHER", [source, t.indices(order.tolist())], shape=shape, axis=3)
    t.apply(code, [source], t.put(node.outputs[0], IMAGE), blockSize=block)


HANDLERS: Mapping[str, Handler] = {
    "Resize": resize,
    "DepthToSpace": partial(blocks, code="DEPTH_TO_SPACE"),
    "SpaceToDepth": partial(blocks, code="SPACE_TO_DEPTH"),
}
