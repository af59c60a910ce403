"""Where a farm's shards and builders run: on Ray, or in the present event loop."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from latfarm_controller.errors import FarmError
from latfarm_controller.farm.boards.board_client import Connect
from latfarm_controller.farm.boards.interfaces import Shard, ShardSettings
from latfarm_controller.farm.boards.model_builder import Builder, BuilderState
from latfarm_controller.farm.boards.shard import InlineShard, connect
from latfarm_controller.farm.processes.building import Build, InlineBuilder
from latfarm_controller.farm.processes.child_messages import ChildOptions
from latfarm_controller.farm.processes.function_names import name_of
from latfarm_controller.farm.processes.own_builder import OwnBuilder
from latfarm_controller.farm.processes.ray_keeper import RayKeeper
from latfarm_controller.farm.processes.remote import RemoteBuilder, RemoteShard

MODELS = "models-"
"""How the names of folders for large models begin; the id of the controller's process follows."""


class InlineBackend:
    """Runs shards and builders in the present event loop, for tests and tools without Ray."""

    builders = BuilderState(1)

    def __init__(self, connect: Connect = connect, build: Build | None = None) -> None:
        self._connect = connect
        self._builder = InlineBuilder(build)

    @property
    def builder(self) -> Builder:
        """What builds models."""
        return self._builder

    def watch(self, watcher: Callable[[BuilderState], None]) -> None:
        """Do nothing: the builder never goes away."""

    async def start(self) -> None:
        """Do nothing: there is nothing to start."""

    async def shard(self, settings: ShardSettings) -> Shard:
        """Start a new shard."""
        return InlineShard(settings, self._connect)

    async def far_shard(self, settings: ShardSettings, *, here: bool) -> Shard:  # noqa: ARG002
        """Start a new shard, which runs in the present event loop as well."""
        return await self.shard(settings)

    async def close(self) -> None:
        """Do nothing: there is nothing to end."""


@dataclass(frozen=True, slots=True)
class RayOptions:
    """How Ray is started.

    Attributes:
        run_dir: the parent of the folders of Ray's runs and of large models.
        address: an existing cluster to join, as `host:port`; empty: Ray is started on this host.
        cpus: how many tasks may run at once on a Ray that is started here; 0: the default.
        log_path: the file for the output of the Ray process; None: it is dropped.
    """

    run_dir: Path
    address: str = ""
    cpus: int = 0
    log_path: Path | None = None


class RayBackend:
    """Builds on Ray, and runs shards beyond the controller's own one as Ray actors.

    Ray lives in a process of its own, which is started again whenever it fails. Meanwhile nothing
    is built, and the boards of the controller's own shard go on measuring. If Ray stays away, the
    controller builds models itself.

    Args:
        options: how Ray is started.
        connect: a function of a module that makes the client of a board.
        build: a function of a module that makes a model; by default, `builders.build_files`.
    """

    def __init__(
        self, options: RayOptions, connect: Connect = connect, build: Build | None = None
    ) -> None:
        self._connect = connect
        self._run_dir = options.run_dir
        self._models_dir = options.run_dir / f"{MODELS}{os.getpid()}-{secrets.token_hex(4)}"
        self._watchers: list[Callable[[BuilderState], None]] = []
        self.keeper = RayKeeper(
            ChildOptions(
                options.run_dir,
                self._models_dir,
                options.address,
                options.cpus,
                name_of(connect),
                "" if build is None else name_of(build),
            ),
            self._ray_changed,
            log_path=options.log_path,
        )
        remote = RemoteBuilder(self.keeper)
        self._builder = OwnBuilder(self.keeper, remote, self._models_dir, build, self._changed)

    @property
    def builder(self) -> Builder:
        """What builds models."""
        return self._builder

    @property
    def builders(self) -> BuilderState:
        """Whether models can be built now; one core is left to the controller and the shards."""
        return self._builder.state

    def watch(self, watcher: Callable[[BuilderState], None]) -> None:
        """Have a function called each time `builders` has changed."""
        self._watchers.append(watcher)

    async def start(self) -> None:
        """Begin to start Ray.

        Raises:
            FarmError: the folder for large models cannot be made.
        """
        try:
            await asyncio.to_thread(self._make_folder)
        except OSError as error:
            raise FarmError(f"no folder for models under {self._run_dir}: {error}") from error
        self.keeper.start()

    async def shard(self, settings: ShardSettings) -> Shard:
        """Start a new shard in the present event loop."""
        return InlineShard(settings, self._connect)

    async def far_shard(self, settings: ShardSettings, *, here: bool) -> Shard:
        """Start a new shard in a process of its own; with `here`, on this host.

        Raises:
            FarmError: Ray does not run now, or the shard does not start.
        """
        shard = RemoteShard(self.keeper)
        try:
            await shard.start(settings, here=here)
        except FarmError:
            await shard.close()  # its process may start all the same
            raise
        return shard

    async def close(self) -> None:
        """End the Ray process and all that belongs to it."""
        self._builder.close()
        await self.keeper.stop()
        await asyncio.to_thread(shutil.rmtree, self._models_dir, ignore_errors=True)

    def _ray_changed(self, state: BuilderState) -> None:
        self._builder.note(state)

    def _changed(self, state: BuilderState) -> None:
        for watcher in self._watchers:
            watcher(state)

    def _make_folder(self) -> None:
        """Make the folder for large models, and remove those of controllers that were killed."""
        self._run_dir.mkdir(parents=True, exist_ok=True)
        for folder in self._run_dir.glob(f"{MODELS}*"):
            pid = folder.name.removeprefix(MODELS).partition("-")[0]
            if not Path(f"/proc/{pid}").exists():
                shutil.rmtree(folder, ignore_errors=True)
        with suppress(FileExistsError):
            self._models_dir.mkdir(mode=0o700)
