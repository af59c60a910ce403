"""The folder of all state, found without reading any other setting.

Reading the settings takes hundredths of a second, most of them to make what checks the settings. A
command that must be quick and needs only the folder asks here first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_data_dir

CONFIG_FILE = "latfarm.toml"
"""Name of the configuration file in the home."""
BUNDLES = "bundles"
"""Name of the folder of all bundles in the home."""
PREFIX = "LATFARM_"
"""Prefix of environment variables that are settings."""


def default_home() -> str:
    """The home where nobody sets one: in the user's folder of data."""
    return user_data_dir("latfarm", appauthor=False)


def absolute(path: Path) -> Path:
    """The path without "~", from the root on."""
    return path.expanduser().absolute()


def home_without_settings(environ: Mapping[str, str] | None = None) -> Path | None:
    """The home, if nothing but the home can have been set; else None.

    Args:
        environ: the environment; None: that of this process.
    """
    environ = os.environ if environ is None else environ
    given = PREFIX + "HOME"
    if any(name.startswith(PREFIX) and name != given and environ[name] for name in environ):
        return None
    home = absolute(Path(environ.get(given) or default_home()))
    # a file that cannot be looked at is for the reader of settings to tell about
    try:
        (home / CONFIG_FILE).lstat()
    except FileNotFoundError:
        return home
    except OSError:
        return None
    return None
