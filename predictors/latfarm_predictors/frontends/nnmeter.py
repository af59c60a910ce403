"""Read a network of nn-Meter's benchmark dataset as a Graph.

The dataset (docs/dataset.md of nn-Meter) has a JSON object for each network: its operators by name,
each with the names of those that it reads (`inbounds`), its TensorFlow type, attributes and shapes,
in the layout NHWC. The Graph has the layout NCHW, as graphs of other frontends have. Where the file
tells a shape that differs from the computed one, it is refused: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from latfarm_predictors.errors import GraphError, ModelFileError, UnsupportedOpError
from latfarm_predictors.frontends.nnmeter_ops import HANDLERS, NnMeterOp
from latfarm_predictors.graph.builder import GraphBuilder
from latfarm_predictors.graph.graph import Graph

MOST_OPERATORS = 20_000
"""Largest number of operators that is read; the largest network of the dataset has about 900."""
IGNORED = frozenset({"Const"})
"""Types of operators that hold weights: they are no part of a Graph."""


def graph_from_nnmeter(name: str, told: Any) -> Graph:
    """The network in a value of the key `graph`.

    Args:
        name: of the network.
        told: the JSON value.

    Raises:
        ModelFileError: it is no network: damaged, cyclic, too large or contradictory.
        UnsupportedOpError: it has an operator that a Graph cannot express.
    """
    if not isinstance(told, dict) or not told:
        raise ModelFileError(f"{name}: there are no operators")
    if len(told) > MOST_OPERATORS:
        raise ModelFileError(f"{name}: {len(told)} operators; {MOST_OPERATORS} are the most")
    try:
        operators = {str(key): NnMeterOp.read(str(key), value) for key, value in told.items()}
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ModelFileError(f"{name}: an operator is unreadable: {error!r}"[:300]) from error
    operators = {key: each for key, each in operators.items() if each.kind not in IGNORED}
    builder = GraphBuilder(name)
    made: dict[str, str] = {}
    for operator in _ordered(name, operators):
        handler = HANDLERS.get(operator.kind)
        if handler is None:
            raise UnsupportedOpError(
                f"{name}: {operator.name}: a Graph cannot express {operator.kind}"
            )
        inputs = [made[each] for each in operator.inputs if each in operators]
        try:
            made[operator.name] = handler(builder, operator, inputs)
            _check_shape(builder, operator, made[operator.name])
        except (GraphError, KeyError, TypeError, ValueError, IndexError) as error:
            reason = error if isinstance(error, GraphError) else repr(error)
            raise ModelFileError(f"{name}: {operator.name}: {reason}") from error
    used = {each for operator in operators.values() for each in operator.inputs}
    try:
        return builder.build([tensor for key, tensor in made.items() if key not in used])
    except GraphError as error:
        raise ModelFileError(str(error)) from error


def _ordered(name: str, operators: Mapping[str, NnMeterOp]) -> list[NnMeterOp]:
    """The operators, each after those that it reads.

    Raises:
        ModelFileError: there is a cycle.
    """
    waiting = {
        key: sum(1 for each in operator.inputs if each in operators)
        for key, operator in operators.items()
    }
    readers: dict[str, list[str]] = {key: [] for key in operators}
    for key, operator in operators.items():
        for each in operator.inputs:
            if each in operators:
                readers[each].append(key)
    ready = [key for key, count in waiting.items() if not count]
    ordered: list[NnMeterOp] = []
    for key in ready:  # grows while it is read
        ordered.append(operators[key])
        for reader in readers[key]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    if len(ordered) < len(operators):
        stuck = next(key for key, count in waiting.items() if count)
        raise ModelFileError(f"{name}: {stuck} waits for its own result: the graph has a cycle")
    return ordered


def _check_shape(builder: GraphBuilder, operator: NnMeterOp, tensor: str) -> None:
    """Compare a shape with the one that the file tells, if it tells one.

    Raises:
        GraphError: they differ.
    """
    shape, told = builder.type_of(tensor).shape, operator.shape
    if not told or len(told) != len(shape):
        return  # a mean without kept axes has two axes in the file, and four here
    if len(told) == 4:
        told = (told[0], told[3], told[1], told[2])
    # The dataset leaves the batch size open, as -1.
    if told[1:] != shape[1:]:
        raise GraphError(f"the file tells the shape {list(told)}, and {list(shape)} is computed")
