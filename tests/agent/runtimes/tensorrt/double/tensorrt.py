"""A strict double of TensorRT's Python package, for tests without a GPU.

It offers what latfarm calls and nothing else, under the names and with the signatures of the
vendor's package (`test_vendor_bindings.py` compares them), and refuses what that package would
refuse. It parses real ONNX, fuses by simple rules, and "runs" an engine as work on a stream of the
CUDA driver's double, with memory that must be there. The environment variable
`LATFARM_TENSORRT_DOUBLE` says which version's interface it has: 8.4, 8.6, 10.3 or 11.4.

Its parts are the modules `double_*` in this folder, which only a worker's module search path knows.
Attributes whose names begin with "_" are the double's own.
"""

from __future__ import annotations

from double_build import Builder, IBuilderConfig, IHostMemory, ITimingCache
from double_engine import EngineInspector, ICudaEngine, IExecutionContext, Runtime
from double_kinds import (
    NEW,
    OLD,
    TOLD_VERSION,
    VERSION,
    BuilderFlag,
    DataType,
    DeviceType,
    ErrorCode,
    LayerInformationFormat,
    MemoryPoolType,
    Misuse,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    TensorIOMode,
    TensorLocation,
)
from double_network import (
    ILayer,
    ILogger,
    INetworkDefinition,
    IProfiler,
    ITensor,
    OnnxParser,
    ParserError,
)

__version__ = TOLD_VERSION + ".0"
__all__ = [
    "Builder",
    "BuilderFlag",
    "DataType",
    "DeviceType",
    "EngineInspector",
    "ErrorCode",
    "IBuilderConfig",
    "ICudaEngine",
    "IExecutionContext",
    "IHostMemory",
    "ILayer",
    "ILogger",
    "INetworkDefinition",
    "IProfiler",
    "ITensor",
    "ITimingCache",
    "LayerInformationFormat",
    "MemoryPoolType",
    "Misuse",
    "NetworkDefinitionCreationFlag",
    "OnnxParser",
    "ParserError",
    "ProfilingVerbosity",
    "Runtime",
    "TensorIOMode",
    "TensorLocation",
]

_NAMED = (
    (ICudaEngine, "num_io_tensors get_tensor_name get_tensor_dtype get_tensor_mode"),
    (ICudaEngine, "get_tensor_location"),
    (IExecutionContext, "get_tensor_shape get_max_output_size set_tensor_address"),
    (IExecutionContext, "execute_async_v3"),
)
_INDEXED = (
    (ICudaEngine, "num_bindings get_binding_name get_binding_dtype get_binding_shape"),
    (ICudaEngine, "binding_is_input get_location"),
    (IExecutionContext, "execute_async_v2"),
)
_WEAK = ((Builder, "platform_has_fast_fp16 platform_has_fast_int8"),)


def _without(*gone: tuple[type, str]) -> None:
    for kind, names in gone:
        for name in names.split():
            delattr(kind, name)


if VERSION < (8, 5):
    _without(*_NAMED)
if VERSION < (8, 6):
    _without((IBuilderConfig, "builder_optimization_level"))
if not OLD:
    _without(*_INDEXED)
if NEW:
    _without(*_WEAK)
