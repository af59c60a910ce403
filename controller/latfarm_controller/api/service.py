"""The controller's gRPC service: each method turns a message into one call of the controller.

Errors that the controller raises on purpose end the call with the status code that
`latfarm_controller.api.error_codes` gives them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from functools import wraps
from typing import Any

from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

from latfarm_controller import json_fields
from latfarm_controller.api import error_codes, estimate_stream, messages, query_messages
from latfarm_controller.api.home_socket import SocketUser, is_this_process
from latfarm_controller.app.app import Controller
from latfarm_controller.app.question import GraphNeeded
from latfarm_controller.audit import AuditLog
from latfarm_controller.board_profile import checked_tags
from latfarm_controller.bulk.predictions import DEFAULT_COVERAGE

ACTOR_KEY = "latfarm-actor-bin"
"""Metadata with the caller's name, set by the front for other machines (`api/outside.py`)."""
CALLER: ContextVar[str] = ContextVar("caller", default="local")
"""Who makes the present call: the name in their certificate, `unix:NAME` for a user of this
machine, or `local` where the system does not tell the user."""
UserOf = Callable[[str], SocketUser | None]
"""Gets the peer of a call as gRPC names it; returns the user of this machine behind it, or None."""


def _note_caller(user_of: UserOf, context: Any) -> None:
    """Note who calls. Only the front for other machines may name somebody else than the user."""
    user = user_of(context.peer())
    actor = "local" if user is None else user.actor
    named = dict(context.invocation_metadata() or ()).get(ACTOR_KEY)
    if named is not None and user is not None and is_this_process(user):
        actor = named.decode(errors="replace") if isinstance(named, bytes) else str(named)
    CALLER.set(actor)


