"""The enumerations of TensorRT's double, its version, and what all its classes are made of."""

from __future__ import annotations

import os
from typing import Any, ClassVar

TOLD_VERSION = os.environ.get("LATFARM_TENSORRT_DOUBLE", "10.3")
"""The version whose interface the double has: 8.4, 8.6, 10.3 or 11.4."""
VERSION = tuple(int(part) for part in TOLD_VERSION.split("."))


class Misuse(Exception):
    """Raised for calls with which the real package would crash, hang or return nonsense."""


def check(right: object, what: str) -> None:
    if not right:
        raise Misuse(what)


class Bound:
    """Base of all classes: as in the vendor's package, unknown attributes cannot be set."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and not isinstance(getattr(type(self), name, None), property):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        super().__setattr__(name, value)


class Member:
    """A member of an enumeration: as in the vendor's package, not an integer but convertible."""

    __members__: ClassVar[dict[str, Any]] = {}

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __int__(self) -> int:
        return self.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__}.{self.name}: {self.value}>"


def enumeration(title: str, **members: int) -> Any:
    kind: Any = type(title, (Member,), {})
    kind.__members__ = {name: kind(name, value) for name, value in members.items()}
    for name, member in kind.__members__.items():
        setattr(kind, name, member)
    return kind


OLD, NEW = VERSION < (10,), VERSION >= (11,)
if NEW:
    NetworkDefinitionCreationFlag = enumeration("NetworkDefinitionCreationFlag", STRONGLY_TYPED=0)
    BuilderFlag = enumeration("BuilderFlag", GPU_FALLBACK=3, TF32=6)
elif OLD:
    NetworkDefinitionCreationFlag = enumeration("NetworkDefinitionCreationFlag", EXPLICIT_BATCH=0)
    BuilderFlag = enumeration("BuilderFlag", FP16=0, INT8=1, GPU_FALLBACK=3, TF32=7)
else:
    NetworkDefinitionCreationFlag = enumeration(
        "NetworkDefinitionCreationFlag", EXPLICIT_BATCH=0, STRONGLY_TYPED=1
    )
    BuilderFlag = enumeration("BuilderFlag", FP16=0, INT8=1, GPU_FALLBACK=3, TF32=6)
_types = {"FLOAT": 0, "HALF": 1, "INT8": 2, "INT32": 3, "BOOL": 4, "UINT8": 5}
DataType = enumeration("DataType", **_types, **({} if OLD else {"INT64": 8}))
DeviceType = enumeration("DeviceType", GPU=0, DLA=1)
LayerInformationFormat = enumeration("LayerInformationFormat", ONELINE=0, JSON=1)
MemoryPoolType = enumeration("MemoryPoolType", WORKSPACE=0)
ProfilingVerbosity = enumeration("ProfilingVerbosity", LAYER_NAMES_ONLY=0, NONE=1, DETAILED=2)
TensorIOMode = enumeration("TensorIOMode", NONE=0, INPUT=1, OUTPUT=2)
TensorLocation = enumeration("TensorLocation", DEVICE=0, HOST=1)
ErrorCode = enumeration(
    "ErrorCode",
    **{
        name: number
        for number, name in enumerate(
            (
                "SUCCESS",
                "INTERNAL_ERROR",
                "MEM_ALLOC_FAILED",
                "MODEL_DESERIALIZE_FAILED",
                "INVALID_VALUE",
                "INVALID_GRAPH",
                "INVALID_NODE",
                "UNSUPPORTED_GRAPH",
                "UNSUPPORTED_NODE",
            )
        )
    },
)
SIZES = {"FLOAT": 4, "HALF": 2, "INT8": 1, "INT32": 4, "BOOL": 1, "UINT8": 1, "INT64": 8}
# TensorProto.DataType -> DataType; before version 10 integers are cut to 32 bits.
ELEMENTS = {
    1: "FLOAT",
    2: "UINT8",
    3: "INT8",
    6: "INT32",
    7: "INT32" if OLD else "INT64",
    9: "BOOL",
    10: "HALF",
}
DLA_CORES = 2
GPU_NAME = "Double GPU 8.7"
