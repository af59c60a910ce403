"""External delegates: which ones a board has, whether they can be loaded, and loading one.

A delegate is a vendor's library that executes part of a graph (VX on the i.MX 8M Plus, Ethos-U on
the i.MX 93, an EdgeTPU). It may crash or hang, so it is first tried in a process of its own, and is
then only loaded for a model of its own platform.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Mapping, Sequence

from latfarm_agent.runtimes.base import RuntimeFailure
from latfarm_agent.runtimes.tflite.cache import file_sha256

DTYPES = ("fp32", "int8")
"""Element types that a delegate may be configured for."""
PROBE_TIMEOUT_S = 60.0
"""Time in which a delegate must load when it is tried; our choice."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN = frozenset({"xnnpack", "builtin", "reference", "gpu", "cpu"})
_FORMAT = re.compile(r"tflite(-[a-z]+:[a-z0-9-]+)?")
_KEYS = (
    "name",
    "library",
    "options",
    "dtypes",
    "slow_compile",
    "model_format",
    "cache_option",
    "cache_options",
)
_SHOWN_CHARS = 400  # length to which messages of a delegate are cut
_PROBE = """
import ctypes, json, sys
path, options = json.loads(sys.argv[1])
said = []
Report = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
report = Report(lambda text: said.append((text or b"").decode(errors="replace")))
try:
    library = ctypes.PyDLL(path)
    create, destroy = library.tflite_plugin_create_delegate, library.tflite_plugin_destroy_delegate
except (OSError, AttributeError) as error:
    sys.exit("refused: " + " ".join(str(error).split()))
texts = [(ctypes.c_char_p * len(options))(*[part.encode() for part in parts])
         for parts in (list(options), list(options.values()))]
create.restype = ctypes.c_void_p
made = create(texts[0], texts[1], ctypes.c_size_t(len(options)), report)
if not made:
    sys.exit("refused: " + " ".join(" ".join(said).split()))
destroy.restype = None
destroy(ctypes.c_void_p(made))
print("made")
"""
"""Program that creates and destroys a delegate, as an interpreter would."""


@dataclass(frozen=True)
class Delegate:
    """A delegate as the agent's configuration describes it.

    Attributes:
        name: stands for the delegate in the names of platforms.
        library: absolute path of the vendor's library.
        options: options that are passed to the delegate unchanged.
        dtypes: element types; each is a platform.
        slow_compile: the first inference compiles, perhaps for minutes. It is then part of loading,
            under the deadline for compilations.
        model_format: the format of its models: "tflite", or what a compiler makes of such a file,
            for example "tflite-vela:ethos-u65-256".
        cache_option: the delegate's option for the path of a file with a compiled graph; empty: it
            has none.
        cache_options: options that switch such a file on.
    """

    name: str
    library: Path
    options: Mapping[str, str] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("int8",)
    slow_compile: bool = False
    model_format: str = "tflite"
    cache_option: str = ""
    cache_options: Mapping[str, str] = field(default_factory=dict)


def parse(entries: Any) -> tuple[Delegate, ...]:
    """Read the option `delegates` of the runtime.

    Raises:
        RuntimeFailure: RUNTIME_MISSING, naming the option that is wrong and what belongs there.
    """
    if not isinstance(entries, (list, tuple)):
        raise _wrong("delegates", "must be a list of objects")
    found = tuple(_parse(f"delegates[{index}]", entry) for index, entry in enumerate(entries))
    names = [delegate.name for delegate in found]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise _wrong(f"delegates[{index}].name", f"{name!r} is there already")
    return found


def loads(delegate: Delegate) -> str:
    """Try a delegate in a process of its own; return why it cannot be loaded, empty if it can."""
    if not delegate.library.is_file():
        return f"{delegate.library} is not there; install the vendor's package, or correct the path"
    given = json.dumps([str(delegate.library), dict(delegate.options)])
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _PROBE, given],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{delegate.library.name} did not load within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return f"no process could be started to try {delegate.library.name}: {error}"
    if done.returncode == 0 and b"made" in done.stdout:
        return ""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    last = said[-1][:_SHOWN_CHARS] if said else ""
    if done.returncode < 0:
        return f"{delegate.library.name} crashed when it was made ({_signal(-done.returncode)})"
    return f"{delegate.library.name} cannot be loaded: {last or done.returncode}"


