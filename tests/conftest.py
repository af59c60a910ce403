"""For all tests: properties are judged by what they say, not by how busy the machine is."""

from __future__ import annotations

import os

from hypothesis import settings

# As the agent and the controller do for themselves: tests start processes beside gRPC's threads.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
