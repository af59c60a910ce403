"""For all tests: properties are judged by what they say, not by how busy the machine is."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
