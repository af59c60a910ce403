"""Which files, folders and devices a worker keeps."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, Sequence

_SYSTEM = (
    *("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin"),
    *("/nix/store", "/gnu/store", "/run/opengl-driver", "/run/current-system"),
    *("/system", "/vendor", "/apex", "/odm", "/product", "/linkerconfig"),  # Android
)
"""Where programs and libraries of the system lie."""

_VENDORS = ("/opt/intel", "/opt/rocm", "/opt/nvidia", "/opt/hailo", "/opt/amdgpu", "/opt/arm")
"""Where vendors install libraries outside of the system's folders."""

_FACTS = (
    *("/proc", "/sys", "/run/udev"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ld.so.preload"),
    *("/etc/localtime", "/etc/timezone", "/etc/locale.alias", "/etc/locale.conf"),
    *("/etc/os-release", "/etc/lsb-release", "/etc/debian_version", "/etc/nv_tegra_release"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/hosts", "/etc/host.conf"),
    *("/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf", "/etc/mime.types", "/etc/services"),
    *("/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/egl", "/etc/drirc", "/etc/nvidia"),
    *("/etc/nvidia-container-runtime", "/dev/__properties__"),
)
"""Facts that libraries read. The rest of /etc may hold keys and passwords."""

_DEVICES = (
    *("null", "zero", "full", "random", "urandom"),
    *("dri", "nvidia*", "nvhost*", "nvmap", "nvgpu", "nvsciipc", "host1x-fence", "tegra*"),
    *("kfd", "accel", "accel*", "apex_*", "galcore", "ethosu*", "mali*", "kgsl-3d0", "adsprpc*"),
    *("hailo*", "rknpu", "dma_heap", "ion", "dxg"),
)
"""Device nodes below /dev that runtimes open, as patterns."""

_USB = "bus/usb"
_USB_MAKERS = ("03e7", "1a6e", "18d1")
"""Makers of USB accelerators: Intel Movidius, Global Unichip, Google. Below /dev/bus/usb lie all
devices of the board, so that the folder is granted only where one of these is plugged in."""

_PATH_VARIABLES = (
    *("LD_LIBRARY_PATH", "PYTHONPATH", "VK_ICD_FILENAMES", "VK_DRIVER_FILES", "VK_LAYER_PATH"),
    *("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "LD_PRELOAD"),
    *("__EGL_VENDOR_LIBRARY_FILENAMES", "CUDA_HOME", "CUDA_PATH", "TERMINFO"),
)
"""Variables of the environment that name files and folders of libraries."""

_TOO_WIDE = (
    "/",
    "/home",
    "/root",
    "/etc",
    "/var",
    "/tmp",
    "/run",
    "/srv",
    "/mnt",
    "/media",
    "/dev",
)
"""Folders that are never granted as a whole, whoever names them."""


def programs(
    options: Mapping[str, Any], named: Iterable[str], hidden: Sequence[Path]
) -> list[Path]:
    """What a worker may read and execute: the system, its Python, and what options name.

    Args:
        options: the options of its runtime; every absolute path among them is granted.
        named: more paths.
        hidden: files and folders that stay closed, also inside of a folder that is granted.
    """
    agent = Path(__file__).resolve().parent.parent
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    environment = (os.environ.get(name, "") for name in _PATH_VARIABLES)
    wanted: list[str] = [
        *_SYSTEM,
        *_VENDORS,
        *prefixes,
        str(Path(sys.executable).resolve().parent),
        str(agent),
        *sys.path,
        *_editable(),
        *_loaded(),
        *(entry for value in environment for entry in value.split(os.pathsep)),
        *_texts(options),
        *named,
    ]
    return _spread_all(wanted, hidden)


def facts(hidden: Sequence[Path]) -> list[Path]:
    """What a worker may read besides: facts about the machine."""
    return _spread_all(_FACTS, hidden)


def devices(root: Path = Path("/")) -> list[Path]:
    """The device nodes, and folders of them, that runtimes may need."""
    folder = root / "dev"
    found = [path for pattern in _DEVICES for path in sorted(folder.glob(pattern))]
    if any(
        _text(path) in _USB_MAKERS for path in (root / "sys/bus/usb/devices").glob("*/idVendor")
    ):
        found.append(folder / _USB)
    return found


def spread(folder: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """A folder, or what is in it around hidden paths.

    A folder inside a hidden one is given as a whole, as somebody has named it.
    """
    inside = [path for path in hidden if path == folder or folder in path.parents]
    if not inside:
        yield folder
        return
    if folder in inside:
        return
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        yield from spread(entry, inside)


def _spread_all(wanted: Iterable[str], hidden: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    closed = [Path(os.path.realpath(str(path))) for path in hidden]
    for text in dict.fromkeys(wanted):
        if not Path(text).is_absolute():
            continue
        path = Path(os.path.realpath(text))
        if str(path) in _TOO_WIDE or not os.path.exists(str(path)):  # noqa: PTH110 - it never raises
            continue
        found += spread(path, closed)
    return list(dict.fromkeys(found))


def _editable() -> Iterator[str]:
    """Folders of packages that are installed as editable, which setuptools finds by a hook."""
    for finder in sys.meta_path:
        module = sys.modules.get(getattr(finder, "__module__", ""))
        mapping = getattr(module, "MAPPING", None)
        if isinstance(mapping, dict):
            yield from (str(path) for path in mapping.values())


def _loaded() -> Iterator[str]:
    """Folders of the libraries that this process has loaded: Python may lie at unusual places."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        name = line[line.find("/") :] if "/" in line else ""
        if ".so" in name:
            yield str(Path(name).parent)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
