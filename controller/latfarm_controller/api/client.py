"""The client of the controller's service: its calls with the controller's own types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from latfarm_predictors.graph.graph import Graph
from latfarm_predictors.measurement import Measurement
from latfarm_protos.v1 import controller_pb2 as pb
from latfarm_protos.v1 import controller_pb2_grpc

from latfarm_controller import json_fields
from latfarm_controller.api import messages, query_messages
from latfarm_controller.api.error_codes import error_of
from latfarm_controller.app.question import Found, GraphNeeded, Question
from latfarm_controller.app.summaries import BoardSummary, CampaignSummary, PlatformSummary
from latfarm_controller.errors import ControllerError, NoSuchCallError, UsageError
from latfarm_controller.store.base import BoardEvent

if TYPE_CHECKING:
    from latfarm_controller.app.estimating import AskedEstimate, EstimateEnd

BATCH_BYTES = 16 << 20
"""Most bytes of networks in one call, a quarter of what a message may have."""
HASHED_BYTES = BATCH_BYTES // query_messages.MOST_QUESTIONS
"""Size that a question without its network and each of its tags count for. So a call asks no more
questions, and has no more fields, than the controller reads (`message_fields.MOST_FIELDS`)."""


class ControllerClient:
    """Calls the controller's service. Not thread-safe.

    Args:
        channel: an open channel to the controller.
        hosted: whether the controller runs in this process, and so ends with this command.

    Raises:
        ControllerError: from any method; an error of the class that the service raised.
    """

    def __init__(self, channel: grpc.Channel, *, hosted: bool = False) -> None:
        self._stub: Any = controller_pb2_grpc.ControllerServiceStub(channel)
        self.hosted = hosted

    def _call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            raise error_of(error) from None

    def _stream(self, stream: Any) -> Iterator[Any]:
        try:
            yield from stream
        except grpc.RpcError as error:
            raise error_of(error) from None
        finally:
            stream.cancel()

    def boards(self) -> list[BoardSummary]:
        """All boards of the inventory, reachable or not."""
        found = self._call(lambda: self._stub.ListBoards(pb.ListBoardsRequest()))
        return [messages.board_from_pb(board) for board in found.boards]

    def drain_board(self, name: str, reason: str, deadline_s: float = 0.0) -> BoardSummary:
        """Give a board no new work; it finishes the work that it has.

        Args:
            name: the board's name in the inventory.
            reason: why; people see it in the list of events.
            deadline_s: after so many seconds, what is left goes to other boards; 0: never.
        """
        request = pb.BoardRequest(name=name, reason=reason, deadline_s=deadline_s)
        return messages.board_from_pb(self._call(lambda: self._stub.DrainBoard(request)))

    def quarantine_board(self, name: str, reason: str) -> BoardSummary:
        """Stop a board, and discard what it measured since its last good sentinel."""
        request = pb.BoardRequest(name=name, reason=reason)
        return messages.board_from_pb(self._call(lambda: self._stub.QuarantineBoard(request)))

    def resume_board(self, name: str, reason: str, new_reference: bool) -> BoardSummary:
        """Let a board work again if its sentinel takes as long as it used to.

        Args:
            name: the board's name in the inventory.
            reason: why; people see it in the list of events.
            new_reference: accept the sentinel's present latency as the new normal one.
        """
        request = pb.BoardRequest(name=name, reason=reason, new_reference=new_reference)
        return messages.board_from_pb(self._call(lambda: self._stub.ResumeBoard(request)))

    def reserve_board(self, name: str, reason: str, until_s: float) -> BoardSummary:
        """Reserve a board for the caller until a Unix time; it then works again by itself."""
        request = pb.BoardRequest(name=name, reason=reason, until_s=until_s)
        return messages.board_from_pb(self._call(lambda: self._stub.ReserveBoard(request)))

    def release_board(self, name: str) -> BoardSummary:
        """End the caller's reservation of a board."""
        request = pb.BoardRequest(name=name)
        return messages.board_from_pb(self._call(lambda: self._stub.ReleaseBoard(request)))

    def power_board(self, name: str, action: str, reason: str) -> str:
        """Switch the power of a board by its hooks; returns the last words of the hook.

        Args:
            name: the board's name in the inventory.
            action: off, on, cycle or reboot.
            reason: why; people see it in the list of events.
        """
        request = pb.PowerBoardRequest(name=name, action=action, reason=reason)
        return str(self._call(lambda: self._stub.PowerBoard(request)).told)

    def watch_board(self, name: str) -> Iterator[BoardSummary]:
        """A board now and at each change, until nothing runs on it."""
        for message in self._stream(self._stub.WatchBoard(pb.BoardRequest(name=name))):
            yield messages.board_from_pb(message)

    def board_events(self, name: str) -> list[BoardEvent]:
        """What was decided about a board, newest first; about all boards where `name` is empty."""
        request = pb.BoardRequest(name=name)
        found = self._call(lambda: self._stub.ListBoardEvents(request))
        return [messages.event_from_pb(event) for event in found.events]

    def platforms(self, tags: Sequence[str] = ()) -> list[PlatformSummary]:
        """All platforms, and the runtimes that are missing.

        With tags: those of the boards that have all of them.
        """
        request = pb.ListPlatformsRequest(tags=tags)
        found = self._call(lambda: self._stub.ListPlatforms(request))
        return [messages.platform_from_pb(platform) for platform in found.platforms]

    def start(
        self, kind: str, platform: str, config: Mapping[str, Any], name: str = ""
    ) -> CampaignSummary:
        """Start a campaign, or continue the one of the same kind, platform, settings and name."""
        request = pb.StartCampaignRequest(
            kind=kind, platform=platform, config_json=json.dumps(dict(config)), name=name
        )
        return messages.campaign_from_pb(self._call(lambda: self._stub.StartCampaign(request)))

    def campaigns(self) -> list[CampaignSummary]:
        """All campaigns, newest first, without their configurations and outcomes."""
        found = self._call(lambda: self._stub.ListCampaigns(pb.ListCampaignsRequest()))
        return [messages.campaign_from_pb(campaign) for campaign in found.campaigns]

    def campaign(self, campaign_id: str) -> CampaignSummary:
        """One campaign by its id or name."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        return messages.campaign_from_pb(self._call(lambda: self._stub.GetCampaign(request)))

    def watch(self, campaign_id: str) -> Iterator[CampaignSummary]:
        """A campaign, without its configuration, now and at each change, until it ends."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        for message in self._stream(self._stub.WatchCampaign(request)):
            yield messages.campaign_from_pb(message)

    def resume(self, campaign_id: str) -> CampaignSummary:
        """Continue a campaign where it stopped."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        return messages.campaign_from_pb(self._call(lambda: self._stub.ResumeCampaign(request)))

    def cancel(self, campaign_id: str) -> CampaignSummary:
        """Stop a campaign after the measurement that is running."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        return messages.campaign_from_pb(self._call(lambda: self._stub.CancelCampaign(request)))

    def remove(self, campaign_id: str) -> CampaignSummary:
        """Take a campaign that does not run out of all lists; its measurements stay."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        return messages.campaign_from_pb(self._call(lambda: self._stub.RemoveCampaign(request)))

    def pause(self, campaign_id: str) -> CampaignSummary:
        """Stop a campaign until it is resumed."""
        request = pb.GetCampaignRequest(campaign_id=campaign_id)
        return messages.campaign_from_pb(self._call(lambda: self._stub.PauseCampaign(request)))

    def query(
        self,
        question: Question,
        *,
        on_progress: Callable[[str], None] = lambda _text: None,
    ) -> Found:
        """The latency of a network, from the store or measured on a board.

        The hashes of the network are sent first, and the network itself only if a board needs it.

        Args:
            question: about which network and platform, and what answers it.
            on_progress: called with texts for people while a board measures.

        Returns:
            The answer. `SlowCore.told_by(measurement)` corrects its measurement like the
            predictions of the platform's bundle in use.
        """
        for with_graph in (not question.stored, True):
            request = query_messages.question_to_pb(question, with_graph=with_graph)
            for event in self._stream(self._stub.Query(request)):
                kind = event.WhichOneof("event")
                if kind == "progress":
                    on_progress(event.progress)
                elif kind == "answer":
                    return query_messages.found_from_pb(event.answer)
            if question.graph is None:
                raise UsageError(
                    f"the store has no answer for {question.graph_hash}; to measure it, give the "
                    "network itself"
                )
        raise ControllerError("the controller ended the query without an answer")

    def query_many(
        self, questions: Sequence[Question]
    ) -> Iterator[tuple[int, Found | ControllerError]]:
        """Ask many questions; answers come as soon as they are there.

        Yields:
            The position of each question with its answer, or with the error that ended it alone.
        """
        needed = [place for place, question in enumerate(questions) if not question.stored]
        by_hash = [place for place, question in enumerate(questions) if question.stored]
        sizes = [HASHED_BYTES * (1 + len(question.tags)) for question in questions]
        for places in batches(by_hash, sizes.__getitem__):
            for place, end in self._ends(questions, places, with_graph=False):
                if not isinstance(end, GraphNeeded):
                    yield place, end
                elif questions[place].graph is None:
                    text = f"the store has no answer for {questions[place].graph_hash}"
                    yield place, UsageError(f"{text}; to measure it, give the network itself")
                else:
                    needed.append(place)
        for place in needed:
            graph = questions[place].graph
            sizes[place] += len(graph.dumps()) if graph else 0
        for places in batches(sorted(needed), sizes.__getitem__):
            for place, end in self._ends(questions, places, with_graph=True):
                if isinstance(end, GraphNeeded):
                    yield place, UsageError("to measure, give the network itself")
                else:
                    yield place, end

    def _ends(
        self, questions: Sequence[Question], places: Sequence[int], *, with_graph: bool
    ) -> Iterator[tuple[int, Found | GraphNeeded | ControllerError]]:
        """Ask the questions at some places, in one call."""
        request = pb.QueryManyRequest(
            questions=[
                query_messages.question_to_pb(questions[place], with_graph=with_graph)
                for place in places
            ]
        )
        for event in self._stream(self._stub.QueryMany(request)):
            for end in event.ends:
                yield places[end.place], query_messages.end_from_pb(end)

    def estimate_many(self, asked: Iterable[AskedEstimate]) -> Iterator[tuple[int, EstimateEnd]]:
        """The ends of candidates, each with its place, from the store and the bundles in use there.

        However many candidates there are, only some hundred are held at a time.

        Raises:
            NoSuchCallError: the controller is an older one.
        """
        from latfarm_controller.api import estimate_stream  # loads numpy, which few commands need

        try:
            yield from estimate_stream.ask(self._stub.EstimateMany, asked)
        except grpc.RpcError as error:
            refused = error.code() is grpc.StatusCode.PERMISSION_DENIED
            older = refused and "nobody may call" in str(error.details())
            if older or error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise NoSuchCallError(
                    "the controller is an older one and makes no estimates; update it"
                ) from None
            raise error_of(error) from None

    def results(
        self, *, platform: str = "", campaign_id: str = "", purpose: str = "", limit: int = 0
    ) -> Iterator[Measurement]:
        """Stored measurements, newest first; an empty filter selects all, a limit of 0 too."""
        request = pb.ListMeasurementsRequest(
            platform=platform, campaign_id=campaign_id, purpose=purpose, limit=limit
        )
        for message in self._stream(self._stub.ListResults(request)):
            yield messages.measurement_from_pb(message)

    def detailed_results(
        self,
        *,
        platform: str = "",
        campaign_id: str = "",
        purpose: str = "",
        limit: int = 0,
        foreign: bool = False,
    ) -> Iterator[tuple[Measurement, dict[str, Any]]]:
        """The same, each with what the store knows besides; see `app.result_details`.

        With `foreign`, measurements of other farms are listed, too; their conditions tell source,
        licence and method.
        """
        request = pb.ListMeasurementsRequest(
            platform=platform,
            campaign_id=campaign_id,
            purpose=purpose,
            limit=limit,
            details=True,
            foreign=foreign,
        )
        for message in self._stream(self._stub.ListResults(request)):
            yield messages.measurement_from_pb(message), messages.details_from_pb(message)

    def graph(self, graph_hash: str) -> tuple[str, Graph]:
        """The exact hash and the network that a hash, or its beginning, stands for."""
        request = pb.GetGraphRequest(hash=graph_hash)
        found = self._call(lambda: self._stub.GetGraph(request))
        return found.hash, json_fields.graph_from_json(found.graph_json)

    def report(self, platform: str, campaign_id: str = "") -> dict[str, Any]:
        """All facts of a platform's report; see `latfarm_controller.reports.platform_report`."""
        request = pb.ReportRequest(platform=platform, campaign_id=campaign_id)
        found = self._call(lambda: self._stub.Report(request))
        facts: dict[str, Any] = json.loads(found.facts_json)
        return facts


def batches(places: Sequence[int], size_bytes: Callable[[int], int]) -> Iterator[list[int]]:
    """Divide places into lists whose sizes add up to at most `BATCH_BYTES`, or that have one."""
    batch: list[int] = []
    total_bytes = 0
    for place in places:
        size = size_bytes(place)
        if batch and total_bytes + size > BATCH_BYTES:
            yield batch
            batch, total_bytes = [], 0
        batch.append(place)
        total_bytes += size
    if batch:
        yield batch
