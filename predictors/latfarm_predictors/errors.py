"""Errors of the predictors.

```
PredictorsError
├── GraphError            a graph contradicts itself
├── ModelFileError        a file is not a usable model; names file, node and remedy
│   ├── UnsupportedOpError    the model uses an op that a Graph cannot express
│   └── DynamicShapeError     a dimension is open: set it with --batch or --shape
├── FusionRulesError      fusion rules contradict themselves or their format
├── BundleError           a bundle cannot be read, or has another format version
├── NoBaselineError       a bundle is asked for a baseline that was not fitted with it
├── NoConfidenceError     a bundle without its measurements is asked for trust
├── NoEnergyError         a bundle that was made without energies is asked for energy
├── MissingLibraryError   a library that only an extra of this distribution installs is missing
│   └── NoTorchError          training is asked for without torch
├── NotEnoughDataError    there are fewer measurements than a fit or a calibration needs
├── PlatformUnknownError  a graph neural network has no head for the platform
├── CheckpointError       a checkpoint of a graph neural network cannot be read
│   ├── CheckpointDigestError   its content is not what was written
│   └── CheckpointShapeError    a parameter is missing, too many, or has another shape
└── TransferError         latencies of other boards contradict themselves
```
"""

from __future__ import annotations


class PredictorsError(Exception):
    """Root of all errors raised on purpose by this distribution."""


class GraphError(PredictorsError):
    """A graph contradicts itself: unknown tensors, a cycle, shapes that do not fit."""


class ModelFileError(PredictorsError):
    """A file is not a usable model. Its text is one line with the file, the node and the remedy."""


class UnsupportedOpError(ModelFileError):
    """The model uses an op, or a form of one, that a Graph cannot express."""


class DynamicShapeError(ModelFileError):
    """A dimension of an input of the model is open, and nobody has set it."""


class FusionRulesError(PredictorsError):
    """Fusion rules contradict themselves or their format."""


class BundleError(PredictorsError):
    """A bundle cannot be read, is damaged, or has another format version."""


class NoBaselineError(PredictorsError):
    """A bundle is asked for a baseline that was not fitted with it."""


class NoConfidenceError(PredictorsError):
    """A bundle without its measurements is asked how far its predictions can be trusted."""


class NoEnergyError(PredictorsError):
    """A bundle that was made without energies is asked for energy."""


class MissingLibraryError(PredictorsError):
    """A library is not installed that fitting, or reading other files, needs; names the extra."""


class NotEnoughDataError(PredictorsError):
    """There are fewer measurements than a fit or a calibration needs."""


class PlatformUnknownError(PredictorsError):
    """A graph neural network is asked for a platform that it has no head for."""


class NoTorchError(MissingLibraryError):
    """A graph neural network is to be trained where torch is not installed."""


class CheckpointError(PredictorsError):
    """A checkpoint of a graph neural network cannot be read, or has another format version."""


class CheckpointDigestError(CheckpointError):
    """The content of a checkpoint is not what was written."""


class CheckpointShapeError(CheckpointError):
    """A parameter of a checkpoint is missing, unknown, or of another shape than its options."""


class TransferError(PredictorsError):
    """Latencies of other boards contradict themselves: shapes, names or values."""
