"""Rules for ops with windows: one form of padding, pools, means over maps and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latfarm_predictors.graph.equivalences.draft import DraftCall, GraphDraft, Made, Rule
from latfarm_predictors.graph.graph import AttrValue, Node, TensorType

# Results of these ops are never below 0, so padding with 0 changes no maximum.
_NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Exp", "Abs", "Sqrt")


def _numbers(attrs: Mapping[str, AttrValue], name: str) -> tuple[int, ...]:
    value = attrs.get(name, ())
    return tuple(int(item) for item in value) if isinstance(value, tuple) else ()


def _padding(draft: GraphDraft, x: str) -> tuple[Node, tuple[int, ...]] | None:
    """The Pad of spatial axes by a constant that makes `x`, and its spatial pads.

    None if `x` is made by something else, or another op reads it too.
    """
    pad = draft.free(x, "Pad")
    pads = None if pad is None else draft.values(pad.inputs[1])
    if pad is None or pads is None or pad.attrs.get("mode", "constant") != "constant":
        return None
    half = len(pads) // 2
    if any(pads[:2] + pads[half : half + 2]) or min(pads) < 0 or half < 3:
        return None
    return pad, pads[2:half] + pads[half + 2 :]


def _fill(draft: GraphDraft, pad: Node) -> float | None:
    """The number that a Pad fills with; None if it is unknown."""
    if len(pad.inputs) < 3 or not pad.inputs[2]:
        return 0.0
    return draft.scalar(pad.inputs[2])


def _without_pad(
    draft: GraphDraft,
    call: DraftCall,
    pad: Node,
    extra: Sequence[int],
    changed: Mapping[str, AttrValue],
) -> Made | None:
    pads = tuple(a + b for a, b in zip(_numbers(call.attrs, "pads"), extra, strict=True))
    # No window of a pool may lie completely in the padding.
    kernel = _numbers(call.attrs, "kernel_shape")
    if call.op != "Conv" and any(p >= k for p, k in zip(pads, kernel * 2, strict=True)):
        return None
    draft.take(pad)
    attrs = {**call.attrs, **changed, "pads": pads}
    inputs = (pad.inputs[0], *call.inputs[1:])
    return (draft.make(call.op, inputs, call.type, attrs, call.outs, call.name),)


def pad_before_conv(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A Pad with zeros before a convolution becomes padding of the convolution."""
    found = _padding(draft, call.inputs[0])
    if found is None or _fill(draft, found[0]) != 0:
        return None
    return _without_pad(draft, call, *found, {})


