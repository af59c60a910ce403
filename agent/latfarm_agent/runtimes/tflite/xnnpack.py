"""Which operators of a model each kernel of XNNPACK covers.

XNNPACK names its kernels by what they do ("Convolution (NHWC, F32) IGEMM") and not by what they
came from. It keeps the order of the operators, puts activations and paddings into their neighbours,
and adds a kernel where an operator needs another layout. The cheapest way to lay the kernels along
the operators under these rules tells which is which; the kernels say so themselves whether an
activation was fused: where it was not, there is one that clamps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

from latfarm_agent.runtimes.tflite_format.model import TfliteOperator

_ACTIVATIONS = frozenset({"RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1"})
_PADDINGS = frozenset({"PAD", "PADV2"})
# Operators that a kernel may do without: they move nothing, or into what follows.
_FREE = _ACTIVATIONS | _PADDINGS | {"RESHAPE", "SQUEEZE", "EXPAND_DIMS", "DEQUANTIZE", "QUANTIZE"}
_MULTIPLE = frozenset({"CONCATENATION", "SPLIT", "SPLIT_V", "PACK", "UNPACK", "SOFTMAX", "MEAN"})
_HELPERS = ("Static Reshape", "Reshape", "Copy", "Transpose", "Convert", "Constant Pad", "Slice")

# An activation that the file writes into these is a kernel by itself, behind theirs.
_CLAMPED = frozenset({"ADD", "SUB", "MUL", "DIV"})
_CLAMPING = "Clamp"

_FULLY_CONNECTED = ("Fully Connected", "Dynamic Fully Connected")
_KERNELS = {
    "CONV_2D": ("Convolution", *_FULLY_CONNECTED),  # of 1x1: a matrix product
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

_KNOWN, _HELPING, _AGAIN, _FUSED, _UNKNOWN, _LOST = 0.0, 0.4, 0.1, 1.0, 3.0, 6.0
_MOST_KERNELS = 64
_SLACK = 14.0


@dataclass(frozen=True)
class Group:
    """Operators that run as one, and the numbers of the kernels that run them, in order."""

    operators: tuple[TfliteOperator, ...]
    kernels: tuple[int, ...]


def lay_along(operators: Sequence[TfliteOperator], kernels: Sequence[str]) -> list[Group]:
    """Which operators each kernel covers.

    Args:
        operators: those of one partition, in order.
        kernels: names of what XNNPACK runs for it, in order.

    Returns:
        Groups in the order of their kernels; every kernel is in one. An operator for which nothing
        runs and which is no neighbour's part is in none.
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
    """Whether a group's last kernel clamps what its operator has made: 1, otherwise 0.

    Convolutions, matrix products and poolings clamp while they write. A sum or a product does not:
    the activation that the file writes into such an operator is a kernel by itself in XNNPACK.

    Args:
        group: operators and the numbers of their kernels.
        kernels: names of these kernels, in order.
    """
    clamps = kernels[-1].startswith(_CLAMPING) and not kernels[0].startswith(_CLAMPING)
    return int(clamps and group.operators[-1].code in _CLAMPED)


def _shares(operators: Sequence[TfliteOperator], kernels: Sequence[str]) -> list[list[int]]:
    """For each operator the numbers of its kernels, by the cheapest way to give them all out."""
    # By how many kernels are given out: the cost so far, and the way there.
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
    """How many of the kernels from `first` on an operator may have, at which price."""
    found = [(0, _FUSED if operator.code in _FREE else _LOST)]
    price, mains = 0.0, 0
    for count, kernel in enumerate(kernels[first : first + _MOST_KERNELS], start=1):
        names = _KERNELS.get(operator.code)
        if names is None:
            # An operator that is not listed here: a kernel of its own, whatever it is called.
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
    """The operator whose kernel does an operator's work too; itself where there is none."""
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
    """The end of a chain of hosts, whose links all lead to operators with fewer unknowns."""
    seen = set()
    while owner[place] != place and place not in seen:
        seen.add(place)
        place = owner[place]
    return place
