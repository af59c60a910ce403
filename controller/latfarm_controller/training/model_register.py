"""The register of a platform's models: which bundle is in use, which were, and which only wait.

Beside the bundles of a platform lies the file `models.json`. It alone says which bundle predictions
use, and it is replaced as a whole: after a crash the promoted model is the old one or the new one.
A home of an older version has no such file; there the bundle with the highest number is promoted.

A model is a `candidate` until it is promoted, and `retired` once another one took its place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from latfarm_predictors.whole_file import written_whole

from latfarm_controller.errors import StoreError, UsageError
from latfarm_controller.private_files import FILE_MODE, locked_file

FILE = "models.json"
"""Name of the register's file, beside the bundles of its platform."""
FORMAT = "latfarm-models"
"""Name of the file's format."""
VERSION = 1
"""Version of the file's format."""
LOCK = ".models.lock"
"""Name of the file that is locked while a register is changed."""
BUNDLE_SUFFIX = ".zip"
"""Suffix of a bundle's file name; the rest of the name is the number of the model."""

State = Literal["candidate", "promoted", "retired"]
"""Whether a model may be promoted, is in use, or was in use."""
Action = Literal["found", "promote", "rollback", "remove"]
"""What changed the model in use; `found`: it was in use before there was a register."""


@dataclass(frozen=True)
class ModelRecord:
    """One model of a platform.

    Attributes:
        number: the number of its bundle, as in the file name.
        state: see `State`.
        added_at_s: when it was made or imported, Unix time in seconds; 0 if that is not known.
        parent: number of the model that it was trained from; empty: it was trained from rows alone.
        data_revision: which rows trained it, see `data_revision`; empty if that is not known.
        scores: how it predicts the frozen set, as `FrozenScores.to_json` tells it; empty before it
            was judged.
    """

    number: str
    state: State = "candidate"
    added_at_s: float = 0.0
    parent: str = ""
    data_revision: str = ""
    scores: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as plain JSON types."""
        return {
            "state": self.state,
            "added_at_s": self.added_at_s,
            "parent": self.parent,
            "data_revision": self.data_revision,
            "scores": dict(self.scores),
        }


@dataclass(frozen=True)
class RegisterChange:
    """A change of the model in use.

    Attributes:
        action: what was done.
        model: the model in use since then; empty: none.
        replaced: the model that was in use before; empty: none.
        at_s: when, Unix time in seconds.
        reason: why, in the words of the person who did it.
        forced: whether the model was promoted although it predicts the frozen set worse.
    """

    action: Action
    model: str
    replaced: str = ""
    at_s: float = 0.0
    reason: str = ""
    forced: bool = False

    def to_json(self) -> dict[str, Any]:
        """The change as plain JSON types."""
        return {
            "action": self.action,
            "model": self.model,
            "replaced": self.replaced,
            "at_s": self.at_s,
            "reason": self.reason,
            "forced": self.forced,
        }


@dataclass(frozen=True)
class ModelRegister:
    """The models of one platform. Immutable: each change returns another register.

    Attributes:
        models: the models by their numbers, the lowest number first.
        history: all changes of the model in use, the oldest first.
    """

    models: Mapping[str, ModelRecord] = field(default_factory=dict)
    history: tuple[RegisterChange, ...] = ()

    @property
    def promoted(self) -> str:
        """The number of the model in use; empty if there is none."""
        in_use = [name for name, model in self.models.items() if model.state == "promoted"]
        return in_use[0] if in_use else ""

    @property
    def earlier(self) -> tuple[str, ...]:
        """The models that a rollback goes back to, the next one first."""
        stack: list[str] = []
        for change in self.history:
            if change.action in ("found", "promote"):
                stack = [name for name in stack if name != change.model]
                stack.append(change.model)
            else:  # it went back: what was promoted after that model is no goal any more
                while stack and stack[-1] != change.model:
                    stack.pop()
        now = self.promoted
        return tuple(n for n in reversed(stack) if n != now and n in self.models)

    def model(self, number: str) -> ModelRecord:
        """The model with a number.

        Raises:
            UsageError: there is no such model; another process may have removed it just now.
        """
        found = self.models.get(number)
        if found is None:
            known = ", ".join(self.models) or "none"
            raise UsageError(f"there is no model {number!r}; the models here are: {known}")
        return found

    def with_model(self, model: ModelRecord) -> ModelRegister:
        """The register with a model added, or with another record of a known one."""
        return replace(self, models=_ordered({**self.models, model.number: model}))

    def promote(
        self, number: str, *, at_s: float, reason: str = "", forced: bool = False
    ) -> ModelRegister:
        """The register with that model in use.

        Raises:
            UsageError: there is no such model.
        """
        self.model(number)
        return self._in_use(number, RegisterChange("promote", number, "", at_s, reason, forced))

    def rollback(self, *, at_s: float, reason: str = "") -> ModelRegister:
        """The register with the model in use that was in use before the present one.

        Raises:
            UsageError: no earlier model is left.
        """
        if not self.earlier:
            raise UsageError(
                f"no model was in use before {self.promoted or 'this'}, so there is nothing to go "
                "back to; latfarm bundle list tells the models"
            )
        number = self.earlier[0]
        return self._in_use(number, RegisterChange("rollback", number, "", at_s, reason))

    def without(self, numbers: set[str], *, at_s: float) -> ModelRegister:
        """The register without some models; an earlier one is in use if the promoted one goes."""
        before, goals = self.promoted, [n for n in self.earlier if n not in numbers]
        left = replace(
            self, models={name: m for name, m in self.models.items() if name not in numbers}
        )
        if before and before not in numbers:
            return left
        number = goals[0] if goals else max(left.models, key=int, default="")
        if not number:
            change = RegisterChange("remove", "", before, at_s)
            return replace(left, history=(*left.history, change))
        return left._in_use(number, RegisterChange("remove", number, before, at_s))

    def _in_use(self, number: str, change: RegisterChange) -> ModelRegister:
        before = self.promoted
        if before == number:
            return self
        models = dict(self.models)
        if before:
            models[before] = replace(models[before], state="retired")
        models[number] = replace(models[number], state="promoted")
        change = replace(change, replaced=before or change.replaced)
        return ModelRegister(_ordered(models), (*self.history, change))

    def to_json(self) -> dict[str, Any]:
        """The register as plain JSON types."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "models": {name: model.to_json() for name, model in self.models.items()},
            "history": [change.to_json() for change in self.history],
        }

    @staticmethod
    def from_json(data: Any) -> ModelRegister:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError, ValueError: the data do not describe a register.
        """
        if data["format"] != FORMAT or data["version"] != VERSION:
            raise ValueError(f"it has format {data['format']!r} version {data['version']!r}")
        models = {str(n): ModelRecord(number=str(n), **told) for n, told in data["models"].items()}
        promoted = [name for name, model in models.items() if model.state == "promoted"]
        wrong = [name for name in models if not name.isdecimal()]
        if wrong or len(promoted) > 1:
            raise ValueError(f"models {wrong or promoted} cannot all be as it says")
        return ModelRegister(
            _ordered(models), tuple(RegisterChange(**told) for told in data["history"])
        )


def numbers_in(folder: Path) -> list[str]:
    """The numbers of the bundles in a platform's folder, the lowest first."""
    found = [path.stem for path in folder.glob(f"*{BUNDLE_SUFFIX}") if path.stem.isdecimal()]
    return sorted(found, key=int)


