"""The controller that a command talks to; see `latfarm_controller.api.connect`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.connect import connected, remote_channel, running_address
from latfarm_controller.cli.shell import output
from latfarm_controller.cli.shell.signals import no_signals
from latfarm_controller.config import load_config

__all__ = ["controller", "remote_channel", "running_address"]


@contextmanager
def controller(wait_s: float = 0.0) -> Iterator[ControllerClient]:
    """A client of the running controller, or of a controller that is hosted during this block.

    Args:
        wait_s: seconds to wait for another command that holds the store.

    Raises:
        StoreBusyError: another command holds the store; the message names it.
    """
    with connected(load_config(), wait_s, on_wait=output.error, guard=no_signals) as client:
        yield client
