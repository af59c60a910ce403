"""Turns what goes wrong inside a predictor that was read from a bundle into one typed error.

The door of a bundle checks the form of its models (`files/state_check.py`), but not whether models
fit each other: a bundle may come from anywhere, and list features that its trees do not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from latfarm_predictors.errors import BundleError, PredictorsError
from latfarm_predictors.features.table import Array
from latfarm_predictors.files.bundle_state import DAMAGE, damage


@contextmanager
def usable_bundle(bundle: str) -> Iterator[None]:
    """Within it, errors of computing with a bundle's models become a `BundleError`.

    Args:
        bundle: name of the bundle. Empty: the predictor was not read from a bundle, so that an
            error is one of this program and stays as it is.

    Raises:
        BundleError: the models of the bundle do not fit together.
    """
    if not bundle:
        yield
        return
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused by `check_finite`
            yield
    except PredictorsError:
        raise
    except DAMAGE as error:
        raise BundleError(
            f"{bundle} cannot predict, because its models do not fit together "
            f"({damage(error)}); train the platform anew, or ask who made it"
        ) from error


def check_finite(bundle: str, *predicted: Array) -> None:
    """Check that predictions are finite numbers.

    Args:
        bundle: name of the bundle that predicted them, or of the platform.
        predicted: latencies and ends of intervals, of any shape.

    Raises:
        BundleError: a prediction is not finite.
    """
    if not all(np.isfinite(numbers).all() for numbers in predicted):
        raise BundleError(
            f"{bundle} predicts no finite number for this network; train the platform anew, or ask "
            "who made the bundle"
        )
