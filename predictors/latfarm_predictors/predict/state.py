"""A platform's predictor as plain data, and back: what a bundle holds of it."""

from __future__ import annotations

from dataclasses import asdict

from latfarm_predictors.baselines.fitting import Baselines
from latfarm_predictors.confidence.evidence import Evidence
from latfarm_predictors.features.layers import Peaks
from latfarm_predictors.gnn.shipping import ShippingDecision
from latfarm_predictors.kernels.fusion import FusionRules
from latfarm_predictors.learned.absent_kernels import AbsentKernels
from latfarm_predictors.learned.cold import ColdCost
from latfarm_predictors.learned.context_model import ContextModel
from latfarm_predictors.learned.kernel_models import KernelModels
from latfarm_predictors.learned.network_correction import NetworkCorrection
from latfarm_predictors.learned.reuse_cost import ReuseCost
from latfarm_predictors.models.base import ModelState
from latfarm_predictors.predict.correctors import corrector_of
from latfarm_predictors.predict.energy import EnergyUnit
from latfarm_predictors.predict.predictor import EnergyPredictor, PlatformPredictor
from latfarm_predictors.samples import Measured
from latfarm_predictors.slow_core import SlowCore

BASELINES_PART = "baselines"
"""Name of the part of a predictor's state that holds the baselines; predicting does not need it."""


def state_of(predictor: PlatformPredictor) -> ModelState:
    """What a predictor learned, as plain data."""
    parts = {
        "models": predictor.models.state(),
        "cold": predictor.cold.state(),
        "correction": predictor.correction.state(),
        BASELINES_PART: predictor.baselines.state(),
    }
    if predictor.energy is not None:
        parts["energy"] = _energy_state_of(predictor.energy)
    if predictor.context is not None:
        parts["context"] = predictor.context.state()
    if predictor.reuse is not None:
        parts["reuse"] = predictor.reuse.state()
    if predictor.confidence is not None:
        parts["confidence"] = predictor.confidence.state()
    if predictor.corrector is not None:
        parts["corrector"] = predictor.corrector.state()
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
            **({"absent": predictor.absent.to_json()} if predictor.absent.any else {}),
            "slow_core": predictor.slow_core.to_json(),
            "shipping": None if predictor.shipping is None else predictor.shipping.to_json(),
        },
        parts=parts,
    )


def predictor_of(state: ModelState, baselines: Baselines | None = None) -> PlatformPredictor:
    """The predictor whose state this is; it predicts the same bits.

    Args:
        state: what `state_of` gave, in this version or an older one.
        baselines: the predictor's baselines, where `state` does not hold them.
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
        energy=_energy_predictor_of(parts["energy"]) if "energy" in parts else None,
        confidence=Evidence.from_state(parts["confidence"]) if "confidence" in parts else None,
        left_out=int(values.get("left_out", 0)),
        context=ContextModel.from_state(parts["context"], models) if "context" in parts else None,
        reuse=ReuseCost.from_state(parts["reuse"]) if "reuse" in parts else None,
        absent=AbsentKernels.from_json(values.get("absent")),
        slow_core=SlowCore.from_json(values.get("slow_core")),
        corrector=corrector_of(parts["corrector"]) if "corrector" in parts else None,
        shipping=ShippingDecision.from_json(values.get("shipping")),
    )


def _energy_state_of(energy: EnergyPredictor) -> ModelState:
    """What a predictor of energies learned, as plain data."""
    return ModelState(
        "energy-predictor",
        values={
            "reference_mw": energy.unit.reference_mw,
            "rail": energy.unit.rail,
            "idle_mw": energy.unit.idle_mw,
        },
        parts={"inner": state_of(energy.inner)},
    )


def _energy_predictor_of(state: ModelState) -> EnergyPredictor:
    """The predictor of energies whose state this is."""
    values = state.values
    idle_mw = values["idle_mw"]
    unit = EnergyUnit(
        float(values["reference_mw"]),
        str(values["rail"]),
        None if idle_mw is None else float(idle_mw),
    )
    return EnergyPredictor(predictor_of(state.parts["inner"]), unit)
