"""Settings of Ansible for all playbooks that these tests play, so that they take less time."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

SETTINGS = {
    # A module is one process, and not six; boards are reached in this way, too (ansible.cfg).
    "ANSIBLE_PIPELINING": "1",
    # Hosts that tests make up are this machine: there is no interpreter to look for.
    "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
    # Modules are packed for this machine, which unpacks them at once.
    "ANSIBLE_MODULE_COMPRESSION": "ZIP_STORED",
}
"""Environment variables of the processes that the tests of this folder start."""


@pytest.fixture(scope="session", autouse=True)
def quick_ansible() -> Iterator[None]:
    """Set them for the tests of this folder, and for the fixtures that their modules share."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield
