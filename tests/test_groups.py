"""All tests of one xdist group run in one process: they start Ray or share slow fixtures."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("example")
def test_a_test_is_entered_in_its_group(request: pytest.FixtureRequest) -> None:
    """Pytest-xdist 3.8 finds the groups in the tests' names; pytest 9.2 does not let it write them.

    Then the tests of one group run in all processes at once, and no other test fails of it.
    """
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("only `--dist loadgroup` makes groups, as `make test` does")
    assert request.node.nodeid.endswith("@example")
