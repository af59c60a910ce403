"""Settings of all tests: hypothesis judges no times, because the machine may be busy.

A guard process ends the processes that a test run leaves behind when it is interrupted or killed. A
run that is ended with SIGTERM, as by `timeout`, prints its summary like one that Ctrl-C ends.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers

# The agent and the controller set this, too: tests start processes while gRPC's threads run.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
# A shell starts background jobs with SIGINT ignored, and their children inherit that. Tests that
# interrupt programs need the usual behaviour.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# The same examples at each run, so that a change cannot be refused for what it does not touch.
# `pytest --hypothesis-profile=random` looks for others.
for profile, repeatable in (("repeatable", True), ("random", False)):
    settings.register_profile(
        profile,
        deadline=None,
        derandomize=repeatable,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)  # runs before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share a fixture of their module or class in one worker process.

    Otherwise every worker process would set this fixture up. A group that a test names itself is
    kept.
    """
    for item in items:
        sharers = _sharers(item)
        if sharers and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(sharers))


def _sharers(item: pytest.Item) -> str:
    """The module or class whose tests share a fixture with this one; empty: it shares none."""
    known = getattr(item, "_fixtureinfo", None)
    if known is None or item.parent is None:
        return ""
    scopes = {found[-1].scope for found in known.name2fixturedefs.values() if found}
    if "module" in scopes:
        module = item.getparent(pytest.Module)
        return "" if module is None else module.nodeid
    return item.parent.nodeid if "class" in scopes else ""


def pytest_configure(config: pytest.Config) -> None:
    """Start the guard before any test starts a process."""
    guard = leftovers.start_guard()
    if guard is not None:
        config.add_cleanup(lambda: leftovers.end_guard(guard))
        interrupt_at_sigterm(config)


def interrupt_at_sigterm(config: pytest.Config) -> None:
    """Let the first SIGTERM interrupt this run; the next one ends it at once."""
    before = signal.getsignal(signal.SIGTERM)
    pid = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != pid:  # a process that a test has forked
            os.kill(os.getpid(), number)
        raise KeyboardInterrupt("SIGTERM")

    def restore() -> None:
        signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, interrupt)
    config.add_cleanup(restore)
