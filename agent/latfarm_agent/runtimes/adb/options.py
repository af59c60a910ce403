"""The configuration of phones: which benchmark binaries of the vendors to use, and how to run them.

```json
{
  "benchmarks": [
    {
      "kind": "tflite-benchmark",
      "path": "/opt/latfarm/android_aarch64_benchmark_model",
      "sha256": "9f86d081...",
      "version": "2.17",
      "variants": [{"dtype": "fp32"}, {"delegate": "gpu", "dtype": "fp16"}]
    }
  ],
  "core_mask": "f0"
}
```
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from latfarm_agent.runtimes.base import RuntimeFailure

DELEGATES: Mapping[str, tuple[str, ...]] = {
    "tflite-benchmark": ("cpu", "builtin", "gpu", "nnapi"),
    "mnn-bench": ("cpu", "opencl", "vulkan"),
    "ncnn-bench": ("cpu", "vulkan"),
}
"""Kind of binary -> where it can run a model; "builtin" is the CPU without XNNPACK."""

DTYPES: Mapping[str, tuple[str, ...]] = {
    "tflite-benchmark": ("fp32", "fp16", "int8"),
    "mnn-bench": ("fp32", "fp16"),
    # It has no option for this: it computes in half precision wherever the device can.
    "ncnn-bench": ("fp16",),
}
"""Kind of binary -> element types that it can compute in."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z.]{1,24}")
_CORE_MASK = re.compile(r"[0-9a-f]{1,16}")
_ARGUMENT = re.compile(r"--[a-z0-9_]{1,64}=[A-Za-z0-9_.,:/+\-]{0,256}")
_MOST_BENCHMARKS = 16  # bound on the binaries of one phone; our choice
_MOST_VARIANTS = 32  # bound on the variants of one binary; our choice


@dataclass(frozen=True)
class Binary:
    """A file that the user provides, and its SHA-256 in hexadecimal digits."""

    path: Path
    sha256: str


@dataclass(frozen=True)
class Variant:
    """One way to run models with a binary; each is a platform.

    `delegate`: one of `DELEGATES`. `dtype`: one of `DTYPES`. `arguments`: more arguments, which are
    passed to the binary unchanged.
    """

    delegate: str = "cpu"
    dtype: str = "fp32"
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Benchmark:
    """A vendor's benchmark binary.

    `kind`: one of `DELEGATES`. `libraries`: shared libraries that it needs. `profiler`: another
    binary that prints the times of single operators.
    """

    kind: str
    binary: Binary
    variants: tuple[Variant, ...]
    version: str = ""
    libraries: tuple[Binary, ...] = ()
    profiler: Binary | None = None

    @property
    def shown_version(self) -> str:
        """The configured version, or the beginning of the hash: binaries do not print a version."""
        return self.version or self.binary.sha256[:8]


@dataclass(frozen=True)
class PhoneOptions:
    """All options of the runtime for phones.

    Attributes:
        benchmarks: the binaries.
        core_mask: the cores that a benchmark may use, as a hexadecimal mask of `taskset`; empty:
            all cores.
        runs: inferences in one call of a binary; their median or average is one sample.
        warmup_runs: inferences before them that are not timed.
        warmup_s: least duration of the warm-up in seconds.
        call_s: duration in seconds after which a call makes no further inferences.
        keep_models: number of models that stay on the phone.
    """

    benchmarks: tuple[Benchmark, ...]
    core_mask: str = ""
    runs: int = 10
    warmup_runs: int = 2
    warmup_s: float = 0.05
    call_s: float = 2.0
    keep_models: int = 64


def read_options(data: Mapping[str, Any]) -> PhoneOptions:
    """Read and check the options.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the option that is wrong and what belongs there.
    """
    known = _object(data, "options", _DEFAULTS)
    mask = known.get("core_mask", "")
    if mask and not (_is_text(mask, _CORE_MASK) and int(mask, 16)):
        raise _wrong("core_mask", "must name cores in hex, as taskset takes them: f0")
    return PhoneOptions(
        benchmarks=tuple(
            _benchmark(entry, f"benchmarks[{index}]")
            for index, entry in enumerate(_list(known, "benchmarks", "", _MOST_BENCHMARKS))
        ),
        core_mask=mask,
        runs=int(_number(known, "runs", 10, 1, 10_000, whole=True)),
        warmup_runs=int(_number(known, "warmup_runs", 2, 1, 10_000, whole=True)),
        warmup_s=_number(known, "warmup_s", 0.05, 0.0, 60.0),
        call_s=_number(known, "call_s", 2.0, 0.01, 600.0),
        keep_models=int(_number(known, "keep_models", 64, 1, 100_000, whole=True)),
    )


