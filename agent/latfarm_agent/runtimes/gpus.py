"""The GPUs that the system's OpenCL and Vulkan drivers offer, in the order that libraries see them.

MNN computes on the first GPU and does not say which one that is. So this module asks the loaders of
the drivers itself, through ctypes. The structures and constants are those of the Vulkan 1.3 and
OpenCL 3.0 specifications; they are the same in all earlier versions.
"""

from __future__ import annotations

import ctypes
from typing import Any

from latfarm_agent.runtimes.gpu_options import Gpu, is_software

# Constants of OpenCL's cl.h.
_CL_PLATFORM_NAME = 0x0902
_CL_DEVICE_NAME = 0x102B
_CL_DRIVER_VERSION = 0x102D
_CL_DEVICE_TYPE_GPU = 1 << 2
# Constants of Vulkan's vulkan_core.h.
_STRUCTURE_INSTANCE_CREATE_INFO = 1
_DEVICE_TYPE_CPU = 4
_PROPERTIES_ROOM = 4096  # bytes for a VkPhysicalDeviceProperties, which has 824
_NAME_ROOM = 256  # bytes of its field deviceName (VK_MAX_PHYSICAL_DEVICE_NAME_SIZE)


def opencl_gpus() -> list[Gpu]:
    """Return the GPUs of the first OpenCL platform; none where there is no OpenCL."""
    library = _load("libOpenCL.so.1", "libOpenCL.so")
    if library is None:
        return []
    count = ctypes.c_uint()
    platforms = (ctypes.c_void_p * 16)()
    if library.clGetPlatformIDs(16, platforms, ctypes.byref(count)) or not count.value:
        return []
    platform = ctypes.c_void_p(platforms[0])
    devices = (ctypes.c_void_p * 64)()
    kind = ctypes.c_ulong(_CL_DEVICE_TYPE_GPU)
    if library.clGetDeviceIDs(platform, kind, 64, devices, ctypes.byref(count)):
        return []
    maker = _told(library.clGetPlatformInfo, platform, _CL_PLATFORM_NAME)
    found = []
    for index in range(count.value):
        device = ctypes.c_void_p(devices[index])
        name = _told(library.clGetDeviceInfo, device, _CL_DEVICE_NAME)
        driver = _told(library.clGetDeviceInfo, device, _CL_DRIVER_VERSION)
        found.append(Gpu(index, name, driver, is_software(maker, name)))
    return found


def vulkan_gpus() -> list[Gpu]:
    """Return the devices of all Vulkan drivers; none where there is no Vulkan."""
    library = _load("libvulkan.so.1", "libvulkan.so")
    if library is None:
        return []
    instance = ctypes.c_void_p()
    asked = _InstanceCreateInfo(sType=_STRUCTURE_INSTANCE_CREATE_INFO)
    if library.vkCreateInstance(ctypes.byref(asked), None, ctypes.byref(instance)):
        return []
    try:
        count = ctypes.c_uint(64)
        devices = (ctypes.c_void_p * 64)()
        if library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices) < 0:
            return []
        found = []
        for index in range(count.value):
            room = ctypes.create_string_buffer(_PROPERTIES_ROOM)
            library.vkGetPhysicalDeviceProperties(ctypes.c_void_p(devices[index]), room)
            told = _DeviceProperties.from_buffer(room)
            name = told.deviceName.decode("utf-8", "replace")
            software = told.deviceType == _DEVICE_TYPE_CPU or is_software(name)
            found.append(Gpu(index, name, hex(told.driverVersion), software))
        return found
    finally:
        library.vkDestroyInstance(instance, None)


class _InstanceCreateInfo(ctypes.Structure):
    """Vulkan's structure VkInstanceCreateInfo."""

    _fields_ = (
        ("sType", ctypes.c_uint),
        ("pNext", ctypes.c_void_p),
        ("flags", ctypes.c_uint),
        ("pApplicationInfo", ctypes.c_void_p),
        ("enabledLayerCount", ctypes.c_uint),
        ("ppEnabledLayerNames", ctypes.c_void_p),
        ("enabledExtensionCount", ctypes.c_uint),
        ("ppEnabledExtensionNames", ctypes.c_void_p),
    )


class _DeviceProperties(ctypes.Structure):
    """The first fields of Vulkan's structure VkPhysicalDeviceProperties."""

    _fields_ = (
        ("apiVersion", ctypes.c_uint),
        ("driverVersion", ctypes.c_uint),
        ("vendorID", ctypes.c_uint),
        ("deviceID", ctypes.c_uint),
        ("deviceType", ctypes.c_uint),
        ("deviceName", ctypes.c_char * _NAME_ROOM),
    )


def _load(*names: str) -> Any:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _told(ask: Any, whom: ctypes.c_void_p, what: int) -> str:
    """Return a text that clGetPlatformInfo or clGetDeviceInfo gives; empty if the call fails."""
    room = ctypes.create_string_buffer(1024)
    if ask(whom, ctypes.c_uint(what), ctypes.c_size_t(len(room) - 1), room, None):
        return ""
    return room.value.decode("utf-8", "replace").strip()
