"""These tests use the simulated phone of `tests/agent/phones`."""

from __future__ import annotations

from tests.agent.phones.conftest import compiled, one_phone, phone

__all__ = ["compiled", "one_phone", "phone"]
