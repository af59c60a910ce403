"""Scores of other platforms' bundles that calibrate the intervals of a new one, where valid."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latfarm_predictors.errors import BundleError

from latfarm_controller.campaigns.networks.calibration import SCALED
from latfarm_controller.training import bundles

if TYPE_CHECKING:
    from latfarm_predictors.features.table import Array

_log = logging.getLogger(__name__)


def other_scores(
    bundles_dir: Path, platform: str, provenance: Mapping[str, Any]
) -> dict[str, Array]:
    """The scores of the bundles in use of other platforms that may be pooled with a new bundle's.

    Scores are comparable if the calibration networks were drawn in the same way. A bundle that
    cannot be read is left out with a warning.

    Args:
        bundles_dir: the folder of all bundles.
        platform: the platform of the new bundle.
        provenance: what the new bundle was made from.
    """
    from latfarm_predictors.bundle import read_provenance, read_scores

    found = {}
    for name, path in bundles.promoted(bundles_dir).items():
        if name == platform:
            continue
        try:
            told = read_provenance(path)
            alike = told.get("calibration_draw", SCALED) == provenance["calibration_draw"]
            scores = read_scores(path) if alike else None
        except (BundleError, OSError) as error:
            _log.warning("%s does not help to calibrate %s: %s", path, platform, error)
            continue
        if scores is not None and scores[0] != platform:
            found[scores[0]] = scores[1]
    return found
