"""The controller's gRPC service: messages to controller calls, and errors to status codes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, Protocol

import grpc
from latfarm_predictors.errors import PredictorsError
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_predictors.predict.answer import Answer, EnergyAnswer
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

from latfarm_controller import errors
from latfarm_controller.store.base import BoardEvent, CampaignRecord

ACTOR_KEY = "latfarm-actor-bin"
"""Metadata by which the front for other machines says who calls; see `outside.py`."""
CALLER: ContextVar[str] = ContextVar("caller", default="local")
"""Who makes the present call: the name in their certificate, or `local` through the socket."""
MAX_MESSAGE_BYTES = 64 << 20
MESSAGE_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
"""Of both sides: a question carries a whole graph, a campaign many."""
LONGEST_ERROR = 3000
"""Characters; an error travels in a header, where gRPC allows 8 KiB."""
ERROR_KEY = "latfarm-error"
"""Trailing metadata that names the error's class, so that a client can raise the same."""

STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (errors.UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.StoreBusyError, grpc.StatusCode.UNAVAILABLE),
    (errors.AgentLostError, grpc.StatusCode.UNAVAILABLE),
    (errors.LeaseError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.ControllerError, grpc.StatusCode.ABORTED),
    (PredictorsError, grpc.StatusCode.INVALID_ARGUMENT),
    (OSError, grpc.StatusCode.INTERNAL),
)
"""The one catalogue: the first class that fits decides."""


def error_of(rpc_error: grpc.RpcError) -> Exception:
    """The error that the service raised, rebuilt on the client's side."""
    names = dict(rpc_error.trailing_metadata() or ())
    known = {cls.__name__: cls for cls in vars(errors).values() if isinstance(cls, type)}
    kind = known.get(str(names.get(ERROR_KEY, "")))
    if kind is not None and issubclass(kind, errors.ControllerError):
        return kind(rpc_error.details())
    if rpc_error.code() is grpc.StatusCode.UNAVAILABLE:
        return errors.ControllerError("the controller went away; run the command again to go on")
    return errors.ControllerError(str(rpc_error.details()))


async def _abort(context: Any, error: Exception) -> None:
    code = next((code for kind, code in STATUS if isinstance(error, kind)), None)
    if code is None:
        raise error
    name = "UsageError" if isinstance(error, PredictorsError) else "ControllerError"
    if isinstance(error, errors.ControllerError):
        name = type(error).__name__
    text = str(error) or type(error).__name__
    if len(text) > LONGEST_ERROR:
        text = f"{text[:LONGEST_ERROR]}..."
    await context.abort(code, text, ((ERROR_KEY, name),))


def _note_caller(context: Any) -> None:
    names = dict(context.invocation_metadata() or ())
    actor = names.get(ACTOR_KEY, b"local")
    CALLER.set(actor.decode(errors="replace") if isinstance(actor, bytes) else str(actor))


