"""Execution providers of onnxruntime: where the nodes of a session run, and with which options.

Each provider that this onnxruntime was built with and that loads is offered without configuration.
The agent's configuration can change a provider, or add one that comes as a plugin library:

```json
{"providers": [
  {"name": "CUDAExecutionProvider", "options": {"device_id": "1"}, "dtypes": ["fp16"]},
  {"name": "QNNExecutionProvider", "library": "/opt/qnn/libonnxruntime_providers_qnn.so",
   "options": {"backend_path": "/opt/qnn/libQnnHtp.so"}, "cpu_fallback": false}
]}
```
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Mapping, Sequence

from latfarm_agent.runtimes.base import Job, RuntimeFailure
from latfarm_agent.runtimes.onnxruntime.trace import CPU, RECORD_PLACES

DTYPES = ("fp32", "fp16", "int8")
_SUFFIX = "ExecutionProvider"
_KEYS = ("name", "label", "options", "dtypes", "library", "cpu_fallback")
_LABEL = re.compile(r"[a-z0-9]+$")
_TENSORRT = "TensorrtExecutionProvider"
# Providers with threads of their own -> their option for the number of threads.
_THREADS = {
    "OpenVINOExecutionProvider": "num_of_threads",
    "XnnpackExecutionProvider": "intra_op_num_threads",
}


@dataclass(frozen=True)
class ProviderTarget:
    """One provider with its options.

    Attributes:
        provider: onnxruntime's name of the provider.
        label: stands for the provider in the names of platforms.
        dtypes: element types that it computes in; each is a platform.
        options: options of the provider.
        memory: where inputs and outputs lie, "cpu" or "cuda".
        on_cpu: it computes on the CPU, so that the number of threads matters.
        compiles: it compiles whole pieces of the graph into kernels.
        helpers: other providers that execute the nodes that this one does not support.
        library: path of the plugin library, empty for a provider that is built in.
        cpu_fallback: whether the CPU may execute what all of them do not support.
    """

    provider: str
    label: str
    dtypes: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict)
    memory: str = "cpu"
    on_cpu: bool = False
    compiles: bool = False
    helpers: tuple[str, ...] = ()
    library: str = ""
    cpu_fallback: bool = True

    @property
    def settings(self) -> dict[str, str]:
        """Return all that changes the latency on this provider, as settings of a platform."""
        found = {
            "provider": self.provider,
            "label": self.label,
            "options": json.dumps(dict(self.options), sort_keys=True),
            "cpu_fallback": "allowed" if self.cpu_fallback else "refused",
        }
        files = dict(self.options, library=self.library)
        for name, value in sorted(files.items()):
            if value and Path(value).is_file():
                found[f"{name}_sha256"] = hashlib.sha256(Path(value).read_bytes()).hexdigest()
        return found


_KNOWN = (
    ProviderTarget("CUDAExecutionProvider", "cuda", ("fp32", "fp16"), memory="cuda"),
    ProviderTarget(
        _TENSORRT,
        "tensorrt",
        DTYPES,
        memory="cuda",
        compiles=True,
        helpers=("CUDAExecutionProvider",),
    ),
    ProviderTarget(
        "QNNExecutionProvider",
        "qnn",
        ("int8", "fp16"),
        {"backend_path": "libQnnHtp.so", "htp_performance_mode": "burst"},
        compiles=True,
    ),
    ProviderTarget("ACLExecutionProvider", "acl", ("fp32",), on_cpu=True),
    ProviderTarget("XnnpackExecutionProvider", "xnnpack", ("fp32",), on_cpu=True),
    ProviderTarget("DnnlExecutionProvider", "dnnl", ("fp32",), on_cpu=True, compiles=True),
    ProviderTarget(
        "OpenVINOExecutionProvider",
        "openvino",
        ("fp32", "int8"),
        {"device_type": "CPU"},
        on_cpu=True,
        compiles=True,
    ),
    ProviderTarget("CoreMLExecutionProvider", "coreml", ("fp32",), compiles=True),
    ProviderTarget("NnapiExecutionProvider", "nnapi", ("fp32", "int8"), compiles=True),
)
_BY_NAME = {target.provider: target for target in _KNOWN}


def configured(entries: Any) -> tuple[ProviderTarget, ...]:
    """Read the option "providers" of the agent's configuration.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, saying what is wrong and what belongs there.
    """
    if not isinstance(entries, (list, tuple)):
        raise _wrong("providers", "must be a list of objects")
    found = tuple(_target(entry, f"providers[{index}]") for index, entry in enumerate(entries))
    labels = [target.label for target in found]
    for label in labels:
        if labels.count(label) > 1:
            raise _wrong("providers", f"has two entries {label!r}: give each a label of its own")
    return found


def present(ort: Any, chosen: Sequence[ProviderTarget]) -> tuple[ProviderTarget, ...]:
    """Return the `chosen` providers, and all others that this onnxruntime has and that load.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if a chosen provider does not load.
    """
    for target in chosen:
        if target.dtypes:
            check(ort, target)
    named = {target.provider for target in chosen} | {target.label for target in chosen}
    found = [target for target in chosen if target.dtypes]
    for provider in ort.get_available_providers():
        known = _BY_NAME.get(provider)
        if known is None or known.provider in named or known.label in named:
            continue
        try:
            check(ort, known)
        except RuntimeFailure:
            continue  # it is built in, but the board lacks something that it needs
        found.append(known)
    return tuple(found)


def check(ort: Any, target: ProviderTarget) -> None:
    """Check that a provider loads, with a tiny model of which it supports no node.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, with the reason that onnxruntime gives.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        open_session(ort, _PROBE_MODEL, options, replace(target, cpu_fallback=True))
    except RuntimeFailure:
        raise
    except Exception as error:
        raise missing(target, " ".join(str(error).split())[:400]) from error


