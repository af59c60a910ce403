"""The controller that a program talks to.

It is a controller on another machine, a running `latfarm serve` of this home, or a controller that
the program hosts in its own process. The program is a client of the gRPC service in each case.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import grpc
from latfarm_protos.trust.contexts import Files, TlsFileError
from latfarm_protos.trust.identity import CONTROLLER
from latfarm_protos.trust.proof import RefusedError, meet
from latfarm_protos.trust.revoked import RevokedError

from latfarm_controller.agents.tls import split
from latfarm_controller.api.client import ControllerClient
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.store.lock import find_holder

if TYPE_CHECKING:
    from latfarm_controller.config import ControllerConfig

READY_S = 5.0
"""Longest wait for a controller to answer, in seconds."""
LOOK_S = 0.2
"""Pause between two looks at who holds the store, in seconds."""
UNIX = "unix:"
"""How the address of a Unix socket begins."""
OnWait = Callable[[str], None]
"""Is told, in a sentence, what is waited for."""
Guard = Callable[[], AbstractContextManager[None]]
"""Makes a block that signals do not interrupt. Only the main thread of a process can do that."""


def silent(_text: str) -> None:
    """Tell nobody."""


class HostedController:
    """A controller that runs on an event loop in a thread of this process.

    Args:
        config: the settings.
        wait_s: seconds to wait for another process that holds the store.
        guard: keeps signals away while the event loop stops.
    """

    def __init__(self, config: ControllerConfig, wait_s: float, guard: Guard = nullcontext) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="controller")
        self._thread.start()
        try:
            self._server = self._run(self._open(config, wait_s))
        except BaseException:
            with guard():
                self._stop_loop()
            raise

    async def _open(self, config: ControllerConfig, wait_s: float) -> Any:
        from latfarm_controller.api.server import ControllerServer

        return await ControllerServer.open(config, wait_s=wait_s)

    def _run(self, coroutine: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            # When interrupted, wait until the event loop has undone what was begun.
            future.cancel()
            raise

    @property
    def address(self) -> str:
        """Where it serves, as gRPC names it."""
        return str(self._server.address)

    def close(self) -> None:
        """Stop the controller and its event loop."""
        try:
            self._run(self._server.close())
        finally:
            self._stop_loop()

    def _stop_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(_finish_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _finish_all() -> None:
    """Cancel all tasks of this event loop, and wait until they have cleaned up."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def running_address(config: ControllerConfig) -> str:
    """The address of the running `latfarm serve` of this home; empty if none runs."""
    holder = find_holder(config.lock_file)
    address = holder.address if holder is not None else ""
    return address if address and _answers(address) else ""


def _answers(address: str) -> bool:
    """Whether a server answers at an address.

    It is asked for something that it does not know. `grpc.channel_ready_future` would tell the
    same, but its channel takes a fifth of a second to close.
    """
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary("/latfarm/Answer")(b"", timeout=READY_S, wait_for_ready=True)
        except grpc.RpcError as error:
            return error.code() not in (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.StatusCode.UNAVAILABLE,
            )
    return True


def remote_channel(config: ControllerConfig) -> grpc.Channel:
    """A channel to the controller on another machine, after both sides have proven themselves.

    Raises:
        UsageError: our certificate cannot be used.
        ControllerError: no controller answers there, it is not trusted, or it refuses us.
    """
    host, port = split(config.controller)
    name = config.controller_name or host
    folder = config.tls_dir
    files = Files(
        config.tls_cert or folder / "client.crt",
        config.tls_key or folder / "client.key",
        config.tls_ca or folder / "ca.crt",
    )
    try:
        proof = meet(host, port, name, files, (CONTROLLER,), READY_S)
        credentials = proof.credentials(files)
    except (TlsFileError, RevokedError) as error:
        raise UsageError(
            f"{error}; ask the operator of the farm for a certificate, who makes it with: "
            "latfarm certs issue NAME --role operator"
        ) from error
    except RefusedError as error:
        reason = error.refusal.reason
        raise ControllerError(f"{config.controller}: {error} [{reason}]") from error
    except OSError as error:
        raise ControllerError(
            f"no controller answers at {config.controller}: {error.strerror or error}"
        ) from error
    options = (*MESSAGE_OPTIONS, ("grpc.ssl_target_name_override", name))
    return grpc.secure_channel(config.controller, credentials, options=options)


def group_channel(address: str) -> grpc.Channel:
    """A channel to a controller of this machine through the socket that is open to a group.

    Args:
        address: `unix:` and the path of the socket.

    Raises:
        ControllerError: no controller listens there, or we are not a member of the group.
    """
    path = address.removeprefix(UNIX)
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(READY_S)
            trial.connect(path)
    except PermissionError as error:
        raise ControllerError(
            f"you may not use the controller at {path}; its operator can add you to the group of "
            "that socket, and then you must log in again"
        ) from error
    except OSError as error:
        raise ControllerError(
            f"no controller listens at {path}: {error.strerror or error}"
        ) from error
    return grpc.insecure_channel(address, options=MESSAGE_OPTIONS)


def wait_for_holder(config: ControllerConfig, wait_s: float, on_wait: OnWait = silent) -> str:
    """Wait until nobody holds the store, or its holder serves; the address if it serves."""
    deadline_s = time.monotonic() + wait_s
    told = False
    while True:
        address = running_address(config)
        holder = find_holder(config.lock_file)
        if address or holder is None or time.monotonic() >= deadline_s:
            return address
        if not told:
            on_wait(f"waiting for {holder}, which holds the store")
            told = True
        time.sleep(LOOK_S)


@contextmanager
def connected(
    config: ControllerConfig,
    wait_s: float = 0.0,
    *,
    on_wait: OnWait = silent,
    guard: Guard = nullcontext,
) -> Iterator[ControllerClient]:
    """A client of the running controller, or of a controller that is hosted during this block.

    Args:
        config: the settings, which name the home or a controller on another machine.
        wait_s: seconds to wait for another process that holds the store.
        on_wait: is told what is waited for.
        guard: keeps signals away while a hosted controller stops.

    Raises:
        StoreBusyError: another process holds the store; the message names it.
    """
    if config.controller:
        grouped = config.controller.startswith(UNIX)
        opened = group_channel(config.controller) if grouped else remote_channel(config)
        with opened as channel:
            yield ControllerClient(channel)
        return
    began_s = time.monotonic()
    wait_s = max(wait_s, config.lock_wait_ms / 1000.0)
    address = wait_for_holder(config, wait_s, on_wait)
    if address:
        with grpc.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
            yield ControllerClient(channel)
        return
    left_s = max(0.0, wait_s - (time.monotonic() - began_s))
    hosted = HostedController(config, left_s, guard)
    try:
        with grpc.insecure_channel(hosted.address, options=MESSAGE_OPTIONS) as channel:
            yield ControllerClient(channel, hosted=True)
    finally:
        with guard():
            hosted.close()
