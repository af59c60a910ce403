"""Functions by their names, under which another process of this program finds them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from latfarm_controller.errors import FarmError


def named(name: str) -> Any:
    """The function of that name.

    Args:
        name: `module:name`, as `name_of` returned it in the process that started this one.
    """
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, for `named`.

    Raises:
        FarmError: it is no function of a module, so that another process cannot find it.
    """
    if not function.__qualname__.isidentifier():
        raise FarmError(f"{function.__qualname__} must be a function of a module")
    return f"{function.__module__}:{function.__qualname__}"
