"""Does something with the store of this home: in the server that holds it, else with the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc
from latfarm_protos.v1 import database_pb2 as pb
from latfarm_protos.v1 import database_pb2_grpc

from latfarm_controller.api.connect import OnWait, silent, wait_for_holder
from latfarm_controller.api.error_codes import error_of
from latfarm_controller.api.messages import MESSAGE_OPTIONS
from latfarm_controller.config import ControllerConfig
from latfarm_controller.errors import ControllerError, StoreError, UsageError
from latfarm_controller.store.actions import ACTIONS, NO_ACTION, Desk, OnProgress, Options, perform
from latfarm_controller.store.duckdb import DuckDBStore
from latfarm_controller.store.lock import StoreLock
from latfarm_controller.training.bundle_notes import campaigns_of_bundles

TOO_OLD = "the running latfarm serve of this home is too old for this; stop it, and start it again"
"""What is said where the server does not know the call or the action."""


@contextmanager
def held(config: ControllerConfig, wait_s: float) -> Iterator[None]:
    """No other process may open the store during the block.

    Args:
        config: the settings.
        wait_s: seconds to wait for another process that holds it.

    Raises:
        StoreBusyError: another process holds the store; the message names it.
    """
    config.make_dirs()
    lock = StoreLock(config.lock_file)
    lock.acquire(1000.0 * max(wait_s, config.lock_wait_ms / 1000.0))
    with lock:
        yield


def perform_at_home(
    config: ControllerConfig,
    action: str,
    options: Options,
    *,
    wait_s: float = 0.0,
    make: bool = False,
    on_progress: OnProgress = lambda _stage, _done, _total: None,
    on_wait: OnWait = silent,
) -> dict[str, Any]:
    """Do something with the store of a home, whether `latfarm serve` holds it or nobody.

    Args:
        config: the settings, which name the home.
        action: one of `store.actions.ACTIONS`.
        options: the action's own options. Paths in them must be absolute.
        wait_s: seconds to wait for another process that holds the store and does not serve it.
        make: make an empty store if there is none. An import that only tells what it would take
            makes none.
        on_progress: is told how far the action is.
        on_wait: is told what is waited for.

    Returns:
        What was found or done, as plain JSON types.

    Raises:
        UsageError: there is no store yet, or an option is wrong.
        StoreBusyError: another process holds the store; the message names it.
        StoreError: the store cannot be opened, read or written.
    """
    wait_s = max(wait_s, config.lock_wait_ms / 1000.0)
    address = wait_for_holder(config, wait_s, on_wait)
    if address:
        return ask_server(address, action, options, on_progress)
    with ExitStack() as stack:
        stack.enter_context(held(config, wait_s))
        path = config.store_file
        if not path.exists() and not make:
            raise UsageError(
                f"{config.home}: there is no store yet; it is made by the first measurement, or by "
                "latfarm db import"
            )
        if not path.exists() and options.get("dry_run"):
            folder = stack.enter_context(TemporaryDirectory(prefix="latfarm-"))
            path = Path(folder) / path.name
        store = stack.enter_context(DuckDBStore(path))
        desk = Desk(store, lambda: campaigns_of_bundles(config.bundles_dir), on_progress)
        return perform(action, options, desk)


def ask_server(
    address: str,
    action: str,
    options: Options,
    on_progress: OnProgress = lambda _stage, _done, _total: None,
) -> dict[str, Any]:
    """Let the running server of this home do something with its store.

    Args:
        address: where it serves, as gRPC names it.
        action: one of `store.actions.ACTIONS`.
        options: the action's own options. Paths in them must be absolute.
        on_progress: is told how far the action is.

    Returns:
        What was found or done, as plain JSON types.

    Raises:
        UsageError: an option is wrong.
        StoreError: the store cannot be read or written, or the server does not know the action.
    """
    request = pb.PerformRequest(action=action, options_json=json.dumps(options))
    with grpc.insecure_channel(address, options=MESSAGE_OPTIONS) as channel:
        stream = database_pb2_grpc.DatabaseServiceStub(channel).Perform(request)
        try:
            for event in stream:
                if event.WhichOneof("event") == "outcome_json":
                    outcome: dict[str, Any] = json.loads(event.outcome_json)
                    return outcome
                progress = event.progress
                on_progress(progress.stage, progress.done, progress.total)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise StoreError(TOO_OLD) from None
            told = error_of(error)
            if action in ACTIONS and str(told).startswith(NO_ACTION):
                raise StoreError(TOO_OLD) from None
            raise told from None
        finally:
            stream.cancel()
    raise ControllerError("the controller ended the call without an outcome; run it again")
