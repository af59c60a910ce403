"""ncnn on GPUs by Vulkan: which devices, in which precision, and which layers stay on the CPU.

The ncnn wheel brings its own loader of Vulkan drivers. It prints what precision a device supports,
and there is no other way to find that out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Mapping

from latfarm_agent.runtimes.base import PlatformSpec, RuntimeFailure
from latfarm_agent.runtimes.gpu_options import Gpu, is_software
from latfarm_agent.runtimes.printed import printed

_CPU_TYPE = 3  # ncnn's types of a device: 0 discrete, 1 integrated, 2 virtual, 3 CPU
# A line such as "[0 Adreno (TM) 640]  fp16-p/s/u/a=1/1/1/1": index and name of the device, then
# whether it supports half precision packed, as storage, (as uniform,) and in arithmetic.
_FP16 = re.compile(r"^\[(\d+) (.*)\]\s+fp16-p/s/(?:u/)?a=(\d)/(\d)/(?:\d/)?(\d)", re.MULTILINE)
_known_halves: dict[tuple[int, str], tuple[bool, bool, bool]] = {}
"""Half precision of the devices that ncnn printed, by index and name."""
_HALVES = ("use_fp16_packed", "use_fp16_storage", "use_fp16_arithmetic")


def devices(module: Any, folder: Path) -> list[tuple[Gpu, tuple[bool, bool, bool]]]:
    """Return the GPUs, each with its support of half precision: packed, storage, arithmetic.

    The list is empty if the wheel has no Vulkan, or the system has no driver.

    Args:
        module: the ncnn module.
        folder: an existing folder for the temporary file that catches what ncnn prints.
    """
    if not hasattr(module, "get_gpu_count"):
        return []
    count, said = printed(module.get_gpu_count, folder / "said")
    # ncnn prints this once in a process: when the first call makes a Vulkan instance.
    for index, name, *flags in _FP16.findall(said):
        _known_halves[int(index), name] = (flags[0] == "1", flags[1] == "1", flags[2] == "1")
    found = []
    for index in range(int(count)):
        told = module.get_gpu_info(index)
        name = str(told.device_name())
        software = told.type() == _CPU_TYPE or is_software(name)
        gpu = Gpu(index, name, hex(told.driver_version()), software)
        found.append((gpu, _known_halves.get((index, name), (False, False, False))))
    return found


def platforms(
    short: str, gpu: Gpu, halves: tuple[bool, bool, bool], threads: int
) -> list[PlatformSpec]:
    """Return the platforms of a GPU: fp32, and fp16 if the GPU can store it.

    Args:
        short: version of ncnn for the names of the platforms.
        gpu: the GPU.
        halves: its support of half precision: packed, storage, arithmetic.
        threads: threads of the CPU, for the layers that have no Vulkan implementation.
    """
    infix = "vulkan" if gpu.index == 0 else f"vulkan{gpu.index}"
    common = {
        "device": f"vulkan:{gpu.index}",
        "gpu": gpu.name,
        "driver": gpu.driver,
        "cpu_threads": str(threads),
    }
    if gpu.software:
        common["software_device"] = "yes"
    made = [
        PlatformSpec(f"ncnn{short}-{infix}-fp32", "ncnn", "fp32", dict(common, precision="fp32"))
    ]
    if halves[1]:
        named = "+".join(name.rpartition("_")[2] for name, has in zip(_HALVES, halves) if has)
        settings = dict(common, precision=f"fp16 {named}")
        made.append(PlatformSpec(f"ncnn{short}-{infix}-fp16", "ncnn", "fp16", settings))
    return made


def index_of(settings: Mapping[str, str]) -> int | None:
    """Return the index of the GPU that a platform computes on; None for the CPU."""
    kind, mark, index = settings.get("device", "cpu").partition(":")
    return int(index) if kind == "vulkan" and mark else None


def use(module: Any, net: Any, settings: Mapping[str, str]) -> None:
    """Make a net compute on the device of its platform; call this before the net is loaded.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if no Vulkan driver offers the device any more.
    """
    index = index_of(settings)
    if index is None:
        return
    if index >= module.get_gpu_count():
        raise RuntimeFailure(
            "RUNTIME_MISSING",
            f"{settings.get('gpu', 'the GPU')} is gone: no Vulkan driver offers it any more; "
            "restart the agent",
        )
    net.opt.use_vulkan_compute = True
    kind, _, named = settings.get("precision", "fp32").partition(" ")
    for option in _HALVES:
        setattr(net.opt, option, kind == "fp16" and option.rpartition("_")[2] in named.split("+"))
    net.set_vulkan_device(index)


def place(layer: Any, settings: Mapping[str, str]) -> str:
    """Return where a layer of a loaded net computes: the name of the GPU, or "cpu"."""
    on_gpu = index_of(settings) is not None and bool(layer.support_vulkan)
    return settings.get("gpu", "vulkan") if on_gpu else "cpu"
