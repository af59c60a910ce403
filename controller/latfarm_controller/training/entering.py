"""A new bundle enters the register of its platform, and a model takes the place of another one.

Both models are judged by the platform's frozen set first, if there is one. `promotion.decide` then
says whether the new one may be promoted.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latfarm_predictors.bundle import load_bundle, read_provenance
from latfarm_predictors.errors import BundleError

from latfarm_controller.errors import PromotionRefusedError, UsageError
from latfarm_controller.training.bundles import SUFFIX, choose
from latfarm_controller.training.data_revision import KEY
from latfarm_controller.training.frozen_set import FrozenSet, read_frozen
from latfarm_controller.training.model_register import (
    ModelRecord,
    ModelRegister,
    changed_register,
    now_s,
    read_register,
)
from latfarm_controller.training.promotion import FrozenScores, PromotionVerdict, decide

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EnteredModel:
    """A model in the register of its platform.

    Attributes:
        record: what the register says of it.
        verdict: whether it may take the place of the model that was in use.
        path: its bundle.
    """

    record: ModelRecord
    verdict: PromotionVerdict
    path: Path

    @property
    def promoted(self) -> bool:
        """Whether predictions use it now."""
        return self.record.state == "promoted"

    @property
    def scores(self) -> FrozenScores | None:
        """How it predicts the frozen set; None if there is none."""
        return FrozenScores.from_json(self.record.scores)

    def to_json(self) -> dict[str, Any]:
        """What happened, as plain JSON types."""
        scores = self.scores
        return {
            "model": self.record.number,
            "state": self.record.state,
            "parent": self.record.parent,
            "data_revision": self.record.data_revision,
            "scores": None if scores is None else scores.summary(),
            "verdict": self.verdict.to_json(),
        }

    @property
    def sentences(self) -> list[str]:
        """What happened, for people."""
        scores, number = self.scores, self.record.number
        told = [] if scores is None else [f"model {number}: {scores.sentence}"]
        if self.promoted:
            return [*told, f"model {number} is in use"]
        why = "; ".join(self.verdict.reasons)
        if self.verdict.allowed:
            return [*told, f"model {number} is a candidate; latfarm bundle promote puts it in use"]
        return [*told, f"model {number} is a candidate, and was not promoted: {why}"]


def enter_model(path: Path, *, promote: bool) -> EnteredModel:
    """Judge a new bundle, enter it into the register, and put it in use if it may be.

    Args:
        path: the bundle, in the folder of its platform.
        promote: whether it is put in use, unless it predicts the frozen set worse.

    Raises:
        BundleError: the bundle cannot be read.
        StoreError: the register or the frozen set cannot be read or written.
    """
    folder, number = path.parent, path.stem
    told = read_provenance(path)
    frozen = read_frozen(folder)
    scores = _judged(frozen, path)
    parent = told.get("parent", {})
    with changed_register(folder) as box:
        known = box[0].models.get(number, ModelRecord(number))
        entered = replace(
            known,
            added_at_s=now_s(),
            parent=str(parent.get("number", "")) if isinstance(parent, dict) else "",
            data_revision=_revision(told),
            scores=scores,
        )
        register, verdict = _compared(box[0].with_model(entered), folder, number, frozen)
        if promote and verdict.allowed:
            register = register.promote(number, at_s=now_s(), reason="it was trained or imported")
        box[0] = register
    return EnteredModel(register.models[number], verdict, path)


def promote_model(
    bundles_dir: Path, platform: str, number: str = "", *, reason: str = "", force: bool = False
) -> EnteredModel:
    """Put a model in use; nothing is in between: predictions use the old one or the new one.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform.
        number: the model; empty: the newest candidate.
        reason: why, in the words of the person who promotes it; it is kept in the register.
        force: promote it although it predicts the frozen set worse; needs a reason.

    Raises:
        UsageError: there is no such model or no candidate, or a reason is missing.
        PromotionRefusedError: it predicts the frozen set worse than the model in use.
        BundleError: the bundle cannot be read.
        StoreError: the register or the frozen set cannot be read or written.
    """
    if force and not reason.strip():
        raise UsageError("--force needs --reason TEXT, which the register of models keeps")
    path = (
        choose(bundles_dir, platform, number)
        if number
        else _newest_candidate(bundles_dir, platform)
    )
    load_bundle(path)  # a bundle that cannot be read must not be put in use
    folder, number = path.parent, path.stem
    frozen = read_frozen(folder)
    with changed_register(folder) as box:
        register = _with_scores(box[0], folder, number, frozen)
        register, verdict = _compared(register, folder, number, frozen)
        if not verdict.allowed and not force:
            raise PromotionRefusedError(
                f"model {number} of {platform} is not promoted: {'; '.join(verdict.reasons)}; "
                "--force with --reason promotes it all the same"
            )
        register = register.promote(number, at_s=now_s(), reason=reason, forced=not verdict.allowed)
        box[0] = register
    return EnteredModel(register.models[number], verdict, path)


def roll_back(bundles_dir: Path, platform: str, *, reason: str = "") -> tuple[str, str]:
    """Put the model in use that was in use before; returns the numbers of the old and the new one.

    Raises:
        UsageError: the platform has no bundle, or no earlier model is left.
        BundleError: the earlier bundle cannot be read, so that the present one stays.
        StoreError: the register cannot be read or written.
    """
    folder = choose(bundles_dir, platform).parent
    with changed_register(folder) as box:
        before = box[0].promoted
        register = box[0].rollback(at_s=now_s(), reason=reason)
        load_bundle(folder / f"{register.promoted}{SUFFIX}")
        box[0] = register
    return before, register.promoted


def _newest_candidate(bundles_dir: Path, platform: str) -> Path:
    """The bundle of the candidate with the highest number.

    Raises:
        UsageError: the platform has no bundle, or no candidate.
    """
    folder = choose(bundles_dir, platform).parent
    models = read_register(folder).models
    candidates = [name for name, model in models.items() if model.state == "candidate"]
    if not candidates:
        told = ", ".join(f"{name} ({model.state})" for name, model in models.items())
        raise UsageError(
            f"{platform} has no candidate to promote; name one of its models with --model: {told}"
        )
    return folder / f"{candidates[-1]}{SUFFIX}"


def _compared(
    register: ModelRegister, folder: Path, number: str, frozen: FrozenSet | None
) -> tuple[ModelRegister, PromotionVerdict]:
    """Whether a model may be promoted; the register gets the scores of the model in use."""
    in_use = register.promoted
    if not in_use or in_use == number:
        return register, PromotionVerdict(True, ("no other model is in use",))
    register = _with_scores(register, folder, in_use, frozen)
    scores = [FrozenScores.from_json(register.models[name].scores) for name in (number, in_use)]
    return register, decide(*scores)


def _with_scores(
    register: ModelRegister, folder: Path, number: str, frozen: FrozenSet | None
) -> ModelRegister:
    """The register with the scores of a model by the present frozen set."""
    model = register.model(number)
    if frozen is None or model.scores.get("frozen_set") == frozen.name:
        return register
    scores = _judged(frozen, folder / f"{number}{SUFFIX}")
    return register.with_model(replace(model, scores=scores))


def _judged(frozen: FrozenSet | None, path: Path) -> Mapping[str, Any]:
    """The scores of a bundle by a frozen set; empty if there is none, or it cannot be read."""
    if frozen is None:
        return {}
    try:
        return frozen.judge(load_bundle(path)).to_json()
    except BundleError as error:
        _log.warning("%s is not judged: %s", path, error)
        return {}


def _revision(provenance: Mapping[str, Any]) -> str:
    """The name of the rows that a bundle was trained on; empty in bundles of older versions."""
    told = provenance.get(KEY)
    return str(told.get("revision", "")) if isinstance(told, dict) else ""
