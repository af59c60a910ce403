"""Tests of one xdist group run in one process, because they start Ray or share slow fixtures.

Tests that share a fixture of their module are a group by themselves; see `tests/conftest.py`.
"""

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


@pytest.fixture(scope="module")
def shared() -> str:
    """Something that two tests of this module share."""
    return "set up once"


@pytest.mark.parametrize("number", [1, 2])
def test_tests_that_share_a_fixture_are_one_group(
    shared: str, number: int, request: pytest.FixtureRequest
) -> None:
    """This test fails if pytest no longer tells the scopes of a test's fixtures to the hook."""
    del shared, number
    marker = request.node.get_closest_marker("xdist_group")
    assert marker is not None
    assert marker.args == ("tests/test_groups.py",)
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@tests/test_groups.py")


def test_a_test_that_shares_nothing_has_no_group(request: pytest.FixtureRequest) -> None:
    """Tests without a group are given to whichever process is free."""
    assert request.node.get_closest_marker("xdist_group") is None
