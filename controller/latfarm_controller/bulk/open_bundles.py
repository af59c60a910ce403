"""Bundles that stay open, so that not every prediction reads one anew."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from latfarm_predictors.errors import PredictorsError

from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.training import bundles
from latfarm_controller.training.bundles import FileState, file_state

if TYPE_CHECKING:
    from latfarm_predictors.predict.predictor import PlatformPredictor

FOR_SINGLE_PREDICTIONS = 2
"""How many bundles are kept where networks are predicted one by one."""


class OpenBundles:
    """Keeps the bundles that were used last. Thread-safe.

    Args:
        most: largest number of bundles that are kept. A bundle takes up to 100 MB, with the kernels
            and networks that its predictor remembers.
    """

    def __init__(self, most: int = FOR_SINGLE_PREDICTIONS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._kept: dict[tuple[Path, FileState], PlatformPredictor | Exception] = {}  # newest last

    def get(self, path: Path) -> PlatformPredictor:
        """The predictor of a bundle; a file that took the place of another one is read anew.

        Raises:
            UsageError: the file is gone.
            BundleError: the bundle is damaged or of another version.
        """
        found = self.told(path)
        if isinstance(found, Exception):
            raise found
        return found

    def told(self, path: Path) -> PlatformPredictor | Exception:
        """The predictor of a bundle, or why there is none."""
        state = file_state(path)
        if state is None:
            return UsageError(
                f"the bundle {path} cannot be read; it may have been removed just now"
            )
        key = path, state
        with self._lock:  # also while it is read, so that two threads do not read it at once
            found = self._kept.pop(key, None) or _loaded(path)
            self._kept[key] = found
            while len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return found


def _loaded(path: Path) -> PlatformPredictor | Exception:
    try:
        return bundles.load(path)
    except (ControllerError, PredictorsError) as error:
        return error
