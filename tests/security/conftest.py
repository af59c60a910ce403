"""Makes a farm's certificates, and runs a controller in this process for other machines."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from latfarm_controller.agents.certificates.authority import Authority
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.cli.shell.connect import remote_channel
from latfarm_controller.config import ControllerConfig

HERE = Path(__file__).parent


class Home:
    """A latfarm home with a certificate authority and one registered board."""

    def __init__(self, folder: Path) -> None:
        self.config = ControllerConfig(home=folder, local_agent=False)
        self.authority = Authority(self.config.tls_dir)
        self.authority.init()
        Registry(self.config.boards_file).add("toy", "127.0.0.1:1")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ControllerServer]:
        """Run a controller that serves everybody who has a certificate, on the loopback address."""
        server = await ControllerServer.open(self.config, listen="127.0.0.1:0")
        try:
            yield server
        finally:
            await server.close()

    def client(
        self, name: str, role: str, *, days: int = 365, ca: Path | None = None
    ) -> ControllerConfig:
        """Return the settings of another person's machine, with a new certificate of this home."""
        cert = self.authority.issue(name, role, days=days)
        return self.config.model_copy(
            update={
                "tls_cert": cert,
                "tls_key": cert.with_suffix(".key"),
                "tls_ca": ca or self.authority.cert,
            }
        )


def channel(server: ControllerServer, config: ControllerConfig) -> grpc.Channel:
    """Open a channel to a controller in the same way as the command line does."""
    return remote_channel(config.model_copy(update={"controller": server.outside}))


def copied(made: Home, folder: Path) -> Home:
    """Copy a home, with its authority and all its certificates, to a new folder."""
    shutil.copytree(made.config.home, folder)
    copy = Home.__new__(Home)
    copy.config = ControllerConfig(home=folder, local_agent=False)
    copy.authority = Authority(copy.config.tls_dir)
    return copy


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return the home that other fixtures copy; no test makes certificates in it."""
    return Home(tmp_path_factory.mktemp("made") / "home")


@pytest.fixture(scope="session")
def home(untouched: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Return one home for all tests; the certificates that they make stay in it."""
    return copied(untouched, tmp_path_factory.mktemp("shared") / "home")


@pytest.fixture
def own_home(untouched: Home, tmp_path: Path) -> Home:
    """Return a home for this test only, with its own certificates and its own revocation list."""
    return copied(untouched, tmp_path / "home")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests if the openssl command is missing, as it makes the certificates."""
    if shutil.which("openssl") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="makes its certificates with openssl"))
