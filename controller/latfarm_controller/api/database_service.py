"""Does with the store what commands of this machine ask for, while the controller serves it.

A command that finds the store served cannot open it, so it asks here (decision 3). Other machines
are not served: the options name files of this one (`roles.METHODS` does not list the methods). For
the same reason nobody but the owner of the home is served: the files are read and written with the
rights of the controller.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from latfarm_protos.v1 import database_pb2 as pb
from latfarm_protos.v1 import database_pb2_grpc

from latfarm_controller import json_fields
from latfarm_controller.api import error_codes
from latfarm_controller.api.home_socket import SocketUser, owns_home
from latfarm_controller.audit import AuditLog
from latfarm_controller.errors import ControllerError, UsageError
from latfarm_controller.store.actions import WRITING, Desk, OnProgress, perform
from latfarm_controller.store.duckdb import DuckDBStore

OWNER_ALONE = "only the account of the controller may use latfarm db; run it as that account"
"""What members of the socket's group are told."""
Protected = Callable[[], Iterable[str]]
"""Gives the ids of the campaigns that the provenances of bundles name."""


class _ClientLeftError(ControllerError):
    """The client has ended its call, so that the action stops after its present step."""


class DatabaseService(database_pb2_grpc.DatabaseServiceServicer):
    """Each call does one thing with the store as a whole.

    Args:
        store: the store.
        protected: see `Protected`.
        audit: is told about each call that changes the store.
        user_of: gets the peer of a call as gRPC names it; returns the user of this machine.
    """

    def __init__(
        self,
        store: DuckDBStore,
        protected: Protected,
        audit: AuditLog,
        user_of: Callable[[str], SocketUser | None],
    ) -> None:
        self._store = store
        self._protected = protected
        self._audit = audit
        self._user_of = user_of
        self._writing = asyncio.Lock()
        self._works: dict[asyncio.Task[dict[str, Any]], threading.Event] = {}

    async def close(self) -> None:
        """Stop what runs after its present step, and wait until it has ended."""
        for left in self._works.values():
            left.set()
        if self._works:
            await asyncio.wait(set(self._works))

    @error_codes.streams
    def Perform(self, request: pb.PerformRequest, context: Any) -> AsyncIterator[Any]:
        """Do something with the store; progress comes first, then one outcome."""
        user = self._user_of(context.peer())
        if not owns_home(user):
            raise UsageError(OWNER_ALONE)
        return self._perform(request, "local" if user is None else user.actor)

    async def _perform(self, request: pb.PerformRequest, actor: str) -> AsyncIterator[Any]:
        """Run an action, and hand on its progress.

        Only the newest progress is kept, so that a slow reader costs no memory and delays nobody.
        """
        loop = asyncio.get_running_loop()
        news: asyncio.Queue[pb.PerformProgress] = asyncio.Queue(1)
        left = threading.Event()

        def put(progress: pb.PerformProgress) -> None:
            if news.full():
                news.get_nowait()
            news.put_nowait(progress)

        def tell(stage: str, done: int, total: int) -> None:
            if left.is_set():
                raise _ClientLeftError("the client has ended the call")
            progress = pb.PerformProgress(stage=stage, done=done, total=total)
            loop.call_soon_threadsafe(put, progress)

        work = asyncio.create_task(self._work(request, tell, actor))
        self._works[work] = left
        work.add_done_callback(self._ended)
        told = asyncio.create_task(news.get())
        try:
            while not work.done():
                await asyncio.wait({work, told}, return_when=asyncio.FIRST_COMPLETED)
                if told.done():
                    yield pb.PerformEvent(progress=told.result())
                    told = asyncio.create_task(news.get())
            yield pb.PerformEvent(outcome_json=json.dumps(work.result(), default=str))
        finally:
            told.cancel()
            left.set()  # a thread cannot be cancelled; it ends at its next step

    async def _work(
        self, request: pb.PerformRequest, tell: OnProgress, actor: str
    ) -> dict[str, Any]:
        """Do the action in a thread; of those that write, one after the other.

        The audit log has what was written before anybody is told, and also if the client has left.
        """
        options = json_fields.options_from_json(request.options_json)
        desk = Desk(self._store, self._protected, tell)
        if request.action not in WRITING:
            return await asyncio.to_thread(perform, request.action, options, desk)
        async with self._writing:
            found = await asyncio.to_thread(perform, request.action, options, desk)
            self._audit.add(actor, f"database.{request.action}", request.options_json[:1000])
            return found

    def _ended(self, work: asyncio.Task[dict[str, Any]]) -> None:
        """Forget an action that has ended; nobody may be there to hear of its failure."""
        self._works.pop(work, None)
        if not work.cancelled():
            work.exception()
