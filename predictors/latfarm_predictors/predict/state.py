"""A platform's predictor as plain data, and back: what a bundle holds."""

from __future__ import annotations

from dataclasses import asdict

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.energy import EnergyPredictor
from latfarm_predictors.predict.predictor import PlatformPredictor
from latfarm_predictors.samples import Measured

BASELINES_PART = "baselines"
"""The part of a predictor's state that predicting does not need."""


def state_of(predictor: PlatformPredictor) -> ModelState:
    """See `PlatformPredictor.state`."""
    parts = {
        "models": predictor.models.state(),
        "cold": predictor.cold.state(),
        "correction": predictor.correction.state(),
        BASELINES_PART: predictor.baselines.state(),
    }
    if predictor.energy is not None:
        parts["energy"] = predictor.energy.state()
    if predictor.context is not None:
        parts["context"] = predictor.context.state()
    if predictor.confidence is not None:
        parts["confidence"] = predictor.confidence.state()
    return ModelState(
        "platform-predictor",
        values={
            "platform": predictor.platform,
            "rules": predictor.rules.to_json(),
            "measured": predictor.measured.to_json(),
            "call_overhead_ms": predictor.call_overhead_ms,
            "transfer_ms_per_mb": predictor.transfer_ms_per_mb,
            "peaks": None if predictor.peaks is None else asdict(predictor.peaks),
            "left_out": predictor.left_out,
        },
        parts=parts,
    )


def predictor_of(state: ModelState, baselines: Baselines | None = None) -> PlatformPredictor:
    """See `PlatformPredictor.from_state`.

    Args:
        state: of a predictor.
        baselines: its baselines, where its state does not hold them.
    """
    values, parts = state.values, state.parts
    rules = FusionRules.from_json(values["rules"])
    if baselines is None:
        held = parts.get(BASELINES_PART)
        baselines = (
            Baselines.of_old(state, parts["models"], rules)
            if held is None
            else Baselines.from_state(held)
        )
    models = KernelModels.from_state(parts["models"])
    return PlatformPredictor(
        platform=str(values["platform"]),
        rules=rules,
        models=models,
        measured=Measured.from_json(values["measured"]),
        cold=ColdCost.from_state(parts["cold"]),
        correction=NetworkCorrection.from_state(parts["correction"]),
        baselines=baselines,
        call_overhead_ms=float(values["call_overhead_ms"]),
        transfer_ms_per_mb=float(values.get("transfer_ms_per_mb", 0.0)),
        peaks=Peaks(**values["peaks"]) if values.get("peaks") else None,
        energy=EnergyPredictor.from_state(parts["energy"]) if "energy" in parts else None,
        confidence=Evidence.from_state(parts["confidence"]) if "confidence" in parts else None,
        left_out=int(values.get("left_out", 0)),
        context=ContextModel.from_state(parts["context"], models) if "context" in parts else None,
    )