_DEFAULTS = tuple(PhoneOptions.__dataclass_fields__)


def _benchmark(data: Any, where: str) -> Benchmark:
    keys = ("kind", "path", "sha256", "version", "variants", "libraries", "profiler")
    known = _object(data, where, keys)
    kind = str(known.get("kind"))
    if kind not in DELEGATES:
        raise _wrong(f"{where}.kind", f"must be one of {', '.join(DELEGATES)}")
    version = known.get("version", "")
    if version and not _is_text(version, _VERSION):
        raise _wrong(f"{where}.version", "must be letters, digits and dots")
    profiler = known.get("profiler")
    if profiler is not None and kind != "mnn-bench":
        raise _wrong(f"{where}.profiler", "only mnn-bench has one (MNNV2Basic.out)")
    variants = tuple(
        _variant(entry, kind, f"{where}.variants[{index}]")
        for index, entry in enumerate(_list(known, "variants", f"{where}.", _MOST_VARIANTS))
    )
    if len(set(variants)) != len(variants):
        raise _wrong(f"{where}.variants", "names one twice")
    libraries = known.get("libraries", [])
    if not isinstance(libraries, list):
        raise _wrong(f"{where}.libraries", "must be a list of objects with path and sha256")
    return Benchmark(
        kind=kind,
        binary=_binary({key: known.get(key) for key in ("path", "sha256")}, where),
        variants=variants,
        version=version,
        libraries=tuple(
            _binary(entry, f"{where}.libraries[{index}]") for index, entry in enumerate(libraries)
        ),
        profiler=None if profiler is None else _binary(profiler, f"{where}.profiler"),
    )


def _binary(data: Any, where: str) -> Binary:
    known = _object(data, where, ("path", "sha256"))
    path, sha256 = known.get("path"), known.get("sha256")
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise _wrong(f"{where}.path", "must be the absolute path of a file on this host")
    if not _is_text(sha256, _SHA256):
        raise _wrong(f"{where}.sha256", f"must be what `sha256sum {path}` prints")
    return Binary(Path(path), str(sha256))


def _variant(data: Any, kind: str, where: str) -> Variant:
    known = _object(data, where, ("delegate", "dtype", "arguments"))
    delegate = known.get("delegate", "cpu")
    if delegate not in DELEGATES[kind]:
        raise _wrong(f"{where}.delegate", f"{kind} has {', '.join(DELEGATES[kind])}")
    dtype = known.get("dtype", DTYPES[kind][0])
    if dtype not in DTYPES[kind]:
        raise _wrong(f"{where}.dtype", f"{kind} has {', '.join(DTYPES[kind])}")
    arguments = known.get("arguments", [])
    if arguments and kind != "tflite-benchmark":
        raise _wrong(f"{where}.arguments", f"{kind} takes none")
    if not isinstance(arguments, list) or not all(_is_text(a, _ARGUMENT) for a in arguments):
        raise _wrong(f"{where}.arguments", "must be a list of flags of the form --name=value")
    return Variant(delegate, dtype, tuple(arguments))


def _object(data: Any, where: str, keys: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise _wrong(where, "must be an object")
    for key in data:
        if key not in keys:
            raise _wrong(f"{where}.{key}", f"is unknown; known: {', '.join(keys)}")
    return data


def _list(known: Mapping[str, Any], name: str, where: str, most: int) -> list[Any]:
    found = known.get(name)
    if not isinstance(found, list) or not 1 <= len(found) <= most:
        raise _wrong(f"{where}{name}", f"must be a list of 1 to {most} objects")
    return found


def _number(
    known: Mapping[str, Any],
    name: str,
    default: float,
    low: float,
    high: float,
    whole: bool = False,
) -> float:
    found = known.get(name, default)
    right = isinstance(found, (int, float)) and not isinstance(found, bool)
    if not right or not low <= found <= high or (whole and found != int(found)):
        kind = "a whole number" if whole else "a number"
        raise _wrong(name, f"must be {kind} from {low:g} to {high:g}")
    return float(found)


def _is_text(value: Any, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _wrong(option: str, remedy: str) -> RuntimeFailure:
    return RuntimeFailure("RUNTIME_MISSING", f"option {option} {remedy}; correct the configuration")
