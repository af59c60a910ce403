"""The operators of a TFLite file by name, as a profile speaks of them."""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Collection, Sequence

from latfarm_agent.runtimes.flatbuffer import Flatbuffer
from latfarm_agent.runtimes.tflite_format import schema

_REAL = "_real"


@dataclass(frozen=True)
class TfliteOperator:
    """An operator of the main subgraph.

    `name`: that of the first tensor that it makes, which no other operator has; where several make
    tensors of one name, the operator's number follows: "name@3". What computes "x" in floating
    point is named "x", and the operator that quantises it "x@4". `op`: its kind, "Conv2D".
    `code`: as the interpreter spells it, "CONV_2D". `inputs`, `outputs`: numbers of tensors.
    """

    index: int
    name: str
    op: str
    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def operators_of(interpreter: Any, path: Path) -> list[TfliteOperator]:
    """The operators of a file that an interpreter holds; nodes of its delegates are not among them.

    Args:
        interpreter: with the file loaded.
        path: the file, looked over by `tflite.check`.
    """
    # Nodes that delegates put in follow the file's own.
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
    """The tensor of the network that an operator computes in floating point; "" for all others.

    In a quantised file it makes "x_real", which is then quantised to "x". Values that are only made
    real again are no result of the operator that made them.
    """
    whole = name[: -len(_REAL)] if name.endswith(_REAL) else ""
    return whole if whole in names and code != "DEQUANTIZE" else ""


def op_name(code: str) -> str:
    """An operator's kind in the words that profiles of other runtimes use.

    "DEPTHWISE_CONV_2D" is "DepthwiseConv2D"; names of custom operators stay as they are.
    """
    if code != code.upper():
        return code
    words = [word if word[:1].isdigit() else word.capitalize() for word in code.split("_")]
    return "".join(words)


def joined(operators: Sequence[TfliteOperator]) -> tuple[str, str]:
    """Name and kind of a kernel that covers operators: theirs, joined with "+"."""
    return (
        "+".join(operator.name for operator in operators),
        "+".join(operator.op for operator in operators),
    )


def _count(path: Path) -> int:
    """How many operators the main subgraph has."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        flat = Flatbuffer(data)
        main = flat.tables(flat.table(flat.root(), schema.MODEL)[2])[0]
        return len(flat.tables(flat.table(main, schema.SUBGRAPH)[3]))
