"""The same simulated phone as in the tests of phones."""

from __future__ import annotations

from tests.agent.phones.conftest import compiled, one_phone, phone

__all__ = ["compiled", "one_phone", "phone"]
