"""The builder of TensorRT's double: from a parsed network to the bytes of an engine."""

from __future__ import annotations

import json
from typing import Any

import double_fusion
from double_driver import driver
from double_kinds import (
    DLA_CORES,
    GPU_NAME,
    NEW,
    OLD,
    VERSION,
    Bound,
    BuilderFlag,
    DeviceType,
    MemoryPoolType,
    NetworkDefinitionCreationFlag,
    ProfilingVerbosity,
    check,
)
from double_network import ILogger, INetworkDefinition, checked_logger


class IHostMemory(bytes):
    """Bytes of an engine or a cache, which the library owns."""

    @property
    def nbytes(self) -> int:
        return len(self)


class ITimingCache(Bound):
    def __init__(self, gpu: str, known: list[str]) -> None:
        self._gpu, self._known = gpu, known

    def serialize(self) -> IHostMemory:
        return IHostMemory(b"TIMINGS" + json.dumps([self._gpu, self._known]).encode())


class IBuilderConfig(Bound):
    def __init__(self, log: ILogger) -> None:
        self._log = log
        self._flags = {"TF32"}
        self._verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self._device, self._core, self._level = DeviceType.GPU, -1, 3
        self._timings: ITimingCache | None = None
        self._workspace = 0

    @property
    def profiling_verbosity(self) -> Any:
        return self._verbosity

    @profiling_verbosity.setter
    def profiling_verbosity(self, value: Any) -> None:
        check(isinstance(value, ProfilingVerbosity), "a ProfilingVerbosity is needed")
        self._verbosity = value

    @property
    def default_device_type(self) -> Any:
        return self._device

    @default_device_type.setter
    def default_device_type(self, value: Any) -> None:
        check(isinstance(value, DeviceType), "a DeviceType is needed")
        self._device = value

    @property
    def DLA_core(self) -> int:
        return self._core

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        self._core = value

    @property
    def builder_optimization_level(self) -> int:
        return self._level

    @builder_optimization_level.setter
    def builder_optimization_level(self, value: int) -> None:
        check(0 <= value <= 5, "a level from 0 to 5 is needed")
        self._level = value

    def set_flag(self, flag: Any) -> None:
        check(isinstance(flag, BuilderFlag), "a BuilderFlag is needed")
        self._flags.add(flag.name)

    def clear_flag(self, flag: Any) -> None:
        check(isinstance(flag, BuilderFlag), "a BuilderFlag is needed")
        self._flags.discard(flag.name)

    def set_memory_pool_limit(self, pool: Any, pool_size: int) -> None:
        check(isinstance(pool, MemoryPoolType), "a MemoryPoolType is needed")
        self._workspace = pool_size

    def create_timing_cache(self, serialized_timing_cache: bytes) -> ITimingCache | None:
        if not serialized_timing_cache:
            return ITimingCache(GPU_NAME, [])
        if not serialized_timing_cache.startswith(b"TIMINGS"):
            self._log.log(ILogger.Severity.ERROR, "Error Code 9: the timing cache is damaged")
            return None
        return ITimingCache(*json.loads(serialized_timing_cache[7:]))

    def set_timing_cache(self, cache: ITimingCache, ignore_mismatch: bool) -> bool:
        check(isinstance(cache, ITimingCache), "an ITimingCache is needed")
        if cache._gpu != GPU_NAME and not ignore_mismatch:
            return False
        self._timings = cache
        return True

    def get_timing_cache(self) -> ITimingCache | None:
        return self._timings


class Builder(Bound):
    def __init__(self, logger: ILogger) -> None:
        self._log = checked_logger(logger)
        check(driver.latfarm_double_ready() == 0, "a CUDA context must be current")

    @property
    def num_DLA_cores(self) -> int:
        return DLA_CORES

    @property
    def platform_has_fast_fp16(self) -> bool:
        return True

    @property
    def platform_has_fast_int8(self) -> bool:
        return True

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        members = {1 << int(m): n for n, m in NetworkDefinitionCreationFlag.__members__.items()}
        unknown = flags & ~sum(members)
        check(not unknown, f"network flags {unknown:#x} are unknown")
        names = {name for bit, name in members.items() if flags & bit}
        check(not OLD or "EXPLICIT_BATCH" in names, "an ONNX model needs an explicit batch")
        return INetworkDefinition(self, NEW or "STRONGLY_TYPED" in names)

    def create_builder_config(self) -> IBuilderConfig:
        return IBuilderConfig(self._log)

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig
    ) -> IHostMemory | None:
        check(network._builder is self, "the network is another builder's")
        check(network._outputs, "the network has no output")
        wrong = _wrong_types(network, config)
        plan = None if wrong else _plan(network, config)
        if plan is None:
            told = wrong or "Error Code 4: a layer is not supported on DLA, GPU fallback is off"
            self._log.log(ILogger.Severity.ERROR, told)
            return None
        if config._timings is None:
            config._timings = ITimingCache(GPU_NAME, [])
        known = config._timings._known
        known += [layer["Name"] for layer in plan["layers"] if layer["Name"] not in known]
        for place in ("Dla", "Gpu"):
            for name in plan["placed"][place]:
                self._log.log(ILogger.Severity.INFO, f"[{place}Layer] {name}")
        return IHostMemory(json.dumps(plan).encode())


def _wrong_types(network: INetworkDefinition, config: IBuilderConfig) -> str:
    types = {t.dtype.name for layer in network._layers for t in layer._outputs}
    for dtype, flag in (("HALF", "FP16"), ("INT8", "INT8")):
        if network._strong and flag in config._flags:
            return f"Error Code 3: API Usage Error (k{flag} with a strongly typed network)"
        if not network._strong and dtype in types and flag not in config._flags:
            return f"Error Code 4: {dtype} tensors, but {flag} is not configured in the builder"
    if config._device is DeviceType.DLA:
        if not 0 <= config._core < DLA_CORES:
            return "Error Code 3: there is no such DLA core"
        if not types & {"HALF", "INT8"}:
            return "Error Code 4: DLA needs fp16 or int8"
    return ""


def _plan(network: INetworkDefinition, config: IBuilderConfig) -> dict[str, Any] | None:
    shapes = {t.name: t.shape for t in network._inputs}
    for layer in network._layers:
        shapes.update({t.name: t.shape for t in layer._outputs})
    on_dla = config._device is DeviceType.DLA
    found = double_fusion.fused(
        [layer._node for layer in network._layers],
        shapes,
        network._constants,
        [tensor.name for tensor in network._inputs],
        version=VERSION,
        on_dla=on_dla,
        fallback="GPU_FALLBACK" in config._flags,
    )
    if found is None:
        return None
    layers, placed = found
    return {
        "layers": layers,
        "placed": placed,
        "core": config._core if on_dla else -1,
        "detailed": config._verbosity.name == "DETAILED",
        "tensors": [
            [t.name, t.dtype.name, list(t.shape), t in network._inputs]
            for t in (*network._inputs, *network._outputs)
        ],
    }
