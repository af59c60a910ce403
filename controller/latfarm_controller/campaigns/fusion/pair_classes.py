"""Classes of pairs that runtimes treat alike, so that a few pairs of a class tell about all.

Whether a convolution passes its result on to an activation in one kernel is decided by the runtime
op by op: one has a clamp, another a sigmoid as well. But no runtime that leaves the common
activations behind a convolution alone takes in a rare one. So a class of pairs is separate if its
most frequent pairs and a sample of the others are. Where one of these is fused, or cannot be told,
every pair of the class is tested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from latfarm_controller.campaigns.fusion.decision import Answer
from latfarm_controller.campaigns.fusion.interest import Rule

PairClass = tuple[str, str]
"""The kinds of both ops of a pair."""
REPRESENTATIVES = 2
"""Number of pairs of a class that are tested first: the most frequent one, and one to verify it."""
VERIFIED_SHARE = 0.25
"""In a large class, share of its pairs that are tested before the others are inferred."""

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), "weighted"),
        **dict.fromkeys(("Add", "Mul", "Sub", "Div", "Mul:const", "Add:const"), "arithmetic"),
        "BatchNormalization": "normalisation",
        **dict.fromkeys(("MaxPool", "AveragePool", "LRN"), "window"),
        **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "Softmax"), "reduction"),
        **dict.fromkeys(
            ("Concat", "Pad", "Resize", "Transpose", "Slice", "DepthToSpace"), "movement"
        ),
        "Mul:gate": "gate",
    }
)
"""The kind of each op; an op that is not here is an activation."""


def kind_of(op: str) -> str:
    """The kind of an op by its name in fusion rules."""
    return _KINDS.get(op, "activation")


def class_of(rule: Rule) -> PairClass:
    """The class of a pair: the kinds of its ops.

    An op with weights is a class of its own as the first op, because a runtime writes what follows
    a convolution and what follows a matrix product in different kernels. What precedes an op with
    weights, a window or a movement of data is one class: the op works on single numbers.
    """
    first, second = rule
    if first in _WEIGHTED:
        return first, kind_of(second)
    left, right = kind_of(first), kind_of(second)
    plain = left in ("activation", "normalisation", "arithmetic", "gate")
    return ("pointwise" if plain and right in _ENDS else left), right


_ENDS = frozenset({"weighted", "window", "movement", "reduction"})
"""Kinds of second ops before which all ops that work on single numbers are alike."""


def grouped(rules: Iterable[Rule], weights: Mapping[Rule, float]) -> list[list[Rule]]:
    """The pairs by class, the most frequent class and within it the most frequent pair first."""
    classes: dict[PairClass, list[Rule]] = {}
    for rule in sorted(rules, key=lambda rule: -weights.get(rule, 0.0)):
        classes.setdefault(class_of(rule), []).append(rule)
    return sorted(classes.values(), key=lambda members: -weights.get(members[0], 0.0))


def first_tested(members: Sequence[Rule]) -> list[Rule]:
    """The pairs of a class that are tested before any is inferred, the most frequent ones."""
    count = max(REPRESENTATIVES, round(VERIFIED_SHARE * len(members)))
    return list(members[:count])


def inferred(members: Sequence[Rule], answers: Mapping[Rule, Answer]) -> list[Rule]:
    """The pairs of a class that need no test, since all that were tested are separate.

    Args:
        members: the pairs of a class, in the order of `grouped`.
        answers: what is known of them; pairs without an answer are missing or "undecided".
    """
    told = [answers.get(rule, "undecided") for rule in first_tested(members)]
    if any(answer != "separate" for answer in told):
        return []
    if any(answers.get(rule) == "fused" for rule in members):
        return []
    return [rule for rule in members if answers.get(rule, "undecided") == "undecided"]
