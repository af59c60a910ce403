"""Fixtures that give each test a simulated phone behind a double of the adb client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.agent.phones.kit import FakePhone, remove_binaries


@pytest.fixture(scope="session", autouse=True)
def compiled() -> Iterator[None]:
    """Remove the binaries that tests compiled, when all tests have ended."""
    yield
    remove_binaries()


@pytest.fixture(scope="module")
def one_phone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakePhone]:
    """Return a phone for the tests of one module, and put its adb client first in the PATH."""
    made = FakePhone(tmp_path_factory.mktemp("phone") / "phone")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANDROID_ADB_SERVER_PORT", made.port)
        patch.setenv("PATH", str(made.adb.parent), prepend=":")
        yield made
    made.close()


@pytest.fixture
def phone(one_phone: FakePhone) -> FakePhone:
    """Return the phone in its normal state, with none of the agent's files on it."""
    one_phone.reset()
    return one_phone
