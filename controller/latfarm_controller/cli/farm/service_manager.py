"""Tells systemd when the controller serves, as `sd_notify(3)` describes it."""

from __future__ import annotations

import logging
import os
import socket

VARIABLE = "NOTIFY_SOCKET"
"""Environment variable with the socket of the service manager; a service of Type=notify has it."""

logger = logging.getLogger(__name__)


def tell_ready() -> bool:
    """Tell the service manager that the controller serves; whether there is one that was told.

    The variable is removed, so that child processes do not speak for the controller.
    """
    address = os.environ.pop(VARIABLE, "")
    if not address.startswith(("/", "@")):
        return False
    # A name in the abstract namespace begins with a zero byte, which systemd writes as @.
    place = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as manager:
            manager.connect(place)
            manager.sendall(b"READY=1")
    except OSError as error:
        logger.warning("the service manager was not told that the controller serves: %s", error)
        return False
    return True
