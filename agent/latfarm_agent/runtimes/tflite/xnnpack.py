"""Which operators of a model each kernel of XNNPACK covers.

XNNPACK names its kernels after what they do ("Convolution (NHWC, F32) IGEMM") and not after the
operators that they implement. It keeps the order of the operators, fuses activations and paddings
into their neighbours, and adds a kernel where an operator needs another layout. This module assigns
the kernels to the operators in order: each assignment has a price under these rules, and the
cheapest one is taken. An activation that was not fused shows itself as a kernel that clamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from latfarm_agent.runtimes.tflite_format.model import TfliteOperator

_ACTIVATIONS = frozenset({"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"})
_PADDINGS = frozenset({"PAD", "PADV2"})
# Operators that may have no kernel: they move no data, or are fused into a neighbour.
_FREE = _ACTIVATIONS | _PADDINGS | {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "DEQUANTIZE", "QUANTIZE"}
_MULTIPLE = frozenset({"CONCATENATION", "SPLIT", "SPLIT_V", "PACK", "UNPACK", "SOFTMAX", "MEAN"})
_HELPERS = ("Static Reshape", "Reshape", "Copy", "Transpose", "Convert", "Constant Pad", "Slice")

# If such an operator has a fused activation in the file, XNNPACK runs it as a kernel of its own.
_CLAMPED = frozenset({"ADD", "SUB", "MUL", "DIV"})
_CLAMPING = "Clamp"

_FULLY_CONNECTED = ("Fully Connected", "Dynamic Fully Connected")
# Code of an operator -> how the names of its kernels may begin.
_KERNELS = {
    "CONV_2D": ("Convolution", *_FULLY_CONNECTED),  # a 1x1 convolution is a matrix product
    "DEPTHWISE_CONV_2D": ("Convolution", "Multiply"),
    "TRANSPOSE_CONV": ("Deconvolution",),
    "FULLY_CONNECTED": _FULLY_CONNECTED,
    "BATCH_MATMUL": ("Batch Matrix Multiply", *_FULLY_CONNECTED),
    "ADD": ("Add",),
    "SUB": ("Subtract",),
    "MUL": ("Multiply", "Square"),
    "DIV": ("Divide",),
    "MAXIMUM": ("Maximum",),
    "MINIMUM": ("Minimum",),
    "SQUARED_DIFFERENCE": ("Squared Difference",),
    "PRELU": ("PReLU", "Prelu"),
    "MAX_POOL_2D": ("Max Pooling", "ArgMax Pooling"),
    "AVERAGE_POOL_2D": ("Average Pooling", "Global Average Pooling", "Mean"),
    "MEAN": ("Mean", "Global Average Pooling"),
    "SUM": ("Sum", "Global Sum Pooling"),
    "RESHAPE": ("Static Reshape", "Reshape", "Copy"),
    "SQUEEZE": ("Static Reshape", "Squeeze", "Copy"),
    "EXPAND_DIMS": ("Static Expand Dims", "Static Reshape", "Copy"),
    "CONCATENATION": ("Copy", "Concatenate"),
    "SPLIT": ("Copy", "Even Split", "Slice"),
    "TRANSPOSE": ("Transpose",),
    "STRIDED_SLICE": ("Slice", "Static Slice", "Strided Slice"),
    "SLICE": ("Slice", "Static Slice"),
    "RELU": ("Clamp",),
    "RELU6": ("Clamp",),
    "RELU_N1_TO_1": ("Clamp",),
    "RELU_0_TO_1": ("Clamp",),
    "LEAKY_RELU": ("Leaky ReLU", "Leaky Relu"),
    "ELU": ("ELU", "Elu"),
    "GELU": ("GELU", "Gelu"),
    "LOGISTIC": ("Sigmoid",),
    "TANH": ("Tanh", "TanH"),
    "HARD_SWISH": ("HardSwish", "Hard Swish"),
    "SOFTMAX": ("Softmax", "SoftMax"),
    "PAD": ("Constant Pad",),
    "PADV2": ("Constant Pad",),
    "RESIZE_BILINEAR": ("Resize Bilinear",),
    "DEPTH_TO_SPACE": ("Depth To Space",),
    "SPACE_TO_DEPTH": ("Space To Depth",),
    "QUANTIZE": ("Convert",),
    "DEQUANTIZE": ("Convert",),
    "RSQRT": ("Reciprocal Square Root",),
    "SQRT": ("Square Root",),
    "SQUARE": ("Square",),
}

# Prices in an assignment, set by hand: a kernel that fits its operator, one that changes a layout,
# a further one of an operator that has several, an operator that is fused, a kernel that does not
# fit, an operator without any kernel.
_KNOWN, _HELPING, _AGAIN, _FUSED, _UNKNOWN, _LOST = 0.0, 0.4, 0.1, 1.0, 3.0, 6.0
_MOST_KERNELS = 64  # kernels that one operator may have
_SLACK = 14.0  # assignments that cost this much more than the cheapest one are given up


@dataclass(frozen=True)
class Group:
    """Operators that run as one unit, and the numbers of the kernels that run them, in order."""

    operators: tuple[TfliteOperator, ...]
    kernels: tuple[int, ...]


def lay_along(operators: Sequence[TfliteOperator], kernels: Sequence[str]) -> list[Group]:
    """Assign the kernels of a partition to its operators.

    Args:
        operators: the operators of one partition, in order.
        kernels: names of the kernels that XNNPACK runs for it, in order.

    Returns:
        Groups in the order of their kernels. Every kernel is in exactly one group. An operator is
        in no group if it has no kernel and was not fused into a neighbour.
    """
    shares = _shares(operators, kernels)
    owner = list(range(len(operators)))
    for place, share in enumerate(shares):
        if not share:
            owner[place] = _host(operators, place)
    members: dict[int, list[TfliteOperator]] = {}
    for place, operator in enumerate(operators):
        members.setdefault(_root(owner, place), []).append(operator)
    return [
        Group(tuple(members[place]), tuple(share)) for place, share in enumerate(shares) if share
    ]


def own_clamp(group: Group, kernels: Sequence[str]) -> int:
    """Return 1 if the last kernel of a group is the activation of its operator, otherwise 0.

    Convolutions, matrix products and poolings apply their activation while they write. A sum or a
    product does not: XNNPACK runs its fused activation as a kernel of its own.

    Args:
        group: operators and the numbers of their kernels.
        kernels: names of these kernels, in order.
    """
    clamps = kernels[-1].startswith(_CLAMPING) and not kernels[0].startswith(_CLAMPING)
    return int(clamps and group.operators[-1].code in _CLAMPED)


def _shares(operators: Sequence[TfliteOperator], kernels: Sequence[str]) -> list[list[int]]:
    """Return for each operator the numbers of its kernels, by the cheapest assignment."""
    # Number of assigned kernels -> the cost so far, and how many kernels each operator has.
    states: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for place, operator in enumerate(operators):
        last = place == len(operators) - 1
        ahead: dict[int, tuple[float, tuple[int, ...]]] = {}
        for given, (cost, way) in states.items():
            for count, price in _prices(operator, kernels, given, every=last):
                now = given + count
                total = cost + price
                if now not in ahead or total < ahead[now][0]:
                    ahead[now] = (total, (*way, count))
        least = min(cost for cost, _ in ahead.values())
        states = {
            given: state
            for given, state in ahead.items()
            if state[0] <= least + _SLACK or given == len(kernels)
        }
    counts = states[max(states)][1] if operators else ()
    found, first = [], 0
    for count in counts:
        found.append(list(range(first, first + count)))
        first += count
    if found and first < len(kernels):
        found[-1] += range(first, len(kernels))
    return found


def _prices(
    operator: TfliteOperator, kernels: Sequence[str], first: int, *, every: bool
) -> list[tuple[int, float]]:
    """Return the possible numbers of kernels of an operator, counted from `first`, with prices."""
    found = [(0, _FUSED if operator.code in _FREE else _LOST)]
    price, mains = 0.0, 0
    for count, kernel in enumerate(kernels[first : first + _MOST_KERNELS], start=1):
        names = _KERNELS.get(operator.code)
        if names is None:
            # An operator without an entry has one kernel of its own, whatever its name is.
            price += _UNKNOWN if mains else _KNOWN + _FUSED
            mains += 1
        elif kernel.startswith(names):
            price += (_AGAIN if operator.code in _MULTIPLE else _UNKNOWN) if mains else _KNOWN
            mains += 1
        elif mains and operator.code in _CLAMPED and kernel.startswith(_CLAMPING):
            price += _AGAIN
        elif kernel.startswith(_HELPERS):
            price += _HELPING
        else:
            price += _UNKNOWN
        found.append((count, price if mains else price + _UNKNOWN))
        if price > _SLACK and not every:
            break
    return found


def _host(operators: Sequence[TfliteOperator], place: int) -> int:
    """Return the operator into which another one is fused; itself if there is none."""
    operator = operators[place]
    made = {tensor: index for index, other in enumerate(operators) for tensor in other.outputs}
    before = [made[tensor] for tensor in operator.inputs if tensor in made]
    after = [
        index
        for index, other in enumerate(operators)
        if set(other.inputs).intersection(operator.outputs)
    ]
    if operator.code in _PADDINGS and len(after) == 1:
        return after[0]
    if operator.code in _ACTIVATIONS and before:
        return before[0]
    return place


def _root(owner: Sequence[int], place: int) -> int:
    """Return the operator at the end of a chain of fused operators."""
    seen = set()
    while owner[place] != place and place not in seen:
        seen.add(place)
        place = owner[place]
    return place
