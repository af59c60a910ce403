"""What can go wrong in the predictors.

```
PredictorsError
├── GraphError            a graph that contradicts itself
├── ModelFileError        a file that is no usable model: names file, node and remedy
│   ├── UnsupportedOpError    an op that we cannot express
│   └── DynamicShapeError     a dimension is open: bind it with --batch or --shape
├── FusionRulesError      a rules file that contradicts itself
├── BundleError           a bundle that cannot be read, or of another format version
├── NoBaselineError       a bundle is asked for a baseline that was not fitted with it
├── NoConfidenceError     a bundle that was made without its measurements is asked for trust
├── NoEnergyError         a bundle that was made without energies is asked for one
└── NotEnoughDataError    fewer measurements than a fit or a calibration needs
```
"""

from __future__ import annotations


class PredictorsError(Exception):
    """Root of all errors raised on purpose by this distribution."""


class GraphError(PredictorsError):
    """A graph contradicts itself: unknown tensors, a cycle, shapes that do not fit."""


class ModelFileError(PredictorsError):
    """A file is no usable model; one line that names the file, the node and the remedy."""


class UnsupportedOpError(ModelFileError):
    """The model uses an op that cannot be expressed here."""


class DynamicShapeError(ModelFileError):
    """A dimension of the model's input is open and was not bound."""


class FusionRulesError(PredictorsError):
    """A fusion rules file contradicts itself or its format."""


class BundleError(PredictorsError):
    """A bundle cannot be read, is damaged, or has another format version."""


class NoBaselineError(PredictorsError):
    """A bundle is asked for a baseline that was not fitted with it."""


class NoConfidenceError(PredictorsError):
    """A bundle that holds no measurements is asked how far its predictions can be trusted."""


class NoEnergyError(PredictorsError):
    """A bundle that was made without energies is asked for one."""


class NotEnoughDataError(PredictorsError):
    """Fewer measurements than a fit or a calibration needs."""