def settings_of(delegate: Delegate) -> dict[str, str]:
    """Return all that changes the latency with a delegate, as settings of a platform.

    Raises:
        RuntimeFailure: RUNTIME_MISSING if the library cannot be read.
    """
    try:
        digest = file_sha256(delegate.library)
    except OSError as error:
        raise RuntimeFailure(
            "RUNTIME_MISSING", f"{delegate.library} cannot be read: {error.strerror or error}"
        ) from error
    options = ";".join(f"{key}={value}" for key, value in sorted(delegate.options.items()))
    return {
        "delegate": delegate.name,
        "delegate_sha256": digest,
        "delegate_options": options,
    }


def load(module: Any, delegate: Delegate, extra: Mapping[str, str]) -> Any:
    """Load a delegate in this process, with its options and the `extra` ones.

    Args:
        module: the interpreter's module.
        delegate: the delegate.
        extra: more options of the delegate.

    Raises:
        RuntimeFailure: MODEL_FAILED if the delegate refuses.
    """
    options = dict(delegate.options, **extra)
    try:
        return module.load_delegate(str(delegate.library), options)
    except (OSError, ValueError, AttributeError) as error:
        message = " ".join(str(error).split())[:_SHOWN_CHARS]
        raise RuntimeFailure("MODEL_FAILED", f"delegate {delegate.name}: {message}") from error


def _parse(where: str, entry: Any) -> Delegate:
    if not isinstance(entry, dict):
        raise _wrong(where, "must be an object")
    for key in entry:
        if key not in _KEYS:
            raise _wrong(f"{where}.{key}", f"is unknown; known: {', '.join(_KEYS)}")
    name, library = entry.get("name"), entry.get("library")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
        raise _wrong(
            f"{where}.name",
            f"must be small letters and digits, and none of {', '.join(sorted(_TAKEN))}",
        )
    if not isinstance(library, str) or not Path(library).is_absolute():
        raise _wrong(f"{where}.library", "must be the absolute path of a shared library")
    dtypes = entry.get("dtypes", ["int8"])
    if not isinstance(dtypes, (list, tuple)) or not dtypes or set(dtypes) - set(DTYPES):
        raise _wrong(f"{where}.dtypes", f"must be a list of {', '.join(DTYPES)}")
    slow = entry.get("slow_compile", False)
    if not isinstance(slow, bool):
        raise _wrong(f"{where}.slow_compile", "must be true or false")
    model_format = entry.get("model_format", "tflite")
    if not isinstance(model_format, str) or not _FORMAT.fullmatch(model_format):
        raise _wrong(
            f"{where}.model_format", 'must be "tflite" or like "tflite-vela:ethos-u65-256"'
        )
    cache_option = entry.get("cache_option", "")
    if not isinstance(cache_option, str):
        raise _wrong(f"{where}.cache_option", "must be the name of one of its options")
    return Delegate(
        name,
        Path(library),
        _texts(f"{where}.options", entry.get("options", {})),
        tuple(dict.fromkeys(str(dtype) for dtype in dtypes)),
        slow,
        model_format,
        cache_option,
        _texts(f"{where}.cache_options", entry.get("cache_options", {})),
    )


def _texts(where: str, values: Any) -> dict[str, str]:
    """Convert options to texts, which is how a delegate receives them."""
    if not isinstance(values, dict):
        raise _wrong(where, "must be an object")
    found = {}
    for key, value in values.items():
        if isinstance(value, bool):
            found[str(key)] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            found[str(key)] = str(value)
        else:
            raise _wrong(f"{where}.{key}", "must be a text, a number, true or false")
    return found


def _wrong(where: str, what: str) -> RuntimeFailure:
    return RuntimeFailure("RUNTIME_MISSING", f"option {where} {what}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Join at most `most` names, and say how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
