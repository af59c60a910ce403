"""The composition root: puts store, boards, farm and controller behind a Unix socket."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from latfarm_protos.v1 import controller_pb2_grpc, database_pb2_grpc

from latfarm_controller.agents.fleet import Fleet
from latfarm_controller.agents.registry import Registry
from latfarm_controller.api.careful_requests import CarefulRequests
from latfarm_controller.api.database_service import DatabaseService
from latfarm_controller.api.dialled_boards import DialledBoards
from latfarm_controller.api.group_socket import SocketGroup, checked_place
from latfarm_controller.api.home_socket import HomeSocket, SocketUser
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.api.outside import Outside
from latfarm_controller.api.service import ControllerService
from latfarm_controller.app.app import Controller
from latfarm_controller.audit import AuditLog
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError, StoreBusyError, StoreError, UsageError
from latfarm_controller.farm.boards.interfaces import ShardSettings
from latfarm_controller.farm.farm import Farm
from latfarm_controller.farm.host import host_boot_id
from latfarm_controller.farm.processes.backends import RayBackend, RayOptions
from latfarm_controller.holder import holder_key
from latfarm_controller.metrics.metrics import ControllerMetrics
from latfarm_controller.metrics.port import MetricsPort, Observer, Watched
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import StoreLock
from latfarm_controller.training.bundle_notes import campaigns_of_bundles

LOOK_S = 0.2
"""Pause between two attempts to take the lock, in seconds."""
MAX_CALLS = 512
"""Most calls at the same time, those that watch campaigns included. gRPC ends each further call
with RESOURCE_EXHAUSTED."""


class ControllerServer:
    """A controller behind its gRPC service on a Unix socket. It holds the store's lock."""

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._lock = StoreLock(config.lock_file)
        self._store: DuckDBStore | None = None
        self._controller: Controller | None = None
        self._server: Any = None
        self._sockets: list[HomeSocket] = []  # that of the home, and that for a group
        self._database: DatabaseService | None = None
        self._metrics_port: MetricsPort | None = None
        self._outside: Outside | None = None
        self._dialled: DialledBoards | None = None
        self.address = ""
        self.continued: list[str] = []  # names of the campaigns that an earlier process left

    @classmethod
    async def open(
        cls,
        config: ControllerConfig,
        *,
        wait_s: float = 0.0,
        public: bool = False,
        listen: str = "",
    ) -> ControllerServer:
        """Take the store's lock and start to serve.

        Args:
            config: the settings.
            wait_s: seconds to wait for another process that holds the store.
            public: whether other commands of this home shall find this server.
            listen: `host:port` on which other machines are served, too; empty: they are not. Their
                users need a certificate.

        Raises:
            StoreBusyError: another process holds the store; the message names it.
            StoreError: the store cannot be opened.
            UsageError: the address or port to serve on cannot be used.
        """
        config.make_dirs()
        server = cls(config)
        try:
            await server._open(wait_s, public, listen)
        except BaseException:
            await server.close()
            raise
        return server

    async def _open(self, wait_s: float, public: bool, listen: str) -> None:
        await self._take_lock(max(wait_s, self._config.lock_wait_ms / 1000.0))
        self._config.make_dirs()  # the process that we waited for may have removed some
        # One question does not repay an index, many do.
        opened = partial(DuckDBStore, self._config.store_file, index=public)
        self._store = store = await asyncio.to_thread(opened)
        holder = f"latfarm-{os.getpid()}"
        fleet = Fleet(self._config, holder)
        options = RayOptions(
            self._config.ray_dir,
            self._config.ray_address,
            self._config.ray_cpus or 0,
            self._config.logs_dir / "ray.log",
        )
        key = await asyncio.to_thread(holder_key, self._config.holder_file)
        settings = ShardSettings(holder, host_boot_id(), key, lease_ms=self._config.lease_ms)
        metrics = ControllerMetrics()
        farm = Farm(RayBackend(options), holder, settings=settings, observer=metrics)
        self._controller = Controller(
            self._config,
            self._store,
            fleet,
            farm,
            metrics,
            cares=public and self._config.health_checks,
        )
        self._server = _grpc_server()
        path = self._config.socket_file
        path.unlink(missing_ok=True)
        self.address = f"unix:{path}"
        self._sockets = [HomeSocket(path)]
        if public and self._config.group_socket is not None:
            self._sockets.append(self._for_group(self._config.group_socket))
        self._add_services(self._server, self._controller, store)
        if listen:
            self._outside = Outside(self._config.tls_dir, self.address, listen)
            registry = Registry(self._config.boards_file)
            self._dialled = DialledBoards(self._outside.gate, registry, fleet.refused)
            await self._dialled.open()
            fleet.take_in(self._dialled)
        await self._server.start()
        for socket in self._sockets:
            await _opened(socket)
        if self._outside is not None:
            self._outside.start()
        if public and self._config.metrics_port is not None:
            controller = self._controller
            watched = Watched(farm, store, controller.campaigns, controller.unused_boards)
            observer = Observer(self._config, metrics, watched)
            self._metrics_port = MetricsPort(
                self._config.metrics_port, metrics, observer, lambda: self._controller is not None
            )
            self._metrics_port.open()
        self._controller.keep_windows()
        if public:
            self._lock.publish(self.address)
            self.continued = await self._controller.campaigns.continue_unattended()
            self._controller.empty_spools()

    def _add_services(
        self,
        server: grpc.aio.Server,
        controller: Controller,
        store: DuckDBStore,
    ) -> None:
        """Offer the services of the controller and of its store behind the sockets."""
        audit = AuditLog(self._config.audit_file)
        service = ControllerService(controller, audit, self._user)
        controller_pb2_grpc.add_ControllerServiceServicer_to_server(service, server)
        protected = partial(campaigns_of_bundles, self._config.bundles_dir)
        self._database = DatabaseService(store, protected, audit, self._user)
        database_pb2_grpc.add_DatabaseServiceServicer_to_server(self._database, server)
        for socket in self._sockets:
            server.add_insecure_port(f"unix:{socket.inner}")

    def _user(self, peer: str) -> SocketUser | None:
        """The user behind a peer as gRPC names it; None if it did not come through a socket."""
        return next((user for each in self._sockets if (user := each.user(peer))), None)

    def _for_group(self, path: Path) -> HomeSocket:
        """The socket that a group of users may use, beside that of the home.

        Raises:
            UsageError: the setting `socket_group` is missing or names no group, or the socket would
                not be safe at its place.
        """
        if not self._config.socket_group:
            raise UsageError("group_socket needs socket_group, the group that may use the socket")
        group = SocketGroup.named(self._config.socket_group)
        checked_place(path).unlink(missing_ok=True)
        return HomeSocket(path, group)

    @property
    def store(self) -> DuckDBStore:
        """The store that this server holds.

        Raises:
            StoreError: it is not open.
        """
        if self._store is None:
            raise StoreError(f"{self._config.store_file}: the store is not open")
        return self._store

    @property
    def outside(self) -> str:
        """`host:port` on which other machines are served; empty: they are not."""
        return "" if self._outside is None else self._outside.address

    @property
    def metrics_url(self) -> str:
        """The address of the metrics for Prometheus; empty: there is none."""
        return "" if self._metrics_port is None else self._metrics_port.url

    async def _take_lock(self, wait_s: float) -> None:
        """Take the lock, with short attempts, because a thread that waits cannot be cancelled."""
        deadline_s = time.monotonic() + wait_s
        while True:
            try:
                await asyncio.to_thread(self._lock.acquire)
            except StoreBusyError:
                if time.monotonic() >= deadline_s:
                    raise
                await asyncio.sleep(LOOK_S)
            else:
                return

    async def close(self) -> None:
        """Stop campaigns where they are and release the store. Closing again does nothing."""
        controller, self._controller = self._controller, None
        server, self._server = self._server, None
        sockets = self._sockets  # they tell the users of calls until the server has stopped
        database, self._database = self._database, None
        store, self._store = self._store, None
        port, self._metrics_port = self._metrics_port, None
        outside, self._outside = self._outside, None
        dialled, self._dialled = self._dialled, None
        if port is not None:
            await port.close()
        if outside is not None:
            await asyncio.to_thread(outside.stop)
        try:
            if controller is not None:
                await controller.close()  # gives leases back, also those of boards that dial in
        finally:
            if outside is not None:
                await asyncio.to_thread(outside.close)
            if dialled is not None:
                await dialled.close()
            try:
                if server is not None:
                    await server.stop(grace=1.0)
                if database is not None:
                    await database.close()
                for socket in sockets:
                    await socket.close()
                if sockets:
                    self._remove_short_dirs()
                self._sockets = []
            finally:
                try:
                    if store is not None:
                        await asyncio.to_thread(store.close)
                finally:
                    self._lock.release()

    def _remove_short_dirs(self) -> None:
        """Remove the folders that lie outside the home because its path is too long for sockets."""
        for folder in (self._config.ray_dir, self._config.ray_dir.parent):
            if not folder.is_relative_to(self._config.home):
                with suppress(OSError):  # another process still uses it
                    folder.rmdir()


def _grpc_server() -> grpc.aio.Server:
    """A server that has no services yet and listens nowhere."""
    return grpc.aio.server(
        interceptors=(CarefulRequests(),),
        options=MESSAGE_OPTIONS,
        maximum_concurrent_rpcs=MAX_CALLS,
    )


async def _opened(socket: HomeSocket) -> None:
    """Let a socket take connections.

    Raises:
        ControllerError: it cannot be made.
    """
    try:
        await socket.open()
    except OSError as error:
        raise ControllerError(
            f"the controller cannot listen on {socket.path}: {error.strerror}; set LATFARM_HOME to "
            "another folder"
        ) from error