def read_register(folder: Path) -> ModelRegister:
    """The register of a platform, with the bundles that are really there.

    Bundles that the file does not name were copied there by hand, or by an older version: they are
    candidates. Without a file, or if no model in it is left, the bundle with the highest number is
    in use.

    Args:
        folder: the folder of the platform's bundles.

    Raises:
        StoreError: the file cannot be read, or is no register.
    """
    here = numbers_in(folder)
    path = folder / FILE
    try:
        told = path.stat()
    except FileNotFoundError:
        return _found(here)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    kept = _read(path, told.st_mtime_ns, told.st_size, told.st_ino)
    gone = set(kept.models) - set(here)
    for number in here:
        if number not in kept.models:
            kept = kept.with_model(ModelRecord(number))
    kept = kept.without(gone, at_s=0.0) if gone else kept
    if here and not kept.promoted:  # all others were removed before
        return kept._in_use(here[-1], RegisterChange("found", here[-1]))
    return kept


@contextmanager
def changed_register(folder: Path) -> Iterator[list[ModelRegister]]:
    """Change the register of a platform; nobody else changes it meanwhile.

    The block is given a list with the present register and puts the changed one in its place. The
    file is on disk when this returns. If the block fails, nothing is changed.

    Raises:
        StoreError: the file cannot be read or written.
    """
    with locked(folder):
        box = [read_register(folder)]
        yield box
        _write(folder, box[0])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other process change what is known about the models in a folder; make the folder.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = locked_file(folder / LOCK)
    except OSError as error:
        raise StoreError(f"{folder} cannot be written: {error.strerror}") from error
    with lock:
        yield


def write_durably(path: Path, text: str) -> None:
    """Write a private text file, which is on disk as a whole when this returns.

    Raises:
        StoreError: the file cannot be written; an older one of that name is unchanged.
    """
    try:
        with written_whole(path, durable=True, mode=FILE_MODE) as part:
            part.write_text(text)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error


def keep_register(folder: Path) -> None:
    """Write the register of a platform that has bundles but no register yet.

    Call it before a bundle is added: without a register the added one would be in use at once.

    Raises:
        StoreError: the file cannot be written.
    """
    if numbers_in(folder) and not (folder / FILE).exists():
        with locked(folder):
            keep_register_locked(folder)


def keep_register_locked(folder: Path) -> None:
    """The same as `keep_register`, for a caller that holds the lock of the folder."""
    if numbers_in(folder) and not (folder / FILE).exists():
        _write(folder, read_register(folder))


def _write(folder: Path, register: ModelRegister) -> None:
    write_durably(folder / FILE, json.dumps(register.to_json(), indent=1) + "\n")


def _found(numbers: list[str]) -> ModelRegister:
    """The register of a home that has none: each bundle was in use until the next one came."""
    register = ModelRegister({number: ModelRecord(number) for number in numbers})
    for number in numbers:
        register = register._in_use(number, RegisterChange("found", number))
    return register


@lru_cache(maxsize=256)
def _read(path: Path, _changed_ns: int, _size: int, _inode: int) -> ModelRegister:
    """The register in a file; the other arguments differ whenever the file was replaced."""
    try:
        return ModelRegister.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is no register of models ({error}), so it is not known which bundle is in "
            "use; move it away, and the bundle with the highest number is used"
        ) from error


def _ordered(models: Mapping[str, ModelRecord]) -> dict[str, ModelRecord]:
    return {number: models[number] for number in sorted(models, key=int)}


def now_s() -> float:
    """The present Unix time in whole seconds, for records that people read."""
    return float(int(time.time()))
