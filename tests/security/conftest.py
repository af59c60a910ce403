"""A farm's certificates, and a controller in this process that serves other machines."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from latfarm_controller.agents.authority import Authority
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.server import ControllerServer
from latfarm_controller.cli.shell.connect import remote_channel
from latfarm_controller.config import ControllerConfig

HERE = Path(__file__).parent


class Home:
    """A home with a certificate authority."""

    def __init__(self, folder: Path) -> None:
        self.config = ControllerConfig(home=folder, local_agent=False)
        self.authority = Authority(self.config.tls_dir)
        self.authority.init()
        Registry(self.config.boards_file).add("toy", "127.0.0.1:1")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ControllerServer]:
        """A controller that serves everybody with a certificate on loopback."""
        server = await ControllerServer.open(self.config, listen="127.0.0.1:0")
        try:
            yield server
        finally:
            await server.close()

    def client(
        self, name: str, role: str, *, days: int = 365, ca: Path | None = None
    ) -> ControllerConfig:
        """The settings of another person's machine, with a certificate of this home."""
        cert = self.authority.issue(name, role, days=days)
        return self.config.model_copy(
            update={
                "tls_cert": cert,
                "tls_key": cert.with_suffix(".key"),
                "tls_ca": ca or self.authority.cert,
            }
        )


def channel(server: ControllerServer, config: ControllerConfig) -> grpc.Channel:
    """A channel to a controller, as the command line opens it."""
    return remote_channel(config.model_copy(update={"controller": server.outside}))


def copied(made: Home, folder: Path) -> Home:
    """A copy of a home with the same authority and all its certificates."""
    shutil.copytree(made.config.home, folder)
    copy = Home.__new__(Home)
    copy.config = ControllerConfig(home=folder, local_agent=False)
    copy.authority = Authority(copy.config.tls_dir)
    return copy


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home to copy, in which no test makes certificates."""
    return Home(tmp_path_factory.mktemp("made") / "home")


@pytest.fixture(scope="session")
def home(untouched: Home, tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One home for all tests, which collects their certificates."""
    return copied(untouched, tmp_path_factory.mktemp("shared") / "home")


@pytest.fixture
def own_home(untouched: Home, tmp_path: Path) -> Home:
    """A home of this test alone, with its own certificates and list of revoked ones."""
    return copied(untouched, tmp_path / "home")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests where the openssl command is missing, which makes the certificates."""
    if shutil.which("openssl") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason="makes its certificates with openssl"))
