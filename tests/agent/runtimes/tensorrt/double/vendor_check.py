"""Compares TensorRT's double with the vendor's compiled bindings, and prints each difference.

Run it as `python vendor_check.py BINDINGS DOUBLE`. BINDINGS is the file `tensorrt.so` of the
vendor's wheel, DOUBLE is the file `tensorrt.py` of the double. The loader must find empty stand-ins
for the libraries behind the bindings. TensorRT itself is not needed, because the bindings contain
all classes, signatures and members of enumerations.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Iterator

_PARAMETER = re.compile(r"(?P<name>\w+)(?:: (?P<type>[^=]+?))?(?: = (?P<default>.+))?$")
# The runtime asks whether these attributes exist, so the double must have exactly those that the
# vendor has.
_PROBED = (
    ("Builder", "platform_has_fast_fp16"),
    ("Builder", "platform_has_fast_int8"),
    ("BuilderFlag", "FP16"),
    ("IBuilderConfig", "builder_optimization_level"),
    ("IExecutionContext", "execute_async_v3"),
    ("NetworkDefinitionCreationFlag", "EXPLICIT_BATCH"),
    ("NetworkDefinitionCreationFlag", "STRONGLY_TYPED"),
)


def load(name: str, path: str) -> Any:
    """Load a module from a file, either source or compiled."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def overloads(function: Any) -> list[tuple[list[tuple[str, str, bool]], str]]:
    """Read the signatures at the beginning of a bound function's docstring.

    Each has the parameters without self, as (name, type, whether there is a default), and the type
    of the result.
    """
    found = []
    for line in (function.__doc__ or "").splitlines():
        match = re.match(rf"^(?:\d+\. )?{function.__name__}\((?P<inner>.*)\) -> (?P<out>.+)$", line)
        if match:
            parameters = []
            for text in _split(match["inner"]):
                part = _PARAMETER.match(text.strip())
                assert part is not None, text
                parameters.append((part["name"], part["type"] or "", part["default"] is not None))
            found.append((parameters[1:], match["out"]))
    return found


def _split(text: str) -> Iterator[str]:
    """Split parameters at the commas that are not inside brackets."""
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter in "[(<") - (letter in "])>")
        if letter == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    if text[begin:].strip():
        yield text[begin:]


def category(text: str) -> str:
    """Return the kind of type of an annotation, equal for both packages if the types agree."""
    text = text.replace(" | None", "").strip("' ")
    if re.search(r"(List|list|Sequence|tuple)\[|Dims$", text):
        return "sequence"
    last = re.split(r"\.|::", text)[-1]
    names = {"SupportsInt": "int", "SupportsFloat": "float", "buffer": "bytes", "Buffer": "bytes"}
    # Some interfaces of the library have an I before their name, which the bindings leave out.
    return names.get(last, re.sub(r"^I(?=[A-Z])", "", last))


def same(mine: str, theirs: str) -> bool:
    """Whether two annotations agree; the double annotates enumerations as `Any`."""
    return mine == "Any" or category(mine) == category(theirs)


def differences(double: Any, vendor: Any) -> Iterator[str]:
    """Yield everything that the double offers and the vendor does not, or in another way."""
    for name, mine in vars(double).items():
        if name.startswith("_") or not inspect.isclass(mine) or name == "Misuse":
            continue
        if not mine.__module__.startswith("double_"):
            continue
        theirs = getattr(vendor, name, None)
        if theirs is None:
            yield f"{name}: no such class"
        elif hasattr(mine, "__members__"):
            yield from _members(name, mine, theirs)
        else:
            yield from _class(name, mine, theirs)
    for name, attribute in _PROBED:
        here, there = (hasattr(getattr(m, name), attribute) for m in (double, vendor))
        if here != there:
            yield f"{name}.{attribute}: {here} in the double, {there} in the bindings"


def _members(name: str, mine: Any, theirs: Any) -> Iterator[str]:
    for member, value in mine.__members__.items():
        found = theirs.__members__.get(member)
        if found is None or int(found) != int(value):
            yield f"{name}.{member}: {found!r}"


def _class(name: str, mine: Any, theirs: Any) -> Iterator[str]:
    for attribute, value in vars(mine).items():
        if attribute.startswith("_") and attribute != "__init__":
            continue
        where = f"{name}.{attribute}"
        found = getattr(theirs, attribute, None)
        if found is None:
            yield f"{where}: not there"
        elif hasattr(value, "__members__"):
            yield from _members(where, value, found)
        elif isinstance(value, property):
            bound = inspect.getattr_static(theirs, attribute)
            if not isinstance(bound, property):
                yield f"{where}: not a property"
            elif value.fset is not None and bound.fset is None:
                yield f"{where}: cannot be set"
        elif callable(value) and (attribute != "__init__" or name in _MADE):
            yield from _function(where, value, found)


_MADE = ("Builder", "ILogger", "IProfiler", "OnnxParser", "Runtime")


def _function(where: str, mine: Any, theirs: Any) -> Iterator[str]:
    told = overloads(theirs)
    if not told:
        yield f"{where}: no signature in {theirs.__doc__!r:.80}"
        return
    parameters = list(inspect.signature(mine).parameters.values())[1:]
    result = str(inspect.signature(mine).return_annotation)
    for wanted, out in told:
        names = [name for name, _, _ in wanted]
        fits = [p.name for p in parameters] == names[: len(parameters)] and all(
            same(str(p.annotation), kind) for p, (_, kind, _) in zip(parameters, wanted)
        )
        if fits and all(default for _, _, default in wanted[len(parameters) :]):
            if not same(result, out):
                yield f"{where}: gives {out}, not {result}"
            return
    yield f"{where}: {told}"


def used(path: Path) -> set[str]:
    """Return the attributes of TensorRT's module that a file uses, as "A" or "A.B"."""
    return set(re.findall(r"\btrt\.([A-Z]\w+(?:\.[A-Z]\w+)?)", path.read_text()))


def main(bindings: str, double_path: str) -> int:
    """Print the differences; return 1 if there are any."""
    sys.path.insert(0, str(Path(double_path).parent))
    vendor, double = load("tensorrt", bindings), load("double_tensorrt", double_path)
    found = list(differences(double, vendor))
    from latfarm_agent.runtimes.tensorrt import build, runtime

    runtimes = Path(runtime.__file__).parent
    for path in sorted(runtimes.glob("*.py")):
        for name in sorted(used(path)):
            value = vendor
            for part in name.split("."):
                value = getattr(value, part, None)
            if value is None:
                found.append(f"{path.name}: trt.{name} is not in the bindings")
    # Try the runtime's logger and profiler as subclasses of the vendor's real classes.
    journal = build.Journal()
    logger = build.make_logger(vendor, journal)
    logger.log(vendor.ILogger.Severity.ERROR, "an error")
    logger.log(vendor.ILogger.Severity.INFO, "[DlaLayer] {ForeignNode[a...b]}")
    if (journal.errors(), journal.placed()[0]) != ("an error", ("{ForeignNode[a...b]}",)):
        found.append("the logger does not hear the vendor's severities")
    profiler = runtime.make_profiler(vendor)
    profiler.report_layer_time("layer", 0.5)
    if profiler.rows != [("layer", 0.5)]:
        found.append("the profiler does not keep what it is told")
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
