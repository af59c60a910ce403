"""Computes the value profiles of ops that work element by element."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from latfarm_predictors.graph.graph import Node

from latfarm_controller.builders import profiles
from latfarm_controller.builders.activations.walk import Handler, Walk, number
from latfarm_controller.builders.profiles import Floats, ValueProfile


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-np.clip(x, -50, 50)))
    return found


def _erf(x: Floats) -> Floats:
    """Compute erf with formula 7.1.26 of Abramowitz and Stegun; the error is at most 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    poly = t * (
        0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))
    )
    found: Floats = np.sign(x) * (1.0 - poly * np.exp(-np.square(x)))
    return found


def _nonzero(x: Floats) -> Floats:
    """Replace values within +-1e-3 by 1e-3 or -1e-3, so that one can divide by them."""
    return np.where(np.abs(x) < 1e-3, np.where(x < 0, -1e-3, 1e-3), x)


_FUNCTIONS: Mapping[str, Callable[[Floats, Node], Floats]] = {
    "Relu": lambda x, _: np.maximum(x, 0.0),
    "Sigmoid": lambda x, _: _sigmoid(x),
    "Tanh": lambda x, _: np.tanh(x),
    "Erf": lambda x, _: _erf(x),
    "Exp": lambda x, _: np.exp(np.clip(x, -50, 50)),
    "Log": lambda x, _: np.log(np.maximum(x, 1e-6)),
    "Sqrt": lambda x, _: np.sqrt(np.maximum(x, 0.0)),
    "Reciprocal": lambda x, _: 1.0 / _nonzero(x),
    "Abs": lambda x, _: np.abs(x),
    "Neg": lambda x, _: np.negative(x),
    "Floor": lambda x, _: np.floor(x),
    "Ceil": lambda x, _: np.ceil(x),
    "Round": lambda x, _: np.rint(x),
    "Sign": lambda x, _: np.sign(x),
    "Sin": lambda x, _: np.sin(x),
    "Cos": lambda x, _: np.cos(x),
    "Tan": lambda x, _: np.tan(x),
    "Atan": lambda x, _: np.arctan(x),
    "Softplus": lambda x, _: np.logaddexp(x, 0.0),
    "Softsign": lambda x, _: x / (1.0 + np.abs(x)),
    "HardSwish": lambda x, _: x * np.clip(x / 6 + 0.5, 0.0, 1.0),
    "HardSigmoid": lambda x, n: np.clip(
        number(n, "alpha", 0.2) * x + number(n, "beta", 0.5), 0.0, 1.0
    ),
    "LeakyRelu": lambda x, n: np.where(x < 0, number(n, "alpha", 0.01) * x, x),
    "Elu": lambda x, n: np.where(x < 0, number(n, "alpha", 1.0) * np.expm1(np.minimum(x, 0)), x),
    "Celu": lambda x, n: np.where(x < 0, number(n, "alpha", 1.0) * np.expm1(np.minimum(x, 0)), x),
    "Selu": lambda x, _: 1.0507 * np.where(x < 0, 1.67326 * np.expm1(np.minimum(x, 0)), x),
    "ThresholdedRelu": lambda x, n: np.where(x > number(n, "alpha", 1.0), x, 0.0),
}


def _function(walk: Walk, node: Node) -> ValueProfile:
    apply = _FUNCTIONS[node.op]
    return walk.profile(node.inputs[0]).map(lambda x: apply(x, node))


def _clip(walk: Walk, node: Node) -> ValueProfile:
    low, high = (
        float(walk.profile(t).points.mean()) if t else default
        for t, default in zip((*node.inputs[1:], "", "")[:2], (-np.inf, np.inf), strict=True)
    )
    return walk.profile(node.inputs[0]).map(lambda x: np.clip(x, low, high))


def _aligned(walk: Walk, node: Node) -> list[ValueProfile]:
    """Return the profiles of a broadcasting op's operands, all with the rank of the result."""
    rank = len(walk.shape(node.outputs[0]))
    found = []
    for tensor in node.inputs:
        profile = walk.profile(tensor)
        missing = rank - len(profile.shape)
        found.append(
            ValueProfile(
                profile.points.reshape((1,) * missing + profile.points.shape), profile.base
            )
            if missing
            else profile
        )
    return found


def _sum(walk: Walk, node: Node) -> ValueProfile:
    first, *others = _aligned(walk, node)
    for other in others:
        first = profiles.added(first, profiles.negated(other) if node.op == "Sub" else other)
    return first.map(lambda x: x / len(node.inputs)) if node.op == "Mean" else first


def _product(walk: Walk, node: Node) -> ValueProfile:
    first, second = _aligned(walk, node)
    if node.op == "Div":
        second = second.map(lambda x: 1.0 / _nonzero(x))
    return profiles.multiplied(first, second)


_PAIRS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "Max": np.maximum,
    "Min": np.minimum,
    "Pow": lambda x, y: (
        np.where(y == np.rint(y), np.sign(x) ** np.rint(y), 1.0) * np.maximum(np.abs(x), 1e-6) ** y
    ),
    "Mod": lambda x, y: np.fmod(x, _nonzero(y)),
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
}


def _pair(walk: Walk, node: Node) -> ValueProfile:
    first, *others = _aligned(walk, node)
    for other in others:
        points = _PAIRS[node.op](first.points, other.points)
        first = profiles.limited(ValueProfile(points, max(first.base, other.base)))
    return first


def _where(walk: Walk, node: Node) -> ValueProfile:
    """Return a mixture of both choices; choices that reach 1e4 are masks and are ignored."""
    rank = len(walk.shape(node.outputs[0]))
    kept = [
        profile
        for profile in (walk.profile(tensor) for tensor in node.inputs[1:])
        if np.abs(profile.points).max() < 1e4
    ]
    means = [float(p.mean.mean()) for p in kept] or [0.0]
    spreads = [float(p.variance.mean() + p.mean.var()) for p in kept] or [1.0]
    ones = (1,) * rank
    return profiles.normal(
        np.full(ones, np.mean(means)), np.full(ones, np.mean(spreads) + np.var(means))
    )


HANDLERS: Mapping[str, Handler] = {
    **dict.fromkeys(_FUNCTIONS, _function),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mean"), _sum),
    **dict.fromkeys(("Mul", "Div"), _product),
    **dict.fromkeys(_PAIRS, _pair),
    "Clip": _clip,
    "Where": _where,
}
