"""What `latfarm predict` says beside a latency that rests on little, and what to do next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph
    from latfarm_predictors.predict.answer import Answer
    from latfarm_predictors.predict.predictor import PlatformPredictor

LEAST_COVERED = 0.8
"""Share of the predicted time from which no remark is made on the kernels that it does not cover.
Above it, all that is not covered can move the latency by no more than some intervals are wide."""
MOST_OPS = 4
"""Largest number of unknown ops that a remark names."""
_FLOATS = frozenset({"float16", "float32", "float64", "bfloat16"})
"""Data types that decide how fast a network runs; integers beside them are indices."""

_OP = re.compile(r" \((\w+)\): ")
"""The op in a text of `Answer.unsupported`."""
LEAST_SHARE = 0.01
"""Share of the predicted time from which a data type that was never measured is told."""

UNKNOWN_OP, DTYPE, COVERAGE, UNCALIBRATED = "unknown_op", "dtype", "coverage", "uncalibrated"
SAMPLE = "sample"
"""Kinds of remarks."""


@dataclass(frozen=True)
class Remark:
    """One thing that makes a prediction less sure.

    Attributes:
        kind: one of the kinds above.
        short: two or three words for a table.
        text: a whole clause without its full stop.
        purpose: what the command is for.
        command: words of the next command, without the models and the platform.
        takes_models: whether the command is about these models on this platform.
    """

    kind: str
    short: str
    text: str
    purpose: str
    command: tuple[str, ...]
    takes_models: bool = True

    def command_for(self, models: Sequence[Path], platform: str) -> str:
        """The next command for these models, as it is typed."""
        if not self.takes_models:
            return shlex.join(self.command)
        named = [str(model) for model in models]
        return shlex.join([*self.command, *named, "--platform", platform])

    def to_json(self, model: Path, platform: str) -> dict[str, Any]:
        """The remark on one model as plain JSON types."""
        told = {name: asdict(self)[name] for name in ("kind", "short", "text")}
        return told | {"command": self.command_for([model], platform)}


def remarks_on(
    predictor: PlatformPredictor, graph: Graph, answer: Answer, covered: float
) -> tuple[Remark, ...]:
    """All remarks on an answer, the gravest first.

    Args:
        predictor: what answered.
        graph: the network.
        answer: the answer.
        covered: share of the predicted time that is covered, from 0 to 1.
    """
    found: list[Remark] = []
    ops = _unknown_ops(answer)
    if ops:
        named = ", ".join(ops[:MOST_OPS]) + (" and others" if len(ops) > MOST_OPS else "")
        found.append(
            Remark(
                UNKNOWN_OP,
                f"unknown: {named}",
                f"nothing like {named} was ever measured there, and the runtime may not run it",
                "to see whether it runs, and how long it takes",
                ("latfarm", "query"),
            )
        )
    lacking = _missing_dtypes(predictor, graph, answer)
    for name, share in lacking.items():
        found.append(
            Remark(
                DTYPE,
                f"no {name} there",
                f"{share:.0%} of the time is computed in {name}, which this platform was never "
                "measured with",
                "for the platforms of other data types",
                ("latfarm", "platforms"),
                takes_models=False,
            )
        )
    if covered < LEAST_COVERED:
        found.append(
            Remark(
                COVERAGE,
                "little covered",
                f"only {covered:.0%} of the time is in kernels near to measured ones",
                "to measure what is missing",
                ("latfarm", "cover"),
            )
        )
    if not answer.calibrated:
        found.append(
            Remark(
                UNCALIBRATED,
                "uncalibrated",
                "the width of the interval rests on too few measured networks",
                "to see what the bundle was made from",
                ("latfarm", "bundle", "show", "-p", answer.platform),
                takes_models=False,
            )
        )
    return tuple(found)


def as_sample(remarks: Sequence[Remark]) -> tuple[Remark, ...]:
    """The remarks on an answer of the sample bundle; the first says which machine it is about.

    Nothing can be measured on the sample's board, so each remark names what measures this machine.
    """
    from latfarm_predictors.sample import MACHINE

    told = Remark(
        SAMPLE,
        "sample bundle",
        f"this is the sample bundle of {MACHINE}; it tells nothing of a machine of yours",
        *_THIS_MACHINE,
        takes_models=False,
    )
    purpose, command = _THIS_MACHINE
    others = (replace(r, purpose=purpose, command=command, takes_models=False) for r in remarks)
    return (told, *others)


_THIS_MACHINE = ("to measure this machine", ("latfarm", "demo"))
"""The purpose and the words of the command that answers for the machine at hand."""


def _unknown_ops(answer: Answer) -> list[str]:
    """The ops that resemble nothing that was measured, each once; see `Answer.unsupported`."""
    found = (_OP.search(text) for text in answer.unsupported)
    return list(dict.fromkeys(match[1] for match in found if match))


def _missing_dtypes(
    predictor: PlatformPredictor, graph: Graph, answer: Answer
) -> Mapping[str, float]:
    """Share of the predicted time by data type that the platform was never measured with."""
    from latfarm_predictors.predict.source_words import missing_dtype

    known = {name for told in predictor.measured.ranges.values() for name in told.dtypes}
    if not known:
        return {}
    made = {node.name: _float_of(graph, node.outputs) for node in graph.nodes}
    total = sum(kernel.latency_ms for kernel in answer.kernels) or 1.0
    found: dict[str, float] = {}
    for kernel in answer.kernels:
        named = missing_dtype(kernel.source) or next(
            (made[name] for name in kernel.nodes if made.get(name)), ""
        )
        if named and named not in known:
            found[named] = found.get(named, 0.0) + kernel.latency_ms / total
    return {name: share for name, share in found.items() if share >= LEAST_SHARE}


def _float_of(graph: Graph, tensors: Sequence[str]) -> str:
    """The floating-point type of the first of these tensors that has one; empty if none has."""
    types = (graph.type_of(tensor).dtype for tensor in tensors if tensor)
    return next((name for name in types if name in _FLOATS), "")
