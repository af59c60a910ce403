"""What the bundle in use of a platform says about its measurements, noted beside these.

A bundle knows how much its platform feels a slow core (`SlowCore`), and what is usual on the host
that it was made on (`HostNoise`). Measurements are stored without this, because a later bundle may
know better.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from latfarm_predictors.errors import BundleError
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.slow_core import SlowCore

from latfarm_controller.campaigns.host_noise import HostNoise
from latfarm_controller.training import bundles
from latfarm_controller.training.bundles import FileState, file_state

OTHER_FINGERPRINT = "bundle_fingerprint"
"""Condition: the fingerprint of the bundle in use, where the measurement has another one. Then the
platform was set up in another way, and both need not agree."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BundleNotes:
    """What one bundle says about measurements of its platform.

    Attributes:
        slow_core: how much the platform feels a slow core.
        host_noise: what is usual on the host that the bundle was made on.
        fingerprint: of the measurements that the bundle was made from; empty if it tells none.
    """

    slow_core: SlowCore = field(default_factory=SlowCore)
    host_noise: HostNoise = field(default_factory=HostNoise)
    fingerprint: str = ""

    def noted(self, measurement: Measurement) -> Measurement:
        """The measurement with these notes among its conditions."""
        settled = self.slow_core.settled(measurement)
        told = self.host_noise.noted(settled).conditions
        if self.fingerprint and measurement.fingerprint not in ("", self.fingerprint):
            told = {**told, OTHER_FINGERPRINT: self.fingerprint}
        return self.slow_core.noted(measurement, told)


class NewestNotes:
    """The notes of the bundles in use. A bundle is read once, and again if its file is replaced.

    Several threads may use it: at worst a bundle is read twice.

    Args:
        bundles_dir: the folder of all bundles.
    """

    def __init__(self, bundles_dir: Path) -> None:
        self._bundles_dir = bundles_dir
        self._read: dict[Path, tuple[FileState, BundleNotes]] = {}

    def noted(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """The measurements, each with the notes of its platform's bundle in use."""
        notes: dict[str, BundleNotes | None] = {}
        found = []
        for measurement in measurements:
            platform = measurement.platform
            if platform not in notes:
                notes[platform] = self._of_platform(platform)
            said = notes[platform]
            found.append(measurement if said is None else said.noted(measurement))
        return found

    def _of_platform(self, platform: str) -> BundleNotes | None:
        """What the bundle in use of a platform says; None if it has none."""
        path = bundles.promoted_of(self._bundles_dir, platform)
        state = None if path is None else file_state(path)
        if path is None or state is None:
            return None
        known = self._read.get(path)
        if known is None or known[0] != state:
            known = self._read[path] = state, _read(path)
        return known[1]


def _read(path: Path) -> BundleNotes:
    from latfarm_predictors.bundle import read_provenance

    try:
        told = read_provenance(path)
        return BundleNotes(
            SlowCore.from_json(told.get("slow_core")),
            HostNoise.from_json(told.get("host_noise")),
            str(told.get("fingerprint", "")),
        )
    except (BundleError, OSError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s is not used to judge measurements: %s", path, error)
        return BundleNotes()


def campaigns_of_bundles(bundles_dir: Path) -> set[str]:
    """The ids of the campaigns that bundles were made from, older bundles too.

    Raises:
        BundleError: a bundle cannot be read, so that it is not known what it was made from.
    """
    from latfarm_predictors.bundle import read_provenance

    found: set[str] = set()
    for path in sorted(bundles_dir.glob(f"*/*{bundles.SUFFIX}")):
        told = read_provenance(path)
        for name in ("campaign", "campaigns"):
            value = told.get(name, ())
            found.update([value] if isinstance(value, str) else map(str, value))
    return found
