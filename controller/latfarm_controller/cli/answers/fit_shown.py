"""Fits a model, and shows how far it is."""

from __future__ import annotations

from pathlib import Path

from latfarm_controller.cli.shell.progress import StageBars, bars
from latfarm_controller.training.entering import EnteredModel
from latfarm_controller.training.fit_bundle import TrainingInputs
from latfarm_controller.training.training import fit_model


def fitted(bundles_dir: Path, inputs: TrainingInputs, *, promote: bool) -> EnteredModel:
    """Fit a model in this process, and enter it into the register of its platform.

    Args:
        bundles_dir: the folder of all bundles.
        inputs: what it is fitted to; the store that they were read from need not be open.
        promote: whether it is put in use, unless it predicts the frozen set worse.

    Raises:
        UsageError, BundleError, StoreError: as `fit_model`.
    """
    with bars() as progress:
        stages = StageBars(progress)
        entered = fit_model(bundles_dir, inputs, promote=promote, on_progress=stages.show)
        stages.finish()
    return entered
