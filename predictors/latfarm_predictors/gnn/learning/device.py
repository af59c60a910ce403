"""torch, and the device that it computes on."""

from __future__ import annotations

from typing import Any

from latfarm_predictors.errors import MissingLibraryError, NoTorchError
from latfarm_predictors.optional_libraries import library

REMEDY = "pip install 'latfarm-predictors[gnn]'"
"""The command that installs what training needs."""


def torch_module() -> Any:
    """The module torch; it is imported when it is first needed, which takes some seconds.

    Raises:
        NoTorchError: torch is not installed.
    """
    try:
        return library("torch")
    except MissingLibraryError as error:
        raise NoTorchError(
            f"training NNLP needs torch, which is not installed: {REMEDY}"
        ) from error


def chosen_device(name: str = "") -> str:
    """The device that training uses: the given one, else a GPU where torch finds one, else "cpu".

    Raises:
        NoTorchError: torch is not installed, or the device that was asked for is not there.
    """
    torch = torch_module()
    if not name:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        raise NoTorchError(f"torch cannot use the device {name!r} here; use cpu") from error
    return name
