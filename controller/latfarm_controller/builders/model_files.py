"""The files of one model: the model itself, and the files beside it to which it refers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model as it is built and uploaded.

    Attributes:
        model: the bytes of the model file.
        companions: the bytes of each file beside it, by name; empty for most models.
    """

    model: bytes
    companions: Mapping[str, bytes] = field(default_factory=dict)

    @staticmethod
    def of(data: bytes | ModelFiles) -> ModelFiles:
        """The files of a model that may be given as the bytes of its only file."""
        return data if isinstance(data, ModelFiles) else ModelFiles(data)

    @property
    def size_bytes(self) -> int:
        """The size of all files together."""
        return len(self.model) + sum(map(len, self.companions.values()))
