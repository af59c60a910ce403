"""The sources of answers in words, for people.

`KernelAnswer.source` is read by programs, and so its texts are short and stay as they are. This
module says the same as a person would.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FALLBACK = "fallback:"
"""How the source of a kernel begins that no regressor of its own kind predicts."""

_PLAIN: Mapping[str, str] = MappingProxyType(
    {
        "gp": "learned from kernels like it",
        "stack": "learned from kernels like it",
        "measured": "measured as it is",
        "absent": "takes no time here, as profiles of networks show",
        "fallback:view": "takes next to no time",
        "fallback:analytic": "computed: nothing like it was measured",
        "fallback:roofline": "computed: too few kernels like it",
    }
)
"""Words for sources that name nothing else."""

_NAMING: Mapping[str, str] = MappingProxyType(
    {
        "family": "guessed from other {} ops",
        "nearest": "guessed from {} kernels, the nearest kind",
        "beyond": "far larger than all measured {} kernels",
        "dtype": "never measured with {}",
    }
)
"""Words for fallbacks that name a family of kernels or a data type, by their kind."""


def in_words(source: str) -> str:
    """What a kernel's latency rests on, in words; a source that is not known stays as it is."""
    if source in _PLAIN:
        return _PLAIN[source]
    if source.startswith(FALLBACK):
        kind, _, named = source.removeprefix(FALLBACK).partition(":")
        if kind in _NAMING and named:
            return _NAMING[kind].format(named)
    return source


def missing_dtype(source: str) -> str:
    """The data type that was never measured, if that is what a source says; else empty."""
    kind = f"{FALLBACK}dtype:"
    return source.removeprefix(kind) if source.startswith(kind) else ""