def pad_before_average(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A Pad with zeros before an AveragePool becomes padding that counts in the mean."""
    found = _padding(draft, call.inputs[0])
    if found is None or _fill(draft, found[0]) != 0 or call.attrs.get("ceil_mode", 0):
        return None
    if any(_numbers(call.attrs, "pads")) and not call.attrs.get("count_include_pad", 0):
        return None
    return _without_pad(draft, call, *found, {"count_include_pad": 1})


def pad_before_maximum(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A Pad before a MaxPool becomes its padding, if its number is never a maximum.

    Such a number is the least of float32, or 0 where no element is below 0.
    """
    found = _padding(draft, call.inputs[0])
    if found is None or call.attrs.get("ceil_mode", 0) or len(call.types) > 1:
        return None
    fill = _fill(draft, found[0])
    if fill is None or not (fill <= -3.4e38 or (fill == 0 and _positive(draft, found[0]))):
        return None
    return _without_pad(draft, call, *found, {})


def _positive(draft: GraphDraft, pad: Node) -> bool:
    maker = draft.makers.get(pad.inputs[0])
    if maker is None:
        return False
    if maker.op == "Clip" and len(maker.inputs) > 1 and maker.inputs[1]:
        lower = draft.scalar(maker.inputs[1])
        return lower is not None and lower >= 0
    return maker.op in _NEVER_NEGATIVE


def idle_attributes(draft: GraphDraft, call: DraftCall) -> Made | None:
    """Drop `ceil_mode` where sizes divide evenly, and `count_include_pad` without padding."""
    attrs = dict(call.attrs)
    if attrs.get("ceil_mode", 0) and _rounds_down(draft, call):
        attrs["ceil_mode"] = 0
    if not any(_numbers(attrs, "pads")) and not attrs.get("ceil_mode", 0):
        attrs |= {"count_include_pad": 0} if "count_include_pad" in attrs else {}
    if attrs == dict(call.attrs):
        return None
    call.attrs, call.node = attrs, None
    return None


def _rounds_down(draft: GraphDraft, call: DraftCall) -> bool:
    """Whether the result has the size that rounding down gives."""
    spatial, pads = draft.type_of(call.inputs[0]).shape[2:], _numbers(call.attrs, "pads")
    kernel, strides = _numbers(call.attrs, "kernel_shape"), _numbers(call.attrs, "strides")
    dilations = _numbers(call.attrs, "dilations") or (1,) * len(spatial)
    half = len(spatial)
    floor = tuple(
        (spatial[i] + pads[i] + pads[i + half] - (kernel[i] - 1) * dilations[i] - 1) // strides[i]
        + 1
        for i in range(half)
    )
    return floor == call.type.shape[2:]


_WHOLE = {
    "AveragePool": "GlobalAveragePool",
    "ReduceMean": "GlobalAveragePool",
    "MaxPool": "GlobalMaxPool",
    "ReduceMax": "GlobalMaxPool",
}


def whole_window(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A pool whose window is the whole map becomes the global pool."""
    spatial = draft.type_of(call.inputs[0]).shape[2:]
    if _numbers(call.attrs, "kernel_shape") != spatial or any(_numbers(call.attrs, "pads")):
        return None
    if call.type.shape[2:] != (1,) * len(spatial) or len(call.types) > 1:
        return None
    op = _WHOLE[call.op]
    return (draft.make(op, call.inputs, call.type, {}, call.outs, call.name),)


def reduction_of_maps(draft: GraphDraft, call: DraftCall) -> Made | None:
    """A mean or maximum over all spatial axes becomes the global pool, then a Reshape."""
    kind = draft.type_of(call.inputs[0])
    rank = len(kind.shape)
    if rank < 3 or _numbers(call.attrs, "axes") != tuple(range(2, rank)):
        return None
    pooled = TensorType(kind.dtype, kind.shape[:2] + (1,) * (rank - 2))
    made = draft.make(_WHOLE[call.op], call.inputs, pooled)
    return (draft.view(made, call.type.shape),)


def resize_spelling(draft: GraphDraft, call: DraftCall) -> Made | None:
    """One form of Resize: factors instead of sizes, and one rule where several agree.

    By whole factors, the nearest neighbour is the same by each rule of rounding.
    """
    shape = draft.type_of(call.inputs[0]).shape
    factors = [new / old for new, old in zip(call.type.shape, shape, strict=True)]
    if len(call.inputs) > 3 and call.inputs[3]:
        inputs = (call.inputs[0], "", draft.floats(factors))
        return (draft.make("Resize", inputs, call.type, call.attrs, call.outs, call.name),)
    mode, rule = call.attrs.get("mode"), call.attrs.get("coordinate_transformation_mode")
    attrs = dict(call.attrs)
    if mode == "nearest" and all(factor.is_integer() for factor in factors):
        same = ("round_prefer_floor", "round_prefer_ceil")
        if rule == "half_pixel" and attrs.get("nearest_mode") in same:
            attrs |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if rule == "pytorch_half_pixel" and min(call.type.shape[2:], default=2) > 1:
        attrs["coordinate_transformation_mode"] = "half_pixel"
    if attrs != dict(call.attrs):
        return (draft.make("Resize", call.inputs, call.type, attrs, call.outs, call.name),)
    return None


PATTERNS: Mapping[str, Sequence[Rule]] = {
    "Conv": (pad_before_conv,),
    "AveragePool": (pad_before_average, idle_attributes, whole_window),
    "MaxPool": (pad_before_maximum, idle_attributes, whole_window),
    "ReduceMean": (reduction_of_maps,),
    "ReduceMax": (reduction_of_maps,),
    "Resize": (resize_spelling,),
}
