"""The controller without Ray: models are built in its own event loop.

Usage: `python -m tests.farm.lab.inline_controller serve ...`, with the arguments of `latfarm`.
Tests that do not concern Ray start sooner with it, and hold on a host that is too busy to start
Ray.
"""

from __future__ import annotations

from unittest.mock import patch

from latfarm_controller.api import server
from latfarm_controller.cli.main import main
from latfarm_controller.farm.processes.backends import InlineBackend, RayOptions


def without_ray(_options: RayOptions) -> InlineBackend:
    """A backend in the present event loop."""
    return InlineBackend()


if __name__ == "__main__":
    with patch.object(server, "RayBackend", without_ray):
        main()
