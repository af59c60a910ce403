"""The operators of a TFLite file, with the names that profiles use."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Sequence

from latfarm_agent.runtimes.flatbuffer import Flatbuffer
from latfarm_agent.runtimes.tflite_format import schema

_REAL = "_real"  # ends the name of a tensor in floating point that is quantised next


@dataclass(frozen=True)
class TfliteOperator:
    """An operator of the main subgraph.

    Attributes:
        index: its number in the file.
        name: its unique name: the name of the first tensor that it makes. If several operators make
            tensors of the same name, the operator's number follows: "name@3". An operator that
            computes "x" in floating point is named "x", and the one that quantises it "x@4".
        op: its type as in profiles of other runtimes, for example "Conv2D".
        code: its type as the interpreter writes it, for example "CONV_2D".
        inputs: numbers of the tensors that it reads.
        outputs: numbers of the tensors that it makes.
    """

    index: int
    name: str
    op: str
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def operators_of(interpreter: Any, path: Path) -> list[TfliteOperator]:
    """Return the operators of a file that an interpreter has loaded, without nodes of delegates.

    Args:
        interpreter: the interpreter, with the file loaded.
        path: the file, which `tflite_format.check` has accepted.
    """
    # The nodes that delegates add come after those of the file.
    told = interpreter._get_ops_details()[: _count(path)]
    made = [
        str(interpreter._get_tensor_details(int(entry["outputs"][0]), 0)["name"])
        if len(entry["outputs"])
        else ""
        for entry in told
    ]
    names = set(made)
    real = [_made_real(name, str(entry["op_name"]), names) for name, entry in zip(made, told)]
    times = Counter(made) + Counter(real)
    return [
        TfliteOperator(
            index,
            whole or (name if name and times[name] == 1 else f"{name}@{index}"),
            op_name(str(entry["op_name"])),
            str(entry["op_name"]),
            tuple(int(tensor) for tensor in entry["inputs"]),
            tuple(int(tensor) for tensor in entry["outputs"]),
        )
        for index, (entry, name, whole) in enumerate(zip(told, made, real))
    ]


def _made_real(name: str, code: str, names: Collection[str]) -> str:
    """Return the tensor of the network that an operator computes in floating point, or "".

    In a quantised file such an operator makes "x_real", which another one quantises to "x". A
    DEQUANTIZE only converts a value, so it does not count.
    """
    whole = name[: -len(_REAL)] if name.endswith(_REAL) else ""
    return whole if whole in names and code != "DEQUANTIZE" else ""


def op_name(code: str) -> str:
    """Convert the type of an operator to the spelling that profiles of other runtimes use.

    "DEPTHWISE_CONV_2D" becomes "DepthwiseConv2D"; the names of custom operators do not change.
    """
    if code != code.upper():
        return code
    words = [word if word[:1].isdigit() else word.capitalize() for word in code.split("_")]
    return "".join(words)


def joined(operators: Sequence[TfliteOperator]) -> tuple[str, str]:
    """Return the name and the type of a kernel that covers some operators, joined with "+"."""
    return (
        "+".join(operator.name for operator in operators),
        "+".join(operator.op for operator in operators),
    )


def _count(path: Path) -> int:
    """Return how many operators the main subgraph of a file has."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        flat = Flatbuffer(data)
        main = flat.tables(flat.table(flat.root(), schema.MODEL)[2])[0]
        return len(flat.tables(flat.table(main, schema.SUBGRAPH)[3]))