def open_session(
    ort: Any,
    model: str | bytes,
    options: Any,
    target: ProviderTarget,
    extra: Mapping[str, str] | None = None,
) -> Any:
    """Make a session on a provider, and fail instead of running on another one.

    Args:
        ort: the onnxruntime module.
        model: path or bytes of the model.
        options: a SessionOptions, which this function changes.
        target: the provider that shall run the model.
        extra: more options of the provider.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if the provider does not exist here or does not load.
        Exception: onnxruntime's own exceptions about the model.
    """
    options.add_session_config_entry(RECORD_PLACES, "1")
    if not target.cpu_fallback:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    given = dict(target.options, **(extra or {}))
    if target.library:
        options.add_provider_for_devices(_devices(ort, target), given)
        session = ort.InferenceSession(model, options)
    else:
        if target.provider not in ort.get_available_providers():
            raise missing(target, "this onnxruntime was built without it")
        providers: list[Any] = [(target.provider, given)]
        device = {"device_id": given["device_id"]} if "device_id" in given else {}
        providers += [(helper, device) for helper in target.helpers]
        if target.cpu_fallback:
            providers.append(CPU)
        # With its fallback on, onnxruntime would go on without a provider that fails to load.
        session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    if target.provider not in session.get_providers():
        raise missing(target, "onnxruntime left it out: a library that it needs does not load")
    return session


def extra_options(target: ProviderTarget, job: Job, threads: int, cache_dir: str) -> dict[str, str]:
    """Return the options that follow from the request; those of the configuration take precedence.

    TensorRT's engines are kept for one request only. Their file names are the same for models whose
    nodes have equal names but other shapes or weights, and an engine from elsewhere must never be
    loaded. Its timing cache distinguishes layers by everything that changes their time, so it is
    kept in `cache_dir`.
    """
    found: dict[str, str] = {}
    if target.on_cpu and target.provider in _THREADS:
        found[_THREADS[target.provider]] = str(threads)
    if target.provider == _TENSORRT:
        engines = job.scratch_dir / "engines"
        engines.mkdir(exist_ok=True)
        found.update(trt_engine_cache_enable="1", trt_engine_cache_path=str(engines))
        if cache_dir:
            Path(cache_dir).mkdir(parents=True, exist_ok=True)
            found.update(trt_timing_cache_enable="1", trt_timing_cache_path=cache_dir)
        if job.dtype in ("fp16", "int8"):
            found[f"trt_{job.dtype}_enable"] = "1"
    return {name: value for name, value in found.items() if name not in target.options}


