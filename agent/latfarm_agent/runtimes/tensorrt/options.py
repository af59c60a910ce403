"""The options of the TensorRT runtime, and the platforms that it offers with them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

from latfarm_agent.runtimes.base import PlatformSpec, RuntimeFailure
from latfarm_agent.runtimes.cuda import CudaDevice

TYPINGS = ("auto", "strong", "weak")
"""Values of the option `typing`."""
_KINDS: dict[str, tuple[type, ...]] = {
    "device": (int,),
    "cuda_graph": (bool,),
    "transfers": (bool,),
    "gpu_latency": (bool,),
    "dla_core": (int, type(None)),
    "tf32": (bool,),
    "spin_wait": (bool,),
    "typing": (str,),
    "workspace_mib": (int, type(None)),
    "optimization_level": (int, type(None)),
    "cache_dir": (str, type(None)),
}
_LARGEST = {"device": 1 << 10, "dla_core": 1 << 4, "workspace_mib": 1 << 20}
"""Largest allowed values; generous bounds of our own."""
_LARGEST_LEVEL = 5
"""Largest optimization level of TensorRT's builder."""


@dataclass(frozen=True)
class TensorRtOptions:
    """The options of the TensorRT runtime in the agent's configuration.

    Args:
        device: number of the GPU in CUDA's order.
        cuda_graph: also offer platforms that launch each inference as one CUDA graph.
        transfers: also offer platforms that copy inputs and outputs in each run.
        gpu_latency: also offer platforms whose latency is measured by the GPU's clock.
        dla_core: also offer platforms on this deep-learning accelerator of a Jetson.
        tf32: whether fp32 may be computed as TF32 (TensorRT's default, where the GPU can).
        spin_wait: wait for the GPU by spinning, which gives steadier times; otherwise by sleeping.
        typing: "strong": each tensor has the type that the model gives it; "weak": TensorRT may
            compute in higher precision where that is faster; "auto": strong from TensorRT 10 on,
            except on a DLA.
        workspace_mib: bound on a layer's scratch memory in MiB; None: all memory of the GPU.
        optimization_level: 0 to 5, how long the builder searches for fast kernels; None: the
            builder's default.
        cache_dir: folder that keeps the times of kernels from one build to the next; None: none.
    """

    device: int = 0
    cuda_graph: bool = False
    transfers: bool = False
    gpu_latency: bool = False
    dla_core: int | None = None
    tf32: bool = True
    spin_wait: bool = True
    typing: str = "auto"
    workspace_mib: int | None = None
    optimization_level: int | None = None
    cache_dir: str | None = None

    @staticmethod
    def read(given: Mapping[str, Any]) -> TensorRtOptions:
        """Read and check the options of the agent's configuration.

        Raises:
            RuntimeFailure: RUNTIME_MISSING, naming the option that is unknown or has a wrong value.
        """
        known = [field.name for field in fields(TensorRtOptions)]
        for name, value in given.items():
            if name not in known:
                raise _wrong(name, f"is unknown; known: {', '.join(known)}")
            kinds = _KINDS[name]
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
                raise _wrong(name, f"is {value!r}; it must be of type {wanted}")
        made = TensorRtOptions(**given)
        for name, largest in _LARGEST.items():
            value = getattr(made, name)
            if value is not None and not 0 <= value <= largest:
                raise _wrong(name, f"is {value}; it must be within 0 and {largest}")
        level = made.optimization_level
        if level is not None and not 0 <= level <= _LARGEST_LEVEL:
            raise _wrong("optimization_level", f"is {level}; it must be within 0 and 5")
        if made.typing not in TYPINGS:
            raise _wrong("typing", f"is {made.typing!r}; it must be one of {', '.join(TYPINGS)}")
        return made


@dataclass(frozen=True)
class TensorRtCapabilities:
    """What an installed TensorRT and its GPU can do.

    `dtypes`: the element types that the GPU is fast at. `strong`, `weak`: whether networks can be
    strongly or weakly typed. `dla_cores`: number of deep-learning accelerators.
    """

    version: str
    device: CudaDevice
    dtypes: tuple[str, ...]
    strong: bool
    weak: bool
    dla_cores: int


def platforms(options: TensorRtOptions, offer: TensorRtCapabilities) -> tuple[PlatformSpec, ...]:
    """Return the plain platform of each element type, then the variants that the options add."""
    variants: list[tuple[str, dict[str, str]]] = [("", {})]
    if options.cuda_graph:
        variants.append(("graph", {"cuda_graph": "yes"}))
    if options.transfers:
        variants.append(("transfers", {"transfers": "each run"}))
    if options.gpu_latency:
        variants.append(("gputime", {"latency": "gpu"}))
    if options.dla_core is not None and options.dla_core < offer.dla_cores:
        variants.append((f"dla{options.dla_core}", {"dla_core": str(options.dla_core)}))
    short = ".".join(offer.version.split(".")[:2])
    common = {
        "gpu": offer.device.name,
        "compute_capability": ".".join(map(str, offer.device.capability)),
        "cuda_driver": offer.device.driver,
        "latency": "host",
        "transfers": "no",
        "cuda_graph": "no",
        "dla_core": "none",
        "device": str(options.device),
        "spin_wait": "yes" if options.spin_wait else "no",
        "workspace_mib": _told(options.workspace_mib, "all"),
        "optimization_level": _told(options.optimization_level, "default"),
    }
    found = []
    for variant, changed in variants:
        for dtype in offer.dtypes:
            on_dla = "dla_core" in changed
            if on_dla and dtype == "fp32":
                continue  # a DLA computes in fp16 and int8
            settings = {**common, **changed, "typing": typing_of(options, offer, on_dla=on_dla)}
            if dtype == "fp32":
                settings["tf32"] = "allowed" if options.tf32 else "no"
            parts = [f"tensorrt{short}", variant, dtype]
            if options.device:
                parts.insert(1, f"gpu{options.device}")
            name = "-".join(part for part in parts if part)
            found.append(PlatformSpec(name, "onnx", dtype, settings))
    return tuple(found)


def lacking(options: TensorRtOptions, offer: TensorRtCapabilities) -> tuple[str, ...]:
    """Return what the options ask for and the board does not have, with the remedy."""
    core = options.dla_core
    if core is None or core < offer.dla_cores:
        return ()
    return (
        f"dla{core}: {offer.device.name} has {offer.dla_cores} deep-learning accelerators; "
        "remove the option 'dla_core', or choose a smaller number (the first one is 0)",
    )


def typing_of(options: TensorRtOptions, offer: TensorRtCapabilities, *, on_dla: bool) -> str:
    """Return the typing to use, "strong" or "weak", which this TensorRT must support."""
    wanted = options.typing
    if wanted == "auto":
        wanted = "weak" if on_dla else "strong"
    if wanted == "strong":
        return "strong" if offer.strong else "weak"
    return "weak" if offer.weak else "strong"


def _told(value: int | None, default: str) -> str:
    return default if value is None else str(value)


def _wrong(name: str, what: str) -> RuntimeFailure:
    return RuntimeFailure(
        "RUNTIME_MISSING",
        f"tensorrt's option {name!r} {what}; correct it in the agent's configuration",
    )
