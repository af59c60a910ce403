"""The light measuring agent that runs on a board."""

from __future__ import annotations

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""Version of the measurement protocol; results of different versions are never mixed."""
