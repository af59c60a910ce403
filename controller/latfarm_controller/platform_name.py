"""What the name of a platform says: hardware, runtime, version, element type and threads.

A name has the form `{hardware}-{runtime}{version}-{device, if any}-{dtype}-{threads}t`, for example
`local-onnxruntime1.31-fp32-1t`. Names of accelerators have no number of threads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from latfarm_controller.nearest_names import offer

if TYPE_CHECKING:
    from latfarm_predictors.graph.graph import Graph

LEAST_ALIKE = 0.6
"""A platform without an equal part is offered where at least this share of the letters is equal."""
_TAIL = re.compile(r"^(?P<head>.+?)-(?P<dtype>fp32|fp16|bf16|int8)(?:-(?P<threads>\d+)t)?$")
_RUNTIME = re.compile(r"^(?P<runtime>[A-Za-z_][A-Za-z_-]*?)(?P<version>\d+(?:\.\d+)*)$")
_VERSIONED = re.compile(r"^[A-Za-z_]+(?P<version>\d[\d.]*)$")


@dataclass(frozen=True, slots=True)
class PlatformName:
    """The parts of a platform's name.

    Attributes:
        words: the words of the hardware, the runtime with its version, and the device; the whole
            name where it does not have the usual form.
        dtype: the element type; empty where the name does not have the usual form.
        threads: the number of threads; None for accelerators, and where the name does not say.
    """

    words: tuple[str, ...]
    dtype: str = ""
    threads: int | None = None

    @classmethod
    def parse(cls, name: str) -> PlatformName:
        """Split a name into its parts; a name of another form has words alone."""
        found = _TAIL.match(name)
        if found is None:
            return cls(tuple(name.split("-")))
        threads = int(found["threads"]) if found["threads"] else None
        return cls(tuple(found["head"].split("-")), found["dtype"], threads)

    @property
    def hardware(self) -> str:
        """The words before the runtime; empty where the name has no runtime with a version."""
        at = self._runtime_at
        return "" if at is None else "-".join(self.words[:at])

    @property
    def runtime(self) -> str:
        """The name of the runtime, such as `onnxruntime`; empty where the name does not say."""
        return self._runtime("runtime")

    @property
    def version(self) -> str:
        """The version of the runtime, such as `1.31`; empty where the name does not say."""
        return self._runtime("version")

    @property
    def device(self) -> str:
        """The words behind the runtime, such as `gpu`; empty where there are none."""
        at = self._runtime_at
        return "" if at is None else "-".join(self.words[at + 1 :])

    @property
    def parts(self) -> dict[str, str]:
        """All parts by their names; a part that the name does not tell is empty."""
        return {
            "hardware": self.hardware,
            "runtime": self.runtime,
            "version": self.version,
            "device": self.device,
            "dtype": self.dtype,
            "threads": "" if self.threads is None else str(self.threads),
        }

    @property
    def _runtime_at(self) -> int | None:
        """The position of the runtime: the first word behind the hardware that has a version."""
        found = (at for at, word in enumerate(self.words) if at and _RUNTIME.match(word))
        return next(found, None)

    def _runtime(self, part: str) -> str:
        at = self._runtime_at
        match = None if at is None else _RUNTIME.match(self.words[at])
        return "" if match is None else match[part]

    def engine(self, version: str) -> str:
        """The runtime with its version and the device, for example `openvino2026.4-gpu`.

        Args:
            version: the runtime's version as the board reports it. The engine begins with the last
                word that ends in a part of this version; without such a word, all words are the
                engine.
        """
        starts = [
            index
            for index, word in enumerate(self.words)
            if (match := _VERSIONED.match(word)) and match["version"] in version
        ]
        return "-".join(self.words[starts[-1] :] if starts else self.words)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known platform whose name is most like another one; empty if there is none.

    The platform with the most equal parts is nearest; among those, the one with the most similar
    name.
    """
    parts = PlatformName.parse(name).parts

    def likeness(other: str) -> tuple[int, float, str]:
        theirs = PlatformName.parse(other).parts
        same = sum(1 for part, value in parts.items() if value and value == theirs[part])
        return same, SequenceMatcher(None, name, other).ratio(), other

    return max(sorted(known), key=likeness, default="")


def _alike(name: str, other: str) -> bool:
    """Whether one name may have been meant by the other: a part is equal, or most letters are."""
    parts, theirs = PlatformName.parse(name).parts, PlatformName.parse(other).parts
    equal = any(value and value == theirs[part] for part, value in parts.items())
    ratio = SequenceMatcher(None, name, other).ratio()
    return equal or ratio >= LEAST_ALIKE or name.lower() in other.lower()


def differing(name: str, other: str) -> tuple[str, ...]:
    """The parts in which two names differ, such as `version`; none where a name has no parts."""
    left, right = PlatformName.parse(name), PlatformName.parse(other)
    if not (left.runtime and right.runtime):
        return ()
    theirs = right.parts
    return tuple(part for part, value in left.parts.items() if value != theirs[part])


def platform_hint(name: str, known: Iterable[str]) -> str:
    """A clause that offers the nearest known platform and tells in what its name differs.

    It is put behind a message about an unknown platform; it is empty if none is known.
    """
    found = nearest(name, known)
    if not found or "*" in name or not _alike(name, found):
        return ""
    parts = differing(name, found)
    told = f" (it differs in its {' and '.join(parts)})" if parts else ""
    return f"; {offer([found + told])}"


def as_asked(graph: Graph, platform: str) -> Graph:
    """The form in which a platform is asked about a model.

    An int8 platform quantises float networks itself. There an int8 file stands for the float
    network that was quantised.
    """
    if "int8" not in platform.split("-"):
        return graph
    from latfarm_predictors.frontends.onnx_quantization import dequantised, is_quantised

    return dequantised(graph) if is_quantised(graph) else graph
