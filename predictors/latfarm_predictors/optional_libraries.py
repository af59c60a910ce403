"""The libraries that predicting does not need: each is imported here, when it is first used.

Reading models and predicting from a bundle need numpy and onnx alone. Fitting needs more, and who
fits installs `latfarm-predictors[fit]`. No other module imports these libraries, and an import
contract in pyproject.toml holds that.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from latfarm_predictors.errors import MissingLibraryError

EXTRAS = MappingProxyType(
    {
        "lightgbm": "fit",
        "onnx_ir": "torch",
        "onnxscript": "torch",
        "onnxslim": "fit",
        "scipy": "fit",
        "sklearn": "fit",
        "torch": "torch",
    }
)
"""The extra of this distribution that installs each library, by the name of its package."""

_PURPOSES = MappingProxyType(
    {
        "fit": "fitting to measurements and optimising models",
        "torch": "reading PyTorch's modules",
    }
)
"""What the libraries of an extra are needed for."""


def library(name: str) -> Any:
    """Import a module of an optional library.

    Args:
        name: full name of the module, for example "scipy.optimize".

    Raises:
        MissingLibraryError: the library is not installed; the message says what to install.
    """
    package = name.partition(".")[0]
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRAS:
            raise
        raise _missing(package) from error


def check_installed(package: str) -> None:
    """Check that a library is installed, without importing it.

    Raises:
        MissingLibraryError: it is not installed; the message says what to install.
    """
    if find_spec(package) is None:
        raise _missing(package)


def _missing(package: str) -> MissingLibraryError:
    extra = EXTRAS[package]
    return MissingLibraryError(
        f"{package} is not installed, which {_PURPOSES[extra]} needs; install it with: "
        f"pip install 'latfarm-predictors[{extra}]'"
    )