def _answers(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a gRPC method of one that answers a request with one message."""

    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        _note_caller(self.user_of, context)
        try:
            return await method(self, request)
        except error_codes.KINDS as error:
            await error_codes.abort(context, error)

    return call


def _streams(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a gRPC method of one that answers a request, or several, with a stream of messages."""

    @error_codes.streams
    @wraps(method)
    def call(self: Any, request: Any, context: Any) -> Any:
        _note_caller(self.user_of, context)
        return method(self, request)

    return call


class ControllerService(controller_pb2_grpc.ControllerServiceServicer):
    """Each method is one call of the controller.

    Args:
        controller: what is called.
        audit: is told about each call that starts, stops or changes something.
        user_of: see `UserOf`.
    """

    def __init__(self, controller: Controller, audit: AuditLog, user_of: UserOf) -> None:
        self._controller = controller
        self._audit = audit
        self.user_of = user_of
        self._estimate_turns = asyncio.Semaphore(estimate_stream.MOST_AT_ONCE)

    def _note(self, action: str, subject: str, **details: Any) -> None:
        """Tell the audit log what the caller has done."""
        self._audit.add(CALLER.get(), action, subject, **details)

    @_answers
    async def ListBoards(self, _request: pb.ListBoardsRequest) -> Any:
        """All boards of the inventory, reachable or not."""
        boards = await self._controller.boards()
        return pb.ListBoardsResponse(boards=map(messages.board_to_pb, boards))

    @_answers
    async def ListPlatforms(self, request: pb.ListPlatformsRequest) -> Any:
        """All platforms that the boards offer, and the runtimes that they lack."""
        platforms = await self._controller.platforms(checked_tags(request.tags))
        return pb.ListPlatformsResponse(platforms=map(messages.platform_to_pb, platforms))

    @_answers
    async def DrainBoard(self, request: pb.BoardRequest) -> Any:
        """Give a board no new work; it finishes the work that it has."""
        control = self._controller.control
        status = await control.drain(
            request.name, request.reason, CALLER.get(), deadline_s=request.deadline_s
        )
        self._note("board.drained", request.name, reason=request.reason)
        return messages.board_to_pb(status)

    @_answers
    async def QuarantineBoard(self, request: pb.BoardRequest) -> Any:
        """Stop a board, and discard what it measured since its last good sentinel."""
        control = self._controller.control
        status = await control.quarantine(request.name, request.reason, CALLER.get())
        self._note("board.quarantined", request.name, reason=request.reason)
        return messages.board_to_pb(status)

    @_answers
    async def ResumeBoard(self, request: pb.BoardRequest) -> Any:
        """Let a drained or quarantined board work again."""
        status = await self._controller.control.resume(
            request.name, request.reason, CALLER.get(), new_reference=request.new_reference
        )
        self._note("board.resumed", request.name, reason=request.reason)
        return messages.board_to_pb(status)

    @_answers
    async def ReserveBoard(self, request: pb.BoardRequest) -> Any:
        """Reserve a board for the caller, for some time."""
        status = await self._controller.control.reserve(
            request.name, request.reason, CALLER.get(), until_s=request.until_s
        )
        self._note("board.reserved", request.name, until_s=request.until_s, reason=request.reason)
        return messages.board_to_pb(status)

    @_answers
    async def ReleaseBoard(self, request: pb.BoardRequest) -> Any:
        """End the caller's reservation of a board."""
        status = await self._controller.control.release(request.name, CALLER.get())
        self._note("board.released", request.name)
        return messages.board_to_pb(status)

    @_answers
    async def PowerBoard(self, request: pb.PowerBoardRequest) -> Any:
        """Switch the power of a board by its hooks."""
        told = await self._controller.control.power(
            request.name, request.action, request.reason, CALLER.get()
        )
        self._note("board.power", request.name, power=request.action, reason=request.reason)
        return pb.PowerBoardResponse(told=told)

    @_streams
    async def WatchBoard(self, request: pb.BoardRequest) -> Any:
        """Send a board's standing now and at each change, until nothing runs on the board."""
        async for board in self._controller.control.watch(request.name):
            yield messages.board_to_pb(board)

    @_answers
    async def ListBoardEvents(self, request: pb.BoardRequest) -> Any:
        """What was decided about boards, newest first."""
        events = await self._controller.control.events(request.name)
        return pb.ListBoardEventsResponse(events=map(messages.event_to_pb, events))

    @_answers
    async def Predict(self, request: pb.PredictRequest) -> Any:
        """Predict a latency from the bundle in use of a platform."""
        answer, energy = await self._controller.predict(
            await asyncio.to_thread(json_fields.graph_from_json, request.graph_json),
            request.platform,
            request.coverage or DEFAULT_COVERAGE,
            request.energy,
        )
        return pb.PredictResponse(
            answer_json=json.dumps(answer.to_json()),
            energy_json="" if energy is None else json.dumps(energy.to_json()),
        )

    @_streams
    async def Query(self, request: pb.QueryRequest) -> Any:
        """Find the latency in the store, else have a board measure it."""
        question = await asyncio.to_thread(query_messages.question_from_pb, request, CALLER.get())
        async for event in self._controller.questions.ask(question):
            if isinstance(event, str):
                yield pb.QueryEvent(progress=event)
            elif isinstance(event, GraphNeeded):
                yield pb.QueryEvent(graph_needed=True)
            else:
                yield pb.QueryEvent(answer=query_messages.found_to_pb(event))

    @_streams
    async def QueryMany(self, request: pb.QueryManyRequest) -> Any:
        """Answer many questions as their answers come; one that fails ends alone."""
        questions = await asyncio.to_thread(query_messages.questions_from_pb, request, CALLER.get())
        async with aclosing(self._controller.questions.ask_many(questions)) as told:
            async for ends in told:
                yield await asyncio.to_thread(query_messages.ends_to_pb, ends)

    @_streams
    def EstimateMany(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Answer candidates from the store, and predict the rest; one that fails ends alone."""
        return estimate_stream.answer(
            requests,
            self._controller.estimating(),
            self._controller.predicted,
            self._estimate_turns,
        )

    @_answers
    async def StartCampaign(self, request: pb.StartCampaignRequest) -> Any:
        """Start a campaign, or continue the one of the same kind, platform, settings and name."""
        record = await self._controller.campaigns.start(
            request.kind,
            request.platform,
            json_fields.config_from_json(request.config_json),
            request.name,
            CALLER.get(),
        )
        self._note(
            "campaign.started", record.campaign_id, kind=request.kind, platform=request.platform
        )
        return messages.campaign_to_pb(record)

    @_answers
    async def ListCampaigns(self, _request: pb.ListCampaignsRequest) -> Any:
        """All campaigns, newest first, without their configurations and outcomes."""
        records = await self._controller.campaigns.all()
        return pb.ListCampaignsResponse(campaigns=map(messages.campaign_to_pb, records))

    @_answers
    async def GetCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """One campaign by its id or name."""
        return messages.campaign_to_pb(await self._controller.campaigns.get(request.campaign_id))

    @_streams
    async def WatchCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Send the campaign now and at each change, until it ends."""
        campaigns = self._controller.campaigns
        async for record in campaigns.watch(request.campaign_id):
            yield messages.campaign_to_pb(record, campaigns.figures(record.campaign_id))

    @_answers
    async def ResumeCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Continue a campaign where it stopped."""
        record = await self._controller.campaigns.resume(request.campaign_id)
        self._note("campaign.resumed", record.campaign_id)
        return messages.campaign_to_pb(record)

    @_answers
    async def CancelCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Stop a campaign after the measurement that is running."""
        record = await self._controller.campaigns.cancel(request.campaign_id)
        self._note("campaign.cancelled", record.campaign_id)
        return messages.campaign_to_pb(record)

    @_answers
    async def PauseCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Stop a campaign until it is resumed."""
        record = await self._controller.campaigns.pause(request.campaign_id)
        self._note("campaign.paused", record.campaign_id)
        return messages.campaign_to_pb(record)

    @_answers
    async def RemoveCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Take a campaign that does not run out of all lists."""
        record = await self._controller.campaigns.remove(request.campaign_id)
        self._note("campaign.removed", record.campaign_id)
        return messages.campaign_to_pb(record)

    @_answers
    async def GetGraph(self, request: pb.GetGraphRequest) -> Any:
        """The network with a hash, or with the beginning of one."""
        found, graph = await self._controller.graph(request.hash)
        return pb.GetGraphResponse(graph_json=graph.dumps().encode(), hash=found)

    @_streams
    async def ListResults(self, request: pb.ListMeasurementsRequest) -> Any:
        """Stored measurements, newest first."""
        async for measurement, details in self._controller.results(
            platform=request.platform,
            campaign_id=request.campaign_id,
            purpose=request.purpose,
            limit=request.limit,
            details=request.details,
            foreign=request.foreign,
        ):
            yield messages.measurement_to_pb(measurement, details)

    @_answers
    async def Report(self, request: pb.ReportRequest) -> Any:
        """All facts of a platform's report, as JSON."""
        facts = await self._controller.report(request.platform, request.campaign_id)
        return pb.ReportResponse(facts_json=json.dumps(facts, default=str))