def _answers(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        _note_caller(context)
        try:
            return await method(self, request)
        except tuple(kind for kind, _ in STATUS) as error:
            await _abort(context, error)

    return call


def _streams(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        _note_caller(context)
        try:
            async for message in method(self, request):
                yield message
        except tuple(kind for kind, _ in STATUS) as error:
            await _abort(context, error)

    return call


def campaign_pb(record: CampaignRecord, remaining_ms: float = 0.0) -> pb.Campaign:
    """A campaign's record as a message; 0 ms remaining: not known."""
    return pb.Campaign(
        campaign_id=record.campaign_id,
        name=record.name,
        kind=record.kind,
        platform=record.platform,
        config_json=json.dumps(record.config),
        state=record.state,
        stage=record.stage,
        stage_done=record.stage_done,
        stage_total=record.stage_total,
        measurements=record.measurements,
        failures=record.failures,
        board_ms=record.board_ms,
        wall_ms=record.wall_ms,
        remaining_ms=remaining_ms,
        started_at_s=record.started_at_s,
        finished_at_s=record.finished_at_s,
        outcome_json=json.dumps(record.outcome, default=str),
        error=record.error,
    )


def _event_pb(event: BoardEvent) -> pb.BoardEvent:
    return pb.BoardEvent(
        name=event.board,
        board_id=event.board_id,
        event=event.event,
        reason=event.reason,
        actor=event.actor,
        at_s=event.at_s,
        details_json=json.dumps(dict(event.details)),
    )


def _graph(data: bytes) -> Graph:
    try:
        return Graph.from_json(json.loads(data))
    except ValueError as error:
        raise errors.UsageError(f"graph_json is no JSON: {error}") from error


def _config(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text or "{}")
    except ValueError as error:
        raise errors.UsageError(f"config_json is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise errors.UsageError("config_json must be a JSON object")
    return data


class BoardControl(Protocol):
    """What can be done about a board by its name; `board_control.BoardControl` is it.

    Every method may raise an error of `STATUS`.
    """

    async def drain(self, name: str, reason: str, actor: str) -> pb.BoardStatus:
        """Give a board no new work."""
        ...

    async def quarantine(self, name: str, reason: str, actor: str) -> pb.BoardStatus:
        """Stop a board, and put aside what it measured since its last good sentinel."""
        ...

    async def resume(
        self, name: str, reason: str, actor: str, *, new_reference: bool
    ) -> pb.BoardStatus:
        """Let a board work again, once its sentinel is as it was."""
        ...

    def watch(self, name: str) -> AsyncIterator[pb.BoardStatus]:
        """A board's standing now and at each change, until nothing runs on it."""
        ...

    async def events(self, name: str) -> list[BoardEvent]:
        """What was decided about a board, or about any, newest first."""
        ...


class Campaigns(Protocol):
    """What can be done about campaigns; `campaign_runs.CampaignRuns` is it.

    Every method may raise an error of `STATUS`.
    """

    async def start(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str
    ) -> CampaignRecord:
        """Start a campaign, or go on with the same one."""
        ...

    async def all(self) -> list[CampaignRecord]:
        """All campaigns, newest first."""
        ...

    async def get(self, name: str) -> CampaignRecord:
        """One campaign by id or name."""
        ...

    def watch(self, name: str) -> AsyncIterator[CampaignRecord]:
        """The campaign now and at each change, until it ends."""
        ...

    def remaining_ms(self, campaign_id: str) -> float:
        """Estimate for the stage that a campaign is in; 0: unknown."""
        ...

    async def resume(self, name: str) -> CampaignRecord:
        """Go on with a campaign that was stopped."""
        ...

    async def cancel(self, name: str) -> CampaignRecord:
        """Stop a campaign after the measurement that is running."""
        ...


class Questions(Protocol):
    """How a network's latency is asked for; `questions.Questions` is it.

    May raise an error of `STATUS`.
    """

    def ask(
        self, graph: Graph, platform: str, tier: str, refresh: bool, energy: bool
    ) -> AsyncIterator[str | tuple[Measurement, bool]]:
        """Progress as text, then the measurement and whether the store knew it."""
        ...


class Controller(Protocol):
    """What the service offers; `app.Controller` is it.

    Every method may raise an error of `STATUS`.
    """

    async def boards(self) -> list[pb.BoardStatus]:
        """All boards of the inventory, reachable or not."""
        ...

    async def platforms(self) -> list[pb.PlatformStatus]:
        """All platforms that the boards offer, then the runtimes that they lack."""
        ...

    @property
    def control(self) -> BoardControl:
        """What is done about single boards."""
        ...

    @property
    def campaigns(self) -> Campaigns:
        """What is done about campaigns."""
        ...

    @property
    def questions(self) -> Questions:
        """Where latencies are asked for."""
        ...

    async def predict(
        self, graph: Graph, platform: str, coverage: float, energy: bool
    ) -> tuple[Answer, EnergyAnswer | None]:
        """From the newest bundle of the platform alone; with `energy` its millijoules too."""
        ...

    def results(
        self, *, platform: str, campaign_id: str, purpose: str, limit: int
    ) -> AsyncIterator[Measurement]:
        """Stored measurements, newest first."""
        ...

    async def report(self, platform: str, campaign_id: str) -> dict[str, Any]:
        """All that is known of a platform, as plain JSON types."""
        ...


class ControllerService(controller_pb2_grpc.ControllerServiceServicer):
    """Each method is one call of the controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    @_answers
    async def ListBoards(self, _request: pb.ListBoardsRequest) -> Any:
        """All boards of the inventory, reachable or not."""
        return pb.ListBoardsResponse(boards=await self._controller.boards())

    @_answers
    async def ListPlatforms(self, _request: pb.ListPlatformsRequest) -> Any:
        """All platforms that the boards offer, and the runtimes that they lack."""
        return pb.ListPlatformsResponse(platforms=await self._controller.platforms())

    @_answers
    async def DrainBoard(self, request: pb.BoardRequest) -> Any:
        """Take no new work, finish what runs."""
        return await self._controller.control.drain(request.name, request.reason, CALLER.get())

    @_answers
    async def QuarantineBoard(self, request: pb.BoardRequest) -> Any:
        """Take no work at all, and put aside what the last good sentinel does not vouch for."""
        return await self._controller.control.quarantine(request.name, request.reason, CALLER.get())

    @_answers
    async def ResumeBoard(self, request: pb.BoardRequest) -> Any:
        """Work again."""
        return await self._controller.control.resume(
            request.name, request.reason, CALLER.get(), new_reference=request.new_reference
        )

    @_streams
    async def WatchBoard(self, request: pb.BoardRequest) -> Any:
        """The board now and at each change, until nothing runs on it."""
        async for status in self._controller.control.watch(request.name):
            yield status

    @_answers
    async def ListBoardEvents(self, request: pb.BoardRequest) -> Any:
        """What was decided about boards, newest first."""
        events = await self._controller.control.events(request.name)
        return pb.ListBoardEventsResponse(events=[_event_pb(event) for event in events])

    @_answers
    async def Predict(self, request: pb.PredictRequest) -> Any:
        """From a bundle alone."""
        answer, energy = await self._controller.predict(
            _graph(request.graph_json), request.platform, request.coverage or 0.9, request.energy
        )
        return pb.PredictResponse(
            answer_json=json.dumps(answer.to_json()),
            energy_json="" if energy is None else json.dumps(energy.to_json()),
        )

    @_streams
    async def Query(self, request: pb.QueryRequest) -> Any:
        """From the store, else from a board."""
        async for event in self._controller.questions.ask(
            _graph(request.graph_json),
            request.platform,
            request.tier,
            request.refresh,
            request.energy,
        ):
            if isinstance(event, str):
                yield pb.QueryEvent(progress=event)
            else:
                measurement, hit = event
                text = json.dumps(measurement.to_json())
                yield pb.QueryEvent(
                    answer=pb.QueryAnswer(measurement=pb.Measurement(json=text), hit=hit)
                )

    @_answers
    async def StartCampaign(self, request: pb.StartCampaignRequest) -> Any:
        """Start, or go on with the campaign of the same kind, platform, configuration and name."""
        record = await self._controller.campaigns.start(
            request.kind, request.platform, _config(request.config_json), request.name
        )
        return campaign_pb(record)

    @_answers
    async def ListCampaigns(self, _request: pb.ListCampaignsRequest) -> Any:
        """All campaigns, newest first."""
        records = await self._controller.campaigns.all()
        return pb.ListCampaignsResponse(campaigns=[campaign_pb(r) for r in records])

    @_answers
    async def GetCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """One campaign by id or name."""
        return campaign_pb(await self._controller.campaigns.get(request.campaign_id))

    @_streams
    async def WatchCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """The campaign now and at each change, until it ends."""
        async for record in self._controller.campaigns.watch(request.campaign_id):
            yield campaign_pb(record, self._controller.campaigns.remaining_ms(record.campaign_id))

    @_answers
    async def ResumeCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Go on where it stopped."""
        return campaign_pb(await self._controller.campaigns.resume(request.campaign_id))

    @_answers
    async def CancelCampaign(self, request: pb.GetCampaignRequest) -> Any:
        """Stop after the measurement that is running."""
        return campaign_pb(await self._controller.campaigns.cancel(request.campaign_id))

    @_streams
    async def ListResults(self, request: pb.ListMeasurementsRequest) -> Any:
        """Stored measurements, newest first."""
        async for measurement in self._controller.results(
            platform=request.platform,
            campaign_id=request.campaign_id,
            purpose=request.purpose,
            limit=request.limit,
        ):
            yield pb.Measurement(json=json.dumps(measurement.to_json()))

    @_answers
    async def Report(self, request: pb.ReportRequest) -> Any:
        """All that is known of a platform."""
        facts = await self._controller.report(request.platform, request.campaign_id)
        return pb.ReportResponse(facts_json=json.dumps(facts, default=str))
