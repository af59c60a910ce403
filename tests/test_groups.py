"""Tests of one xdist group run in one process, because they start Ray or share slow fixtures."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("example")
def test_a_test_is_entered_in_its_group(request: pytest.FixtureRequest) -> None:
    """This test fails if pytest-xdist cannot add the group to the name of a test.

    That is so for pytest-xdist 3.8 with pytest 9.2. The tests of one group then run in several
    processes, and no other test notices it.
    """
    if not getattr(request.config.option, "loadgroup", False):
        pytest.skip("groups exist only with `--dist loadgroup`, which `make test` uses")
    assert request.node.nodeid.endswith("@example")
