"""For all tests: properties are judged by what they say, not by how busy the machine is.

What a run leaves running when it is interrupted or killed is ended by a guard beside it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from tests import leftovers

# As the agent and the controller do for themselves: tests start processes beside gRPC's threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


def pytest_configure(config: pytest.Config) -> None:
    """Start the guard before any test starts a process."""
    guard = leftovers.start_guard()
    if guard is not None:
        config.add_cleanup(lambda: leftovers.end_guard(guard))
