"""What the name of a platform says: the engine, the element type and the number of threads.

A name has the form `{hardware}-{runtime}{version}-{device, if any}-{dtype}-{threads}t`, for example
`local-onnxruntime1.31-fp32-1t`. Names of accelerators have no number of threads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TAIL = re.compile(r"^(?P<head>.+?)-(?P<dtype>fp32|fp16|bf16|int8)(?:-(?P<threads>\d+)t)?$")
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