def missing(target: ProviderTarget, reason: str) -> RuntimeFailure:
    """Return the failure for a provider that cannot be used."""
    return RuntimeFailure(
        "RUNTIME_MISSING",
        f"onnxruntime's {target.provider} does not load ({reason}); install what it needs, or "
        "remove it from the runtime's option providers",
    )


def _devices(ort: Any, target: ProviderTarget) -> list[Any]:
    """Return the first device of a plugin's provider; registers the plugin once in a process."""

    def found() -> list[Any]:
        return [device for device in ort.get_ep_devices() if device.ep_name == target.provider]

    if not found():
        if not Path(target.library).is_file():
            raise missing(target, f"{target.library} is not a file")
        ort.register_execution_provider_library(target.provider, target.library)
    devices = found()
    if not devices:
        raise missing(target, f"{target.library} finds no device on this board")
    return devices[:1]


def _target(entry: Any, where: str) -> ProviderTarget:
    if not isinstance(entry, dict):
        raise _wrong(where, "must be an object")
    for key in entry:
        if key not in _KEYS:
            raise _wrong(where, f"has an unknown key {key!r}; known: {', '.join(_KEYS)}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.endswith(_SUFFIX) or name == CPU:
        raise _wrong(f"{where}.name", "must be a provider, for example CUDAExecutionProvider")
    base = _BY_NAME.get(name) or ProviderTarget(name, name[: -len(_SUFFIX)].lower(), ())
    label = entry.get("label", base.label)
    if not isinstance(label, str) or not _LABEL.match(label):
        raise _wrong(f"{where}.label", "must consist of small letters and digits")
    options = entry.get("options", {})
    if not isinstance(options, dict) or not all(
        isinstance(value, (str, int, float)) for value in options.values()
    ):
        raise _wrong(f"{where}.options", "must be an object of strings and numbers")
    texts = {str(key): _text(value) for key, value in options.items()}
    dtypes = entry.get("dtypes", list(base.dtypes))
    if not isinstance(dtypes, list) or not all(dtype in DTYPES for dtype in dtypes):
        raise _wrong(f"{where}.dtypes", f"must be a list of {', '.join(DTYPES)}")
    if not dtypes and "dtypes" not in entry:
        raise _wrong(f"{where}.dtypes", f"must be given for {name}: a list of {', '.join(DTYPES)}")
    library = entry.get("library", "")
    if not isinstance(library, str) or (library and not Path(library).is_absolute()):
        raise _wrong(f"{where}.library", "must be the absolute path of the provider's library")
    fallback = entry.get("cpu_fallback", True)
    if not isinstance(fallback, bool):
        raise _wrong(f"{where}.cpu_fallback", "must be true or false")
    merged = dict(base.options, **texts)
    return replace(
        base,
        label=label,
        options=merged,
        dtypes=tuple(dict.fromkeys(dtypes)),
        library=library,
        cpu_fallback=fallback,
        on_cpu=base.on_cpu and merged.get("device_type", "CPU").upper().startswith("CPU"),
        compiles=base.compiles or bool(library),
    )


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _wrong(where: str, what: str) -> RuntimeFailure:
    return RuntimeFailure("RUNTIME_MISSING", f"the onnxruntime runtime's option {where} {what}")


def _field(number: int, value: int | bytes) -> bytes:
    """Encode one field of a protobuf message: an integer below 128, or fewer than 128 bytes."""
    if isinstance(value, int):
        return bytes((number << 3, value))
    return bytes((number << 3 | 2, len(value))) + value


def _probe_model() -> bytes:
    """Build an ONNX file with one determinant, an op that all providers leave to the CPU."""
    node = _field(1, b"x") + _field(2, b"y") + _field(4, b"Det")
    sizes = _field(1, _field(1, 1)) + _field(1, _field(1, 1))
    matrix = _field(2, _field(1, _field(1, 1) + _field(2, sizes)))
    scalar = _field(2, _field(1, _field(1, 1) + _field(2, b"")))
    graph = _field(1, node) + _field(2, b"probe")
    graph += _field(11, _field(1, b"x") + matrix) + _field(12, _field(1, b"y") + scalar)
    return _field(1, 7) + _field(7, graph) + _field(8, _field(2, 11))


_PROBE_MODEL = _probe_model()
