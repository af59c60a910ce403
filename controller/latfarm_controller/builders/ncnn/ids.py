"""Translates integer tensors: token ids that index a table, and inputs passed as floats."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders.ncnn.blobs import NcnnTranslation, number, pick, refuse
from latfarm_controller.builders.ncnn.file import Data
from latfarm_controller.builders.ncnn.moves import crop
from latfarm_controller.builders.ncnn.nn import Handler
from latfarm_controller.errors import BuildError

# The integer types of a graph that have a translation.
INTEGERS = frozenset({"int32", "int64"})
# Ops that an integer tensor may pass through before it indexes a table or is cast to float32.
INTEGER_MOVES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Cast"})


def check_types(t: NcnnTranslation, node: Node) -> None:
    """Check the types of a node's operands that are computed at run time.

    They must be float32. Integers are allowed for the ops in `INTEGER_MOVES` and for the indices
    of a Gather.

    Raises:
        BuildError: an operand has another type.
    """
    for position, tensor in enumerate(node.inputs):
        if not tensor or t.is_constant(tensor):
            continue
        kind = t.graph.type_of(tensor).dtype
        ids = kind in INTEGERS and (
            node.op in INTEGER_MOVES or (node.op == "Gather" and position == 1)
        )
        if kind != "float32" and not ids:
            raise BuildError(
                f"node {node.name!r} ({node.op}): operand {tensor!r} is {kind}; ncnn takes float32"
            )


def cast(t: NcnnTranslation, node: Node) -> None:
    """Translate a Cast to no layer: its result is in the same blob as its operand.

    This is right if the type stays the same, if both types are integers, or if an integer input of
    the graph, which ncnn is given as float32, is cast to float32. Any other Cast is refused.
    """
    x, made = node.inputs[0], node.outputs[0]
    before, after = t.graph.type_of(x).dtype, t.graph.type_of(made).dtype
    if before in INTEGERS and after == "float32" and not t.is_constant(x):
        if not _fed_as_floats(t, x):
            raise refuse(node, "token ids that are numbers too")
    elif not (before == after or {before, after} <= INTEGERS):
        raise refuse(node, f"a cast from {before} to {after}")
    t.view(node)


def _fed_as_floats(t: NcnnTranslation, tensor: str) -> bool:
    """Return whether an integer tensor is a graph input, perhaps reshaped, that no Gather uses."""
    maker = t.graph.producers.get(tensor)
    if maker is not None:
        return maker.op in INTEGER_MOVES and _fed_as_floats(t, maker.inputs[0])
    return not _looks_up(t, tensor)


def _looks_up(t: NcnnTranslation, tensor: str) -> bool:
    for reader in t.graph.consumers.get(tensor, ()):
        if reader.op == "Gather" and reader.inputs[1] == tensor:
            return True
        if reader.op in INTEGER_MOVES and _looks_up(t, reader.outputs[0]):
            return True
    return False


def gather(t: NcnnTranslation, node: Node) -> None:
    """Translate a Gather.

    The result is a constant if both operands are constant. A look-up of token ids in a constant
    table becomes an Embed. Constant indices that count up in steps of 1 become a Crop.
    """
    x, indices = node.inputs
    made = node.outputs[0]
    shape = t.shape(x)
    axis = int(number(node, "axis", 0)) % len(shape)
    if t.is_constant(x) and t.is_constant(indices):
        t.fold(made, np.take(t.array(x), t.array(indices).astype(np.int64), axis))
        return
    if t.is_constant(x):
        if axis or len(shape) != 2:
            raise refuse(node, f"a look-up along axis {axis} of a table {list(shape)}")
        words, (rows, width) = prod(t.shape(indices)), shape
        data = [Data(lambda: t.array(x), rows * width, tagged=True)]
        params = {0: width, 1: rows, 2: 0, 3: rows * width}
        t.layer(node, "Embed", [t.blob(indices, (words,))], (words, width), params, data)
        return
    at = t.ints(node, 1)
    start = at[0] % shape[axis]
    if any(index % shape[axis] != start + step for step, index in enumerate(at)):
        raise refuse(node, "indices that are no range")
    if len(at) == shape[axis]:
        t.view(node)
        return
    kept = t.fitting(node, shape, {axis})
    dims = pick(shape, kept)
    cuts = {kept.index(axis): (start, start + len(at))}
    blob, left = crop(t, node, cuts, dims, t.blob(x, dims))
    t.put(made, blob, left)


HANDLERS: Mapping[str, Handler] = {"Cast": cast, "Gather": gather}
